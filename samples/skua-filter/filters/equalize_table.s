; SPDX-License-Identifier: MIT
;
; Makes the table that equalises luma of a histogram: one group, one thread for each luma.
;
; With c the number of pixels up to this luma, c0 that of the darkest luma that occurs, and n that
; of all: (((c - c0) >> s) * 255 + d / 2) / d, where d = (n - c0) >> s. Where d is 0 the table
; changes nothing; a luma darker than all is 0. The shift s keeps the product in 32 bits.

.equ    LEAST, 256 * 4
.threads 256
.shared 256 * 4 + 4
.arg64  histogram
.arg64  table
.arg    shift

.reg    luma, r0
.reg    count, r1               ; of this luma
.reg    sum, r2                 ; of this luma and all below
.reg    place, r3
.reg    distance, r4
.reg    address, r8             ; a pair
.reg    least, r10
.reg    divisor, r11
.reg    s, r12
.reg    zero, r63               ; nothing writes it

    sr      luma, flat
    shl     place, luma, 2
    arg     r8, histogram
    arg     r9, histogram.hi
    lea     address, address, luma, 2
    ld.32   count, [address]
    mov     sum, count
    mov     r6, -1
    mov     r7, LEAST
    sts.32  [r7], r6            ; every thread writes the same

    ; Sums over twice as many neighbours in each round.
    mov     distance, 1
round:
    sts.32  [place], sum
    bar                         ; all sums are there
    bltu    luma, distance, complete
    sub     r6, luma, distance
    shl     r6, r6, 2
    lds.32  r6, [r6]
    add     sum, sum, r6
complete:
    bar                         ; all sums were read
    shl     distance, distance, 1
    sltu    r6, distance, 256
    bnz     r6, round
    sts.32  [place], sum

    bz      count, empty
    mov     r7, LEAST
    atoms.minu r6, [r7], sum
empty:
    bar
    lds.32  least, [zero + LEAST]
    lds.32  divisor, [zero + 255 * 4]
    arg     s, shift
    sub     divisor, divisor, least
    shr     divisor, divisor, s
    mov     r6, luma
    bz      divisor, store
    maxu    sum, sum, least
    sub     sum, sum, least
    shr     sum, sum, s
    mul     r6, sum, 255
    shr     r7, divisor, 1
    add     r6, r6, r7
    divu    r6, r6, divisor
store:
    arg     r8, table
    arg     r9, table.hi
    lea     address, address, luma, 2
    st.32   [address], r6
    exit
