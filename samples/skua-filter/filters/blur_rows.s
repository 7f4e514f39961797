; SPDX-License-Identifier: MIT
;
; First half of the blur: each pixel becomes the weighted mean of the pixels up to `radius` to its
; left and right. Weights are 16-bit fractions that sum to 1: weights[0] is the pixel's own,
; weights[d] that of both pixels at distance d. Alpha stays. Beyond the borders the nearest pixel
; counts.
;
; A group fetches its 4 rows of 64 pixels, and `radius` more at both ends, to shared memory once.

.equ    MAX_RADIUS, 64
.equ    STEP, 4                         ; bytes to the neighbour in the tile
.equ    LINE, (64 + 2 * MAX_RADIUS) * 4 ; bytes
.equ    WEIGHTS, LINE * 4
.shared WEIGHTS + (MAX_RADIUS + 1) * 4
.threads 64, 4
.arg64  source
.include "blur_begin.inc"
    sr      left, gid.x
    shl     left, left, 6
    sr      y, gid.y
    shl     y, y, 2
    sr      r6, tid.y
    add     y, y, r6
    mul     place, r6, LINE
    arg     last, rows
    sub     last, last, 1
    minu    r7, y, last         ; rows beyond the last one are fetched from it, and not stored
    mul     r7, r7, width
    arg     r8, source
    arg     r9, source.hi
    lea     base, address, r7, 2
    sr      element, tid.x
    shl     r6, element, 2
    add     place, place, r6
    shl     r6, radius, 2
    add     near, place, r6     ; the thread's own pixel in the tile
    shl     end, radius, 1
    add     end, end, 64
    sub     last, width, 1
fill:
    add     x, left, element
    sub     x, x, radius
    maxs    x, x, 0
    mins    x, x, last
    lea     address, base, x, 2
    ld.32   pixel, [address]
    sts.32  [place], pixel
    add     place, place, 64 * 4
    add     element, element, 64
    bltu    element, end, fill
    bar

    sr      x, tid.x
    add     x, x, left

.include "blur_end.inc"
