; SPDX-License-Identifier: MIT
;
; Adds to 256 counters, 32 bits each, how often each luma occurs.
;
; A group counts its 16 rows of 256 pixels in shared memory, and then adds what it counted to the
; counters of all: both with atomic operations.

.equ    STRIP, 16               ; rows of a group
.threads 256
.shared 256 * 4
.arg64  source
.arg64  histogram
.arg    width
.arg    rows

.reg    x, r0
.reg    y, r1
.reg    width, r4
.reg    end, r5                 ; row behind the group's last one
.reg    address, r8             ; a pair
.reg    pixel, r10
.reg    luma, r11
.reg    one, r13

    mov     one, 1
    arg     width, width
    sr      x, gid.x
    shl     x, x, 8
    sr      r6, tid.x
    add     x, x, r6
    sr      y, gid.y
    mul     y, y, STRIP
    add     end, y, STRIP
    arg     r6, rows
    minu    end, end, r6
    bgeu    x, width, counted  ; no exit here: the thread has a counter to add below
next:
    bgeu    y, end, counted
    mul     r6, y, width
    add     r6, r6, x
    arg     r8, source
    arg     r9, source.hi
    lea     address, address, r6, 2
    ld.32   pixel, [address]
.include "luma.inc"
    shl     luma, luma, 2
    atoms.add r12, [luma], one
    add     y, y, 1
    bra     next

counted:
    bar
    sr      r6, flat
    shl     r7, r6, 2
    lds.32  r12, [r7]
    bz      r12, done
    arg     r8, histogram
    arg     r9, histogram.hi
    lea     address, address, r6, 2
    atom.add r12, [address], r12
done:
    exit
