; SPDX-License-Identifier: MIT
;
; Sharper by the Laplacian: 5 c - above - below - left - right in each channel, held to 0 to 255.
; Alpha stays.

.include "neighbours.inc"
    add     r6, above, x
    lea     address, base, r6, 2
    ld.32   r31, [address]          ; above
    add     r6, below, x
    lea     address, base, r6, 2
    ld.32   r32, [address]          ; below
    add     r6, middle, left
    lea     address, base, r6, 2
    ld.32   r33, [address]          ; left
    add     r6, middle, right
    lea     address, base, r6, 2
    ld.32   r34, [address]          ; right

    and     pixel, here, 0xff000000
    mov     shift, 0
next:
    shr     channel, here, shift
    and     channel, channel, 0xff
    mul     channel, channel, 5
    shr     r6, r31, shift
    and     r6, r6, 0xff
    sub     channel, channel, r6
    shr     r6, r32, shift
    and     r6, r6, 0xff
    sub     channel, channel, r6
    shr     r6, r33, shift
    and     r6, r6, 0xff
    sub     channel, channel, r6
    shr     r6, r34, shift
    and     r6, r6, 0xff
    sub     channel, channel, r6
.include "channels.inc"
