; SPDX-License-Identifier: MIT
;
; Sharper by the Laplacian: 5 c - above - below - left - right in each channel, held to 0 to 255. Alpha
; stays. Beyond the borders the nearest pixel counts.

.threads 32, 8
.arg64  source
.arg64  target
.arg    width
.arg    rows                    ; of the target
.arg    source_rows
.arg    first                   ; row of the source that the target starts at

.reg    x, r0
.reg    y, r1
.reg    address, r8             ; a pair
.reg    left, r10
.reg    right, r11
.reg    above, r12
.reg    middle, r13
.reg    below, r14
.reg    base, r20               ; a pair
.reg    result, r22
.reg    shift, r23
.reg    channel, r24
.reg    pixel, r30

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
    sub     r6, r4, 1
    sub     left, x, 1
    maxs    left, left, 0
    add     right, x, 1
    minu    right, right, r6
    arg     r7, source_rows
    sub     r7, r7, 1
    arg     r5, first
    add     middle, y, r5
    sub     above, middle, 1
    maxs    above, above, 0
    add     below, middle, 1
    minu    below, below, r7
    mul     above, above, r4    ; rows to indices
    mul     middle, middle, r4
    mul     below, below, r4
    arg     base, source
    arg     r21, source.hi
    add     r6, middle, x
    lea     address, base, r6, 2
    ld.32   pixel, [address]          ; the pixel
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

    and     result, pixel, 0xff000000
    mov     shift, 0
next:
    shr     channel, pixel, shift
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
    maxs    channel, channel, 0
    minu    channel, channel, 255
    shl     channel, channel, shift
    or      result, result, channel
    add     shift, shift, 8
    sltu    r6, shift, 24
    bnz     r6, next

    mul     r6, y, r4
    add     r6, r6, x
    arg     r8, target
    arg     r9, target.hi
    lea     address, address, r6, 2
    st.32   [address], result
done:
    exit
