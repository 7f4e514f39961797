; SPDX-License-Identifier: MIT
;
; Sobel's edges: the length of the gradient of luma, rounded down and held to 255, in all three
; channels. Alpha stays. Beyond the borders the nearest pixel counts.
;
; A group computes luma once for each pixel of its tile and a frame of one pixel around it, in
; shared memory; each thread then reads its eight neighbours there.

.equ    COLUMNS, 34             ; of the tile with its frame
.equ    ROWS, 10
.equ    LINE, COLUMNS * 4       ; bytes
.shared LINE * ROWS
.threads 32, 8
.arg64  source
.arg64  target
.arg    width
.arg    rows                    ; of the target
.arg    source_rows
.arg    first                   ; row of the source that the target starts at

.reg    x, r0
.reg    y, r1
.reg    index, r6
.reg    address, r8             ; a pair
.reg    pixel, r10
.reg    luma, r11
.reg    last_x, r16
.reg    last_y, r17
.reg    left, r18               ; column and row of the tile's first element in the source
.reg    top, r19
.reg    element, r20
.reg    gx, r24
.reg    gy, r25

    arg     r4, width
    sub     last_x, r4, 1
    arg     r5, source_rows
    sub     last_y, r5, 1
    sr      left, gid.x
    shl     left, left, 5
    sub     left, left, 1
    sr      top, gid.y
    shl     top, top, 3
    arg     r5, first
    add     top, top, r5
    sub     top, top, 1

    sr      element, flat
fill:
    remu    x, element, COLUMNS
    divu    y, element, COLUMNS
    add     x, x, left
    maxs    x, x, 0
    mins    x, x, last_x
    add     y, y, top
    maxs    y, y, 0
    mins    y, y, last_y
    mul     r6, y, r4
    add     r6, r6, x
    arg     r8, source
    arg     r9, source.hi
    lea     address, address, r6, 2
    ld.32   pixel, [address]
.include "luma.inc"
    shl     r12, element, 2
    sts.32  [r12], luma
    add     element, element, 256
    sltu    r12, element, COLUMNS * ROWS
    bnz     r12, fill
    bar

    sr      x, tid.x
    sr      y, tid.y
    mul     r20, y, LINE        ; the neighbour above and to the left
    shl     r12, x, 2
    add     r20, r20, r12
    add     x, x, left
    add     x, x, 1
    sr      r3, gid.y
    shl     r3, r3, 3
    add     y, y, r3
    arg     r5, rows
    bgeu    x, r4, done
    bgeu    y, r5, done

    lds.32  r12, [r20]                  ; above, left
    lds.32  r13, [r20 + 4]              ; above
    lds.32  r14, [r20 + 8]              ; above, right
    sub     gx, r14, r12
    add     gy, r12, r14
    shl     r13, r13, 1
    add     gy, gy, r13
    lds.32  r12, [r20 + LINE]           ; left
    lds.32  r14, [r20 + LINE + 8]       ; right
    sub     r14, r14, r12
    shl     r14, r14, 1
    add     gx, gx, r14
    lds.32  r12, [r20 + LINE * 2]       ; below, left
    lds.32  r13, [r20 + LINE * 2 + 4]   ; below
    lds.32  r14, [r20 + LINE * 2 + 8]   ; below, right
    sub     r15, r14, r12
    add     gx, gx, r15
    sub     gy, gy, r12
    sub     gy, gy, r14
    shl     r13, r13, 1
    sub     gy, gy, r13

    mul     gx, gx, gx
    mul     gy, gy, gy
    add     gx, gx, gy          ; at most 2 * 1020^2: exact as a float
    u2f     gx, gx
    fsqrt   gx, gx
    f2u     gx, gx
    minu    gx, gx, 255
    mul     gx, gx, 0x010101

    arg     r5, first
    add     r5, r5, y
    mul     r5, r5, r4
    add     r5, r5, x
    arg     r8, source
    arg     r9, source.hi
    lea     address, address, r5, 2
    ld.32   pixel, [address]
    and     pixel, pixel, 0xff000000
    or      pixel, pixel, gx
    mul     index, y, r4
    add     index, index, x
.include "store.inc"
