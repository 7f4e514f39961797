; SPDX-License-Identifier: MIT
;
; The negative: 255 - c in each channel. Alpha stays.

.include "point.inc"

    xor     pixel, pixel, 0xffffff

.include "store.inc"
