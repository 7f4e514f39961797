; SPDX-License-Identifier: MIT
;
; The negative: 255 - c in each channel. Alpha stays.

.threads 32, 8
.arg64  source
.arg64  target
.arg    width
.arg    rows

.reg    x, r0
.reg    y, r1
.reg    index, r6
.reg    address, r8             ; a pair
.reg    pixel, r10

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

    xor     pixel, pixel, 0xffffff

    arg     r8, target
    arg     r9, target.hi
    lea     address, address, index, 2
    st.32   [address], pixel
done:
    exit
