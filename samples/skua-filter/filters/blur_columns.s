; SPDX-License-Identifier: MIT
;
; Second half of the blur: as blur_rows.s, with the pixels above and below.
;
; A group fetches its 32 columns of 16 pixels, and `radius` more at both ends, to shared memory once.

.equ    MAX_RADIUS, 64
.equ    STEP, 32 * 4                    ; bytes to the neighbour in the tile
.equ    WEIGHTS, (16 + 2 * MAX_RADIUS) * STEP
.shared WEIGHTS + (MAX_RADIUS + 1) * 4
.threads 32, 16
.arg64  intermediate
.arg64  target
.arg64  weights
.arg    width
.arg    rows                    ; of the target
.arg    source_rows
.arg    first                   ; row of the source that the target starts at
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
