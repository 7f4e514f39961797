; SPDX-License-Identifier: MIT
;
; First half of the blur: each pixel becomes the weighted mean of the pixels up to `radius` to its left
; and right. Weights are 16-bit fractions that sum to 1: weights[0] is the pixel's own, weights[d] that
; of both pixels at distance d. Alpha stays. Beyond the borders the nearest pixel counts.
;
; A group fetches its 4 rows of 64 pixels, and `radius` more at both ends, to shared memory once.

.equ    MAX_RADIUS, 64
.equ    STEP, 4                         ; bytes to the neighbour in the tile
.equ    LINE, (64 + 2 * MAX_RADIUS) * 4 ; bytes
.equ    WEIGHTS, LINE * 4
.shared WEIGHTS + (MAX_RADIUS + 1) * 4
.threads 64, 4
.arg64  source
.arg64  target
.arg64  weights
.arg    width
.arg    rows
.arg    radius

.reg    x, r0
.reg    y, r1
.reg    width, r4
.reg    radius, r5
.reg    address, r8             ; a pair
.reg    pixel, r10
.reg    red, r11
.reg    green, r12
.reg    blue, r13
.reg    left, r16               ; of the tile in the source
.reg    top, r17
.reg    element, r18            ; column or row in the tile
.reg    end, r19
.reg    place, r20              ; in shared memory
.reg    last, r21
.reg    near, r22
.reg    far, r23
.reg    weight, r24
.reg    tap, r25
.reg    base, r26               ; a pair
.reg    zero, r63               ; nothing writes it

    arg     width, width
    arg     radius, radius
    sr      r6, flat
    bltu    radius, r6, tile    ; radius + 1 threads fetch a weight each
    arg     r8, weights
    arg     r9, weights.hi
    lea     address, address, r6, 2
    ld.32   weight, [address]
    shl     r6, r6, 2
    sts.32  [r6 + WEIGHTS], weight
tile:
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
    arg     r6, rows
    bgeu    x, width, done
    bgeu    y, r6, done

    ; The pixel itself, and the rounding.
    lds.32  pixel, [near]
    lds.32  weight, [zero + WEIGHTS]
    and     r6, pixel, 0xff
    mul     red, r6, weight
    shr     r6, pixel, 8
    and     r6, r6, 0xff
    mul     green, r6, weight
    shr     r6, pixel, 16
    and     r6, r6, 0xff
    mul     blue, r6, weight
    add     red, red, 0x8000
    add     green, green, 0x8000
    add     blue, blue, 0x8000

    ; Two pixels at the same distance have the same weight. Red and blue are added in one go.
    mov     far, near
    mov     tap, 4
    shl     end, radius, 2
next:
    bltu    end, tap, store
    sub     near, near, STEP
    add     far, far, STEP
    lds.32  r6, [near]
    lds.32  r7, [far]
    lds.32  weight, [tap + WEIGHTS]
    and     r14, r6, 0xff00ff
    and     r15, r7, 0xff00ff
    add     r14, r14, r15
    and     r15, r14, 0xffff
    mul     r15, r15, weight
    add     red, red, r15
    shr     r14, r14, 16
    mul     r14, r14, weight
    add     blue, blue, r14
    shr     r6, r6, 8
    and     r6, r6, 0xff
    shr     r7, r7, 8
    and     r7, r7, 0xff
    add     r6, r6, r7
    mul     r6, r6, weight
    add     green, green, r6
    add     tap, tap, 4
    bra     next

store:
    shr     red, red, 16
    shr     green, green, 16
    shr     blue, blue, 16
    shl     green, green, 8
    shl     blue, blue, 16
    and     pixel, pixel, 0xff000000
    or      pixel, pixel, red
    or      pixel, pixel, green
    or      pixel, pixel, blue
    mul     r6, y, width
    add     r6, r6, x
    arg     r8, target
    arg     r9, target.hi
    lea     address, address, r6, 2
    st.32   [address], pixel
done:
    exit
