// Patch embedding from pixels to the residual stream: normalisation of bytes by a table, matrix product,
// bias, LayerNorm and position embedding. The product is summed in f32 in the order of k. For INT8 operands
// the f32 sums are exact too, because they stay below 2^24.
//
// A block processes TOKENS consecutive tokens; a thread computes every THREADS-th column of them.
//
// Defines: those of `patch.cuh`; THREADS, TOKENS (a multiple of 4), CHANNELS (of a pixel), PATCH (side of a
// patch); INTEGER, OUTPUT and RESIDUAL_F32 as in `epilogue.cuh`; NORM and POSITION (whether there is a
// LayerNorm, a position embedding). The lookup table and the weights (`[K, columns]`, k in (channel, y, x)
// order) are f32.
#define OPERAND f32
#include "moments.cuh"
#include "patch.cuh"

// Floats from one token to the next.
constexpr int X_ROW = (K + 3) / 4 * 4;

// Writes the normalised patches of the block's tokens to `x`, `[TOKENS][X_ROW]`. WHOLE: no patch extends
// beyond its image.
template <bool WHOLE>
INLINE void gather(const Params& p, const f32* lookup, f32* x, s32 first) {
    for (s32 i = thread_index(); i < TOKENS * PATCH * PATCH; i += THREADS) {
        s32 column = i % PATCH, token = i / PATCH % TOKENS, row = i / PATCH / TOKENS;
        if (first + token >= p.total_tokens) continue;
        Pixel pixel(p, first + token, row, column);
        bool inside = pixel.inside<WHOLE>(p) > 0;
#pragma unroll
        for (int channel = 0; channel < CHANNELS; channel++) {
            x[token * X_ROW + (channel * PATCH + row) * PATCH + column] =
                inside ? operand(p, lookup, channel, *pixel.at(p, channel, 0)) : 0.0f;
        }
    }
}

// Whether a thread keeps the weights of its column in registers; weights of larger patches are read for each
// group of tokens.
constexpr bool RESIDENT = K <= 64;
// Number of tokens that a thread sums at the same time.
constexpr int TOGETHER = 4;

INLINE f32 finish_sum(const Params& p, f32 sum, f32 scale, f32 bias) {
#if OUTPUT
    return fma_f32(code_f32(sum * scale), p.output_scale, bias);
#elif INTEGER
    return fma_f32(sum, scale, bias);
#else
    return sum + bias;
#endif
}

// Computes column `column` of the block's tokens and writes it to `y`, `[TOKENS][columns]`.
INLINE void product(const Params& p, const f32* x, f32* y, s32 column) {
    f32 bias = p.bias[column], scale = 1.0f;
#if INTEGER || OUTPUT
    scale = p.scale[column];
#endif
    f32 w[RESIDENT ? X_ROW : 1];
    if (RESIDENT) {
#pragma unroll
        for (int k = 0; k < (RESIDENT ? K : 0); k++) w[k] = p.weight[k * p.columns + column];
    }
    for (int token = 0; token < TOKENS; token += TOGETHER) {
        f32 sums[TOGETHER] = {};
        if (RESIDENT && K % 4 == 0) {
#pragma unroll
            for (int k = 0; k < (RESIDENT ? K : 0); k += 4) {
#pragma unroll
                for (int i = 0; i < TOGETHER; i++) {
                    f32x4 v = *reinterpret_cast<const f32x4*>(x + (token + i) * X_ROW + k);
                    sums[i] = fma_f32(v.x, w[k], sums[i]);
                    sums[i] = fma_f32(v.y, w[k + 1], sums[i]);
                    sums[i] = fma_f32(v.z, w[k + 2], sums[i]);
                    sums[i] = fma_f32(v.w, w[k + 3], sums[i]);
                }
            }
        } else {
            for (int k = 0; k < K; k++) {
                f32 weight = p.weight[k * p.columns + column];
#pragma unroll
                for (int i = 0; i < TOGETHER; i++) sums[i] = fma_f32(x[(token + i) * X_ROW + k], weight, sums[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) y[(token + i) * p.columns + column] = finish_sum(p, sums[i], scale, bias);
    }
}

// Normalises and stores the block's tokens; four lanes share a token.
INLINE void finish(const Params& p, const f32* y, s32 first) {
    s32 lane = thread_index() % 4;
    for (s32 token = thread_index() / 4; token < (TOKENS + THREADS / 4 - 1) / (THREADS / 4) * (THREADS / 4);
         token += THREADS / 4) {
        bool real = token < TOKENS && first + token < p.total_tokens;
        const f32* row = y + (token < TOKENS ? token : 0) * p.columns;
#if NORM
        RowNorm norm = row_norm(p.columns, pieces_of(p.columns, lane), p.epsilon,
                                [&](s32 i) { return values4(row + 16 * i + 4 * lane); });
#endif
        if (!real) continue;
        u64 to = static_cast<u64>(first + token) * p.columns;
        for (s32 at = 4 * lane; at < p.columns; at += 16) {
            f32x4 v = *reinterpret_cast<const f32x4*>(row + at);
            f32 values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
#if NORM
                values[i] = apply(norm, values[i], p.gamma[at + i], p.beta[at + i]);
#endif
#if POSITION
                values[i] = values[i] + p.position[(first + token) % p.tokens * p.columns + at + i];
#endif
            }
#if RESIDUAL_F32
            *reinterpret_cast<f32x4*>(static_cast<f32*>(p.out) + to + at) = f32x4{values[0], values[1], values[2], values[3]};
#else
            *reinterpret_cast<u32x2*>(static_cast<u16*>(p.out) + to + at) =
                u32x2{pack_half2(values[0], values[1]), pack_half2(values[2], values[3])};
#endif
        }
    }
}

KERNEL(patch_embed)(const Params p) {
    f32* lookup = reinterpret_cast<f32*>(shared_memory());
    f32* x = lookup + LOOKUP;
    f32* y = x + TOKENS * X_ROW;
    s32 first = static_cast<s32>(block_x()) * TOKENS;
    for (u32 i = thread_index(); i < LOOKUP; i += THREADS) lookup[i] = p.lookup[i];
    wait_for_previous();
    launch_dependents();
    block_sync();
    if (fills_images(p)) {
        gather<true>(p, lookup, x, first);
    } else {
        gather<false>(p, lookup, x, first);
    }
    block_sync();
    for (s32 column = thread_index(); column < p.columns; column += THREADS) product(p, x, y, column);
    block_sync();
    finish(p, y, first);
}
