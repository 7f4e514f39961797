; SPDX-License-Identifier: MIT
;
; Luma in all three channels. Alpha stays.

.include "point.inc"
.reg    luma, r11

.include "luma.inc"

    and     pixel, pixel, 0xff000000
    mul     luma, luma, 0x010101
    or      pixel, pixel, luma

.include "store.inc"
