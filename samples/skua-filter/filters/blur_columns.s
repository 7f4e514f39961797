; SPDX-License-Identifier: MIT
;
; Second half of the blur: as blur_rows.s, with the pixels above and below.
;
; A group fetches its 32 columns of 16 pixels, and `radius` more at both ends, to shared memory
; once.

.equ    MAX_RADIUS, 64
.equ    STEP, 32 * 4                    ; bytes to the neighbour in the tile
.equ    WEIGHTS, (16 + 2 * MAX_RADIUS) * STEP
.shared WEIGHTS + (MAX_RADIUS + 1) * 4
.threads 32, 16
.arg64  intermediate
.arg    source_rows
.arg    first                   ; row of the source that the target starts at
.include "blur_begin.inc"
    sr      x, gid.x
    shl     x, x, 5
    sr      r6, tid.x
    add     x, x, r6
    sr      y, gid.y
    shl     y, y, 4
    arg     top, first
    add     top, top, y
    sub     last, width, 1
    minu    r7, x, last         ; columns beyond the last one are fetched from it, and not stored
    arg     r8, intermediate
    arg     r9, intermediate.hi
    lea     base, address, r7, 2
    sr      element, tid.y
    add     y, y, element
    mul     place, element, STEP
    shl     r6, r6, 2
    add     place, place, r6
    mul     r6, radius, STEP
    add     near, place, r6     ; the thread's own pixel in the tile
    shl     end, radius, 1
    add     end, end, 16
    arg     last, source_rows
    sub     last, last, 1
fill:
    add     r6, top, element
    sub     r6, r6, radius
    maxs    r6, r6, 0
    mins    r6, r6, last
    mul     r6, r6, width
    lea     address, base, r6, 2
    ld.32   pixel, [address]
    sts.32  [place], pixel
    add     place, place, 16 * STEP
    add     element, element, 16
    bltu    element, end, fill
    bar

.include "blur_end.inc"
