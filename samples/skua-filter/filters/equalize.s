; SPDX-License-Identifier: MIT
;
; Gives each pixel the luma that a table has for its own: all three channels change by the difference,
; and are held to 0 to 255. Alpha stays.

.threads 32, 8
.arg64  source
.arg64  target
.arg64  table
.arg    width
.arg    rows

.reg    x, r0
.reg    y, r1
.reg    index, r6
.reg    address, r8             ; a pair
.reg    pixel, r10
.reg    luma, r11               ; then the difference

    sr      x, tid.x
    sr      r2, gid.x
    shl     r2, r2, 5           ; 32 columns in a group
    add     x, x, r2
    sr      y, tid.y
    sr      r3, gid.y
    shl     r3, r3, 3           ; 8 rows in a group
    add     y, y, r3
    arg     r4, width
    arg     r5, rows
    bgeu    x, r4, done         ; the last groups reach over the edges
    bgeu    y, r5, done
    mul     index, y, r4
    add     index, index, x

    arg     r8, source
    arg     r9, source.hi
    lea     address, address, index, 2
    ld.32   pixel, [address]

    and     r12, pixel, 0xff
    mul     luma, r12, 77
    shr     r12, pixel, 8
    and     r12, r12, 0xff
    mul     r12, r12, 150
    add     luma, luma, r12
    shr     r12, pixel, 16
    and     r12, r12, 0xff
    mul     r12, r12, 29
    add     luma, luma, r12
    add     luma, luma, 128
    shr     luma, luma, 8
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

    arg     r8, target
    arg     r9, target.hi
    lea     address, address, index, 2
    st.32   [address], pixel
done:
    exit
