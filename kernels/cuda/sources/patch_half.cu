// Patch embedding on the tensor cores, for an f16 residual: the f16 counterpart of `patch.cu`. Pixels (or the
// codes of their site, which are exact in f16) and weights are halves, and sums are f32. Bias, LayerNorm and
// position embedding are applied in registers.
//
// A warp computes every column of 16 tokens. Weights are packed as in `gemm.cu`.
//
// Defines: those of `patch.cuh`; THREADS, CHANNELS (of a pixel), PATCH (side of a patch), COLUMNS (a multiple
// of 32); INTEGER and OUTPUT as in `epilogue.cuh`; NORM and POSITION (whether there is a LayerNorm, a
// position embedding). The lookup table and the weights (`[COLUMNS, ROW]`, packed) are halves.
#define OPERAND u16
#include "patch.cuh"

constexpr int STEPS = (K + 15) / 16;
// Halves from one row to the next: an odd number of 16-byte chunks, which avoids bank conflicts.
constexpr int ROW = 16 * STEPS + 8;
constexpr int TOKENS = THREADS / 2;
constexpr int GROUPS = COLUMNS / 32;
static_assert(COLUMNS % 32 == 0 && THREADS % 32 == 0, "whole groups of columns, whole warps");

// Whether whole words are read: rows of four bytes of an image, which begin at a multiple of four bytes.
#define WORDS (PATCH == 4 && INPUT == INPUT_U8 && !CHANNELS_FIRST)

#if WORDS

// Writes a row of four pixels of the image, which begins at a multiple of four bytes, to its place in the
// token's row of `x`.
INLINE void gather_words(const u16* lookup, const u8* bytes, u16* x, s32 row) {
    u32 w[CHANNELS];
#pragma unroll
    for (int i = 0; i < CHANNELS; i++) w[i] = reinterpret_cast<const u32*>(bytes)[i];
#pragma unroll
    for (int channel = 0; channel < CHANNELS; channel++) {
        u32 values[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int byte = CHANNELS * i + channel;
            values[i] = lookup[256 * channel + (w[byte / 4] >> (8 * (byte % 4)) & 255)];
        }
        *reinterpret_cast<u32x2*>(x + 16 * channel + 4 * row) =
            u32x2{values[0] | values[1] << 16, values[2] | values[3] << 16};
    }
}

#endif

// Writes one row of a patch's pixels, which begins at `pixel`, to its place in the token's row of `x`. The
// first `inside` pixels lie in the image.
INLINE void gather_row(const Params& p, const u16* lookup, const Pixel& pixel, s32 inside, u16* x, s32 row) {
    for (int i = 0; i < PATCH; i++) {
#pragma unroll
        for (int channel = 0; channel < CHANNELS; channel++) {
            x[(channel * PATCH + row) * PATCH + i] =
                i < inside ? operand(p, lookup, channel, *pixel.at(p, channel, i)) : static_cast<u16>(0);
        }
    }
}

// Writes the patches of the block's tokens to `x`, `[TOKENS][ROW]`. WHOLE: no patch extends beyond its image.
template <bool WHOLE>
INLINE void gather(const Params& p, const u16* lookup, u16* x, s32 first) {
    for (s32 i = thread_index(); i < TOKENS * PATCH; i += THREADS) {
        s32 token = i % TOKENS, row = i / TOKENS;
        if (first + token >= p.total_tokens) continue;
        Pixel pixel(p, first + token, row, 0);
#if WORDS
        if constexpr (WHOLE) {
            gather_words(lookup, pixel.at(p, 0, 0), x + token * ROW, row);
            continue;
        }
#endif
        gather_row(p, lookup, pixel, pixel.inside<WHOLE>(p), x + token * ROW, row);
    }
}

INLINE f32 quad_sum(f32 x) {
    x = x + shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

// Applies the bias, and the scales of INT8 operands.
INLINE void finish_sums(const Params& p, f32 (&y)[8 * GROUPS], s32 column0) {
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        f32 bias[8];
        load8(bias, p.bias + column0 + 32 * group);
#if INTEGER || OUTPUT
        f32 scale[8];
        load8(scale, p.scale + column0 + 32 * group);
#endif
#pragma unroll
        for (int i = 0; i < 8; i++) {
            f32& value = y[8 * group + i];
#if OUTPUT
            value = fma_f32(code_f32(value * scale[i]), p.output_scale, bias[i]);
#elif INTEGER
            value = fma_f32(value, scale[i], bias[i]);
#else
            value = value + bias[i];
#endif
        }
    }
}

// LayerNorm of a row whose columns are distributed over four lanes.
INLINE void normalise(const Params& p, f32 (&y)[8 * GROUPS], s32 column0) {
    f32 sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int i = 0; i < 8 * GROUPS; i++) sum = sum + y[i];
    f32 mean = div_f32(quad_sum(sum), to_f32(COLUMNS));
#pragma unroll
    for (int i = 0; i < 8 * GROUPS; i++) square = fma_f32(y[i] - mean, y[i] - mean, square);
    f32 inverse = rsqrt_f32(div_f32(quad_sum(square), to_f32(COLUMNS)) + p.epsilon);
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        f32 gamma[8], beta[8];
        load8(gamma, p.gamma + column0 + 32 * group);
        load8(beta, p.beta + column0 + 32 * group);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            f32& value = y[8 * group + i];
            value = fma_f32((value - mean) * inverse, gamma[i], beta[i]);
        }
    }
}

INLINE void store_row(const Params& p, f32 (&y)[8 * GROUPS], s32 token, s32 column0) {
    u16* out = static_cast<u16*>(p.out) + static_cast<u64>(token) * COLUMNS + column0;
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        f32 values[8];
#pragma unroll
        for (int i = 0; i < 8; i++) values[i] = y[8 * group + i];
#if POSITION
        f32 position[8];
        load8(position, p.position + static_cast<u64>(token % p.tokens) * COLUMNS + column0 + 32 * group);
#pragma unroll
        for (int i = 0; i < 8; i++) values[i] = values[i] + position[i];
#endif
        store8(out + 32 * group, values);
    }
}

KERNEL(patch_half)(const Params p) {
    u16* lookup = reinterpret_cast<u16*>(shared_memory());
    u16* weight = lookup + LOOKUP;
    u16* x = weight + COLUMNS * ROW;
    for (u32 i = thread_index(); i < LOOKUP / 8; i += THREADS) copy_async_16(lookup + 8 * i, p.lookup + 8 * i, 16);
    for (u32 i = thread_index(); i < COLUMNS * ROW / 8; i += THREADS) copy_async_16(weight + 8 * i, p.weight + 8 * i, 16);
    copy_commit();
    // The padding of the rows must not contain NaNs, so `x` is filled with zeros first.
    for (u32 i = thread_index(); i < TOKENS * ROW / 8; i += THREADS) reinterpret_cast<u32x4*>(x)[i] = u32x4{0, 0, 0, 0};
    wait_for_previous();
    launch_dependents();
    copy_wait<0>();

    u32 lane = thread_index() % WARP, warp = thread_index() / WARP;
    s32 column0 = 8 * static_cast<s32>(lane % 4);
    s32 stride = static_cast<s32>(blocks_x()) * TOKENS;
    for (s32 first = static_cast<s32>(block_x()) * TOKENS; first < p.total_tokens; first += stride) {
        block_sync();
        if (fills_images(p)) {
            gather<true>(p, lookup, x, first);
        } else {
            gather<false>(p, lookup, x, first);
        }
        block_sync();
        f32 sums[4 * GROUPS][4] = {};
        const u16* a_row = x + (16 * warp + lane % 16) * ROW + lane / 16 * 8;
        const u16* w_row = weight + (lane % 8 + lane / 16 * 8) * ROW + lane / 8 % 2 * 8;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            u32 a[4];
            load_matrix_x4(a, a_row + 16 * step);
#pragma unroll
            for (int pair = 0; pair < 2 * GROUPS; pair++) {
                u32 w[4];
                load_matrix_x4(w, w_row + 16 * pair * ROW + 16 * step);
                const u32 low[2] = {w[0], w[1]}, high[2] = {w[2], w[3]};
                mma_f16(sums[2 * pair], a, low);
                mma_f16(sums[2 * pair + 1], a, high);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            f32 y[8 * GROUPS];
#pragma unroll
            for (int i = 0; i < 8 * GROUPS; i++) y[i] = sums[i / 2][2 * half + i % 2];
            finish_sums(p, y, column0);
#if NORM
            normalise(p, y, column0);
#endif
            s32 token = first + 16 * warp + lane / 4 + 8 * half;
            if (token < p.total_tokens) store_row(p, y, token, column0);
        }
    }
}
