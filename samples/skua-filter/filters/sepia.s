; SPDX-License-Identifier: MIT
;
; A sepia tone in f32: each channel is r * cr + g * cg + b * cb, computed from the right with fused
; multiply-adds, then rounded half up and held to 255. Alpha stays.

.include "point.inc"
.reg    red, r11
.reg    green, r12
.reg    blue, r13
.reg    factor, r14
.reg    sum, r15

    and     red, pixel, 0xff
    u2f     red, red
    shr     green, pixel, 8
    and     green, green, 0xff
    u2f     green, green
    shr     blue, pixel, 16
    and     blue, blue, 0xff
    u2f     blue, blue
    and     pixel, pixel, 0xff000000

    fmul    sum, blue, 0.189f
    mov     factor, 0.769f
    fma     sum, green, factor, sum
    mov     factor, 0.393f
    fma     sum, red, factor, sum
    fadd    sum, sum, 0.5f
    fmin    sum, sum, 255.0f
    f2u     sum, sum            ; red
    or      pixel, pixel, sum

    fmul    sum, blue, 0.168f
    mov     factor, 0.686f
    fma     sum, green, factor, sum
    mov     factor, 0.349f
    fma     sum, red, factor, sum
    fadd    sum, sum, 0.5f
    fmin    sum, sum, 255.0f
    f2u     sum, sum            ; green
    shl     sum, sum, 8
    or      pixel, pixel, sum

    fmul    sum, blue, 0.131f
    mov     factor, 0.534f
    fma     sum, green, factor, sum
    mov     factor, 0.272f
    fma     sum, red, factor, sum
    fadd    sum, sum, 0.5f
    fmin    sum, sum, 255.0f
    f2u     sum, sum            ; blue
    shl     sum, sum, 16
    or      pixel, pixel, sum

.include "store.inc"
