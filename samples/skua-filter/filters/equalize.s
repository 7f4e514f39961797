; SPDX-License-Identifier: MIT
;
; Gives each pixel the luma that a table has for its own: all three channels change by the
; difference, and are held to 0 to 255. Alpha stays.

.include "point.inc"
.arg64  table
.reg    luma, r11               ; then the difference

.include "luma.inc"
    arg     r8, table
    arg     r9, table.hi
    lea     address, address, luma, 2
    ld.32   r12, [address]
    sub     luma, r12, luma

    and     r13, pixel, 0xff000000
    mov     r14, 0
next:
    shr     r12, pixel, r14
    and     r12, r12, 0xff
    add     r12, r12, luma
    maxs    r12, r12, 0
    minu    r12, r12, 255
    shl     r12, r12, r14
    or      r13, r13, r12
    add     r14, r14, 8
    sltu    r12, r14, 24
    bnz     r12, next
    mov     pixel, r13

.include "store.inc"
