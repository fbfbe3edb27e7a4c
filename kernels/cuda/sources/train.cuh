// Code that the training kernels share: sums over warps and blocks, AdamW, and fake quantization with its
// gradients.
#pragma once

#include "prelude.cuh"

INLINE f32 warp_sum(f32 x) {
#pragma unroll
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) x = x + shuffle_xor(x, mask);
    return x;
}
INLINE f32 warp_max(f32 x) {
#pragma unroll
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) x = max_f32(x, shuffle_xor(x, mask));
    return x;
}

// Sum over the block, returned to each thread; the order is fixed. `shared` has a float for each warp.
INLINE f32 block_sum(f32 x, f32* shared) {
    constexpr u32 WARPS = THREADS / WARP;
    x = warp_sum(x);
    if (thread_index() % WARP == 0) shared[thread_index() / WARP] = x;
    block_sync();
    f32 sum = shared[0];
#pragma unroll
    for (u32 i = 1; i < WARPS; i++) sum = sum + shared[i];
    block_sync();
    return sum;
}

// Sum over the block in f64, or the largest value, returned to each thread; the order is fixed. `shared` has
// a value for each thread.
template <bool largest>
INLINE f64 over_block(f64 x, f64* shared) {
    shared[thread_index()] = x;
    block_sync();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (thread_index() < half) {
            f64 a = shared[thread_index()], b = shared[thread_index() + half];
            shared[thread_index()] = largest ? max_f64(a, b) : a + b;
        }
        block_sync();
    }
    f64 result = shared[0];
    block_sync();
    return result;
}

// How AdamW computes moments `m` and `v` of a gradient `g`, and a parameter `p`:
//
// ```text
// m = keep_first m + add_first g     v = keep_second v + add_second g^2
// p = keep p - rate m / (sqrt(unbias v) + epsilon)
// ```
struct MomentRule {
    // Factors of the old first moment and of the gradient.
    f32 keep_first, add_first;
    // Factors of the old second moment and of the squared gradient.
    f32 keep_second, add_second;
    // Added to the root of the second moment.
    f32 epsilon;
};

// A value after its update by AdamW, whose moments are updated in place. `keep` is the value's factor (weight
// decay), `rate` the learning rate with the bias correction of the first moment, `unbias` that of the second
// moment.
INLINE f32 adamw_value(f32 value, f32 grad, f32& first, f32& second, const MomentRule& rule, f32 keep, f32 rate, f32 unbias) {
    first = first * rule.keep_first + grad * rule.add_first;
    second = second * rule.keep_second + grad * grad * rule.add_second;
    return value * keep - rate * div_f32(first, sqrt_f32(second * unbias) + rule.epsilon);
}

// A quantization scale and its reciprocal.
struct Step {
    f32 recip, scale;
};

INLINE f32 clamp_f32(f32 x, f32 low, f32 high) { return max_f32(min_f32(x, high), low); }

// Range to which the codes of activations are clamped.
constexpr f32 LOW = -128.0f, HIGH = 127.0f;

// Quantizes and dequantizes an activation; a NaN becomes 0.
INLINE f32 rounded(f32 x, const Step& step) {
    f32 scaled = x * step.recip;
    f32 value = rint_f32(clamp_f32(scaled, LOW, HIGH)) * step.scale;
    return scaled != scaled ? 0.0f : value;
}

// Tolerance, as a factor, at the ends of the range: the value that defined the range must count as inside it,
// however it was rounded.
constexpr f32 EDGE = 1.0f + 1.0f / 1048576.0f;

// Gradient of a site's input from the gradient of its output, `grad`: that of `clamp`. Adds the value's
// contribution to the gradient of the scale to `sum`.
INLINE f32 clipped(f32 x, f32 grad, f32 recip, f32 low, f32 high, f32& sum) {
    f32 scaled = x * recip;
    bool inside = clamp_f32(scaled, low * EDGE, high * EDGE) == scaled;
    sum = sum + grad * (rint_f32(clamp_f32(scaled, low, high)) - (inside ? scaled : 0.0f));
    return grad * (inside ? 1.0f : 0.0f);
}

// Loads one value, or four from an address aligned to 16 bytes.
INLINE void load_values(f32 (&x)[1], const f32* from) { x[0] = *from; }
INLINE void load_values(f32 (&x)[4], const f32* from) {
    f32x4 v = *reinterpret_cast<const f32x4*>(from);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}
INLINE void store_values(f32* to, const f32 (&x)[1]) { *to = x[0]; }
INLINE void store_values(f32* to, const f32 (&x)[4]) {
    *reinterpret_cast<f32x4*>(to) = f32x4{x[0], x[1], x[2], x[3]};
}

// Type of the operands of matrix products: one of the OUT_ constants, by the define OUT.
#define OUT_F32 0
#define OUT_BF16 1
#define OUT_F16 2

// Rounds to bf16, held as bits: to nearest even.
INLINE u16 f32_to_bf16(f32 x) {
    u32 b = bits(x);
    return x != x ? 0x7fff : static_cast<u16>((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

#if defined(OUT)
#if OUT == OUT_F32
typedef f32 Operand;
#else
typedef u16 Operand;
INLINE u16 to_operand(f32 x) { return OUT == OUT_BF16 ? f32_to_bf16(x) : f32_to_half(x); }
INLINE void store_values(u16* to, const f32 (&x)[1]) { *to = to_operand(x[0]); }
// The address is aligned to 8 bytes.
INLINE void store_values(u16* to, const f32 (&x)[4]) {
    u32 word[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        word[i] = static_cast<u32>(to_operand(x[2 * i])) | static_cast<u32>(to_operand(x[2 * i + 1])) << 16;
    }
    *reinterpret_cast<u32x2*>(to) = u32x2{word[0], word[1]};
}
#endif
#endif

// The derivative of GELU, x phi(x) + Phi(x), from h = erfc(|x| / sqrt(2)) / 2 and the density phi. `tail` is
// that of `gelu`.
INLINE f32 gelu_derivative(f32 x, const f32* tail) {
    f32 a = min_f32(abs_f32(x), from_bits(TAIL_LAST_BITS));
    f32 h = gelu_tail(a, tail);
    f32 exponent = x * x * -0.5f;
    f32 floor = from_bits(FLOOR_BITS);
    f32 density = exp_below(floor > exponent ? floor : exponent) * 0.398942280f;
    return fma_f32(x, density, x > 0.0f ? 1.0f - h : h);
}
