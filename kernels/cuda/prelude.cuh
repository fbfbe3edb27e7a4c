// What kernels share: the primitives of the machine, and the scalar functions of the number contract
// (`kernels/src/reference`), operation by operation.
#pragma once

#if defined(SWINQ_HOST)
#include "host.cuh"
#else
#include "device.cuh"
#endif
// Constants of the reference, written by `sources.rs`: TAIL_BITS, TAIL_PER_UNIT_BITS, TAIL_LAST_BITS, EXP_BITS,
// LN2_HIGH_BITS, LN2_LOW_BITS, LOG2_E_BITS, FLOOR_BITS.
#include "contract.cuh"

constexpr u32 WARP = 32;
// A row of a map that is padding.
constexpr u32 PAD = 0xffffffffu;
// 1.5 * 2^23: adding it rounds a small f32 to an integer, held in the low bits of the sum.
constexpr f32 ROUNDER = 12582912.0f;

// Whether `x` is a number: neither infinite nor a NaN.
INLINE bool finite(f32 x) { return abs_f32(x) <= 3.4028234663852886e38f; }

// The codes of four values already multiplied by the reciprocal of their step.
INLINE u32 codes_s8x4(f32 a, f32 b, f32 c, f32 d) {
    return pack_s8x4(round_s32(a), round_s32(b), round_s32(c), round_s32(d));
}

// The low bytes of four words.
INLINE u32 low_bytes(u32 a, u32 b, u32 c, u32 d) {
    return byte_permute(byte_permute(a, b, 0x0040), byte_permute(c, d, 0x0040), 0x5410);
}

// The same codes of values that are no NaN, without conversions, of which a multiprocessor does few at a time.
INLINE u32 codes_of_numbers(f32 a, f32 b, f32 c, f32 d) {
    f32 values[4] = {a, b, c, d};
#pragma unroll
    for (int i = 0; i < 4; i++) values[i] = max_f32(min_f32(values[i], 127.0f), -128.0f) + ROUNDER;
    return low_bytes(bits(values[0]), bits(values[1]), bits(values[2]), bits(values[3]));
}

// The code of one value, as f32.
INLINE f32 code_f32(f32 scaled) {
    s32 code = round_s32(scaled);
    code = code < -128 ? -128 : code > 127 ? 127 : code;
    return to_f32(code);
}

// `x` as its code stands for it.
INLINE f32 fake(f32 x, f32 recip, f32 scale) { return code_f32(x * recip) * scale; }

// e^x for x in [-60, 0].
INLINE f32 exp_below(f32 x) {
    f32 rounded = x * from_bits(LOG2_E_BITS) + ROUNDER;
    f32 n = rounded - ROUNDER;
    f32 r = fma_f32(-n, from_bits(LN2_LOW_BITS), fma_f32(-n, from_bits(LN2_HIGH_BITS), x));
    f32 p = from_bits(EXP_BITS[6]);
#pragma unroll
    for (int i = 5; i >= 0; i--) p = fma_f32(p, r, from_bits(EXP_BITS[i]));
    return p * from_bits((bits(rounded) << 23) + 0x3f800000u);
}

// GELU within 1.1e-7: max(x, 0) - a * 2^r(a) for a = |x|, where r is the polynomial of degree 6 nearest to the logarithm of
// erfc(a / sqrt(2)) / 2 on [0, 5.8], weighted by what an error of it does to the result. `positive` is max(x, 0).
INLINE f32 gelu_fast(f32 x, f32 positive) {
    f32 a = min_f32(abs_f32(x), 5.8f);
    f32 r = fma_f32(3.3092688681790605e-05f, a, -7.6921872096136212e-04f);
    r = fma_f32(r, a, 8.0807134509086609e-03f);
    r = fma_f32(r, a, -5.3412098437547684e-02f);
    r = fma_f32(r, a, -4.5877099037170410e-01f);
    r = fma_f32(r, a, -1.1512017250061035f);
    r = fma_f32(r, a, -9.9999308586120605e-01f);
    return fma_f32(-a, exp2_approx(r), positive);
}
// A NaN stays one.
INLINE f32 gelu_fast(f32 x) { return gelu_fast(x, 0.0f > x ? 0.0f : x); }

// erfc(a / sqrt(2)) / 2 for a from 0 to TAIL_LAST, with its coefficients in shared memory, pairs of powers by column,
// `[3][16][2]`: see `load_tail`.
INLINE f32 gelu_tail(f32 a, const f32* tail) {
    f32 sum = fma_f32(a, from_bits(TAIL_PER_UNIT_BITS), 8388608.0f);
    f32 u = fma_f32(a, from_bits(TAIL_PER_UNIT_BITS), -(sum - 8388608.0f));
    const f32x2* column = reinterpret_cast<const f32x2*>(tail) + (bits(sum) & 15);
    f32x2 c01 = column[0], c23 = column[16], c45 = column[32];
    f32 h = fma_f32(c45.y, u, c45.x);
    h = fma_f32(h, u, c23.y);
    h = fma_f32(h, u, c23.x);
    h = fma_f32(h, u, c01.y);
    return fma_f32(h, u, c01.x);
}

// GELU with the coefficients of `gelu_tail`.
INLINE f32 gelu(f32 x, const f32* tail) {
    f32 a = min_f32(abs_f32(x), from_bits(TAIL_LAST_BITS));
    f32 h = gelu_tail(a, tail);
    f32 positive = 0.0f > x ? 0.0f : x;
    return fma_f32(-a, h, positive);
}

// Floats that `gelu` needs in shared memory.
constexpr u32 TAIL_FLOATS = 96;

// Fills `tail` from the contract; a `block_sync` must follow.
INLINE void load_tail(f32* tail, u32 threads) {
    for (u32 i = thread_index(); i < TAIL_FLOATS; i += threads) {
        u32 power = 2 * (i / 32) + i % 2, column = i / 2 % 16;
        tail[i] = from_bits(TAIL_BITS[16 * power + column]);
    }
}

// Eight consecutive values of a row as f32, from f16 or f32.
INLINE void load8(f32 (&x)[8], const u16* from) {
    u32x4 v = *reinterpret_cast<const u32x4*>(from);
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = half_to_f32(static_cast<u16>(words[i]));
        x[2 * i + 1] = half_to_f32(static_cast<u16>(words[i] >> 16));
    }
}
INLINE void load8(f32 (&x)[8], const f32* from) {
    const f32x4* p = reinterpret_cast<const f32x4*>(from);
    f32x4 a = p[0], b = p[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
INLINE void store8(u16* to, const f32 (&x)[8]) {
    *reinterpret_cast<u32x4*>(to) =
        u32x4{pack_half2(x[0], x[1]), pack_half2(x[2], x[3]), pack_half2(x[4], x[5]), pack_half2(x[6], x[7])};
}
INLINE void store8(f32* to, const f32 (&x)[8]) {
    f32x4* p = reinterpret_cast<f32x4*>(to);
    p[0] = f32x4{x[0], x[1], x[2], x[3]};
    p[1] = f32x4{x[4], x[5], x[6], x[7]};
}
// Eight codes of values already multiplied by the reciprocals of their steps.
INLINE void store8(s8* to, const f32 (&x)[8]) {
    *reinterpret_cast<u32x2*>(to) = u32x2{codes_s8x4(x[0], x[1], x[2], x[3]), codes_s8x4(x[4], x[5], x[6], x[7])};
}
