; SPDX-License-Identifier: MIT
;
; A relief lit from above and the left: 128 + (below, right) - (above, left) in each channel, held
; to 0 to 255. Alpha stays.

.include "neighbours.inc"
    add     r6, above, left
    lea     address, base, r6, 2
    ld.32   r31, [address]          ; above, left
    add     r6, below, right
    lea     address, base, r6, 2
    ld.32   r32, [address]          ; below, right

    and     pixel, here, 0xff000000
    mov     shift, 0
next:
    shr     channel, r32, shift
    and     channel, channel, 0xff
    add     channel, channel, 128
    shr     r6, r31, shift
    and     r6, r6, 0xff
    sub     channel, channel, r6
.include "channels.inc"
