// The softmax of a row of logits that four lanes share, and its codes. The attention kernels use it.
//
// Defines: KEY_TILES (number of tiles of 8 keys; the keys of a window are padded to full tiles), EXACT (1:
// exponentials are bit-exact to the reference; 0: the GPU's exponential unit computes them).
#pragma once

#include "prelude.cuh"

// Logits of a warp's 16 queries and all keys. Without EXACT, logits are in units of ln(2): the host
// multiplies their scale, their bias and their mask by log2(e). The layout: element [tile][2 half + b]
// belongs to row lane / 4 + 8 half and key 8 tile + 2 (lane % 4) + b.
typedef f32 Logits[KEY_TILES][4];

// e^(logit - largest).
INLINE f32 weight_of(f32 logit, f32 largest) {
#if EXACT
    return exp_below(max_f32(logit - largest, from_bits(FLOOR_BITS)));
#else
    return exp2_approx(logit - largest);
#endif
}

// 255 e^(logit - largest), rounded to an integer, in the low byte.
INLINE u32 code_of(f32 logit, f32 largest) {
#if EXACT
    return bits(exp_255(max_f32(logit - largest, from_bits(CODE_FLOOR_BITS))) + ROUNDER);
#else
    return bits(fma_f32(255.0f, weight_of(logit, largest), ROUNDER));
#endif
}

// The maximum and the sum over the four lanes that share a row.
INLINE f32 quad_max(f32 x) {
    x = max_f32(x, shuffle_xor(x, 1));
    return max_f32(x, shuffle_xor(x, 2));
}
INLINE u32 quad_sum(u32 x) {
    x = x + shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}
INLINE f32 quad_sum(f32 x) {
    x = x + shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

// The reciprocal of the sum of a row whose four lanes have partial sums by the key index mod 16, in the order
// of the reference.
INLINE f32 inverse_of(const f32 (&sums)[2][2]) {
    f32 low = sums[0][0] + sums[1][0], high = sums[0][1] + sums[1][1];
    low = low + shuffle_xor(low, 2), high = high + shuffle_xor(high, 2);
    low = low + shuffle_xor(low, 1), high = high + shuffle_xor(high, 1);
    return div_f32(1.0f, low + high);
}

// The largest logit of row lane / 4 + 8 `half`.
INLINE f32 row_max(const Logits& x, int half) {
    f32 largest = x[0][2 * half];
#pragma unroll
    for (int t = 0; t < KEY_TILES; t++) largest = max_f32(largest, max_f32(x[t][2 * half], x[t][2 * half + 1]));
    return quad_max(largest);
}

// Words of probabilities of up to 64 keys, `[step][register]`, in the layout that the product with the values
// reads.
typedef u32 ProbabilityCodes[2][4];

// Writes the codes 255 e^(x - largest) of row lane / 4 + 8 `half`; returns their sum.
INLINE s32 probabilities_u8(const Logits& x, int half, ProbabilityCodes& words) {
    f32 largest = row_max(x, half);
    u32 total = 0;
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        u32 code[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int t = 2 * pair + i / 2;
            code[i] = t < KEY_TILES ? code_of(x[t < KEY_TILES ? t : 0][2 * half + i % 2], largest) : 0;
        }
        u32 word = low_bytes(code[0], code[1], code[2], code[3]);
        total = add_bytes(word, total);
        words[pair / 2][pair % 2 * 2 + half] = word;
    }
    return static_cast<s32>(quad_sum(total));
}
