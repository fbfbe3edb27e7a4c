// Code that the GEMM kernels for sm_90a share: operands in shared memory, in stages of 128 bytes of k, and
// the epilogue of a warpgroup's sums. Weights are packed as for `gemm.cu`, so each lane gets the sums of
// eight consecutive columns.
//
// Defines: GROUPS_M (number of warpgroups that multiply), BLOCKS (blocks of 64 rows of each of them), BN
// (columns: 32, 64, 96, 128, 192, 256), STAGES, RESIDENT (number of k stages whose weights stay in shared
// memory: all of k, or 0), and those of `epilogue.cuh`.
#pragma once

// Integer sums are never NaN, and `load_constants` replaces NaN constants.
#define NUMBERS INTEGER
#include "gemm.cuh"
#include "wgmma.cuh"

// Bytes of k in a stage.
constexpr int BK = 128;
// Bytes of the weights that stay in shared memory.
constexpr int STAY = RESIDENT * BN * BK;
constexpr int EIGHTS = BN / 8;
constexpr int GROUPS = BN / 32;

// Starts copying bytes `k0..k0 + BK` of k for `rows` rows from row `row0` on; this thread is number `thread`
// of `threads`. Rows and bytes outside the matrix are filled with zeros.
template <int rows, int threads>
INLINE void copy_tile(u8* to, const u8* from, s32 row0, s32 row_count, s32 stride, s32 k0, s32 k_bytes, s32 thread) {
    s32 chunk = thread % 8, byte = k0 + 16 * chunk;
    s32 in_row = k_bytes - byte < 0 ? 0 : k_bytes - byte > 16 ? 16 : k_bytes - byte;
#pragma unroll
    for (int i = 0; i < (rows + threads / 8 - 1) / (threads / 8); i++) {
        s32 row = i * (threads / 8) + thread / 8;
        if (rows % (threads / 8) != 0 && row >= rows) break;
        s32 valid = row0 + row < row_count ? in_row : 0;
        const u8* source = valid == 0 ? from : from + static_cast<u64>(row0 + row) * stride + byte;
        copy_async_16(to + row * BK + 16 * (chunk ^ (row % 8)), source, valid);
    }
}

// Starts the products of `steps` steps of 32 bytes: sums = a * w if `first`, else sums += a * w.
INLINE void multiply_steps(Sum (&sums)[BLOCKS][4 * EIGHTS], const u8* a, const u8* w, int steps, bool first) {
    u64 b = tile_descriptor(w);
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
        u64 d = tile_descriptor(a + 64 * BK * block);
#pragma unroll
        for (int step = 0; step < BK / 32; step++) {
            if (step >= steps) break;
            s32 add = !first || step > 0;
#if INTEGER
            Wgmma<BN>::i8(sums[block], d + 2 * step, b + 2 * step, add);
#else
            Wgmma<BN>::f16(sums[block], d + 2 * step, b + 2 * step, add);
#endif
        }
    }
}

// Waits for all products; then the sums may be read.
INLINE void wait_sums(Sum (&sums)[BLOCKS][4 * EIGHTS]) {
    wgmma_wait<0>();
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
#pragma unroll
        for (int i = 0; i < 4 * EIGHTS; i++) tie(sums[block][i]);
    }
}

// Whether a lane has enough registers to prefetch the values of the residual stream that it adds to.
constexpr bool PREFETCH =
    STORE == STORE_RESIDUAL && WHOLE && !RESIDUAL_F32 && BLOCKS * BN <= 192 && BLOCKS * BN * GROUPS_M <= 384;

// A position in the sequence of stages of a block.
struct Cursor {
    s32 tile, step;

    INLINE void advance(s32 steps, s32 stride) {
        step++;
        if (step == steps) step = 0, tile += stride;
    }
};

// Copies scale, bias and reciprocal (with CHANNELS and HALF_GELU: `HalfCodes`) of the block's columns to
// shared memory, `[3][BN]`. A column with a NaN constant gets scale 0 and bias 0, because the code of a NaN
// is 0.
INLINE void load_constants(const Params& p, f32* to, s32 n0) {
    for (s32 i = thread_index(); i < BN; i += 128 * GROUPS_M) {
        bool there = n0 + i < p.n_packed;
        f32 bias = there ? p.epilogue.bias[n0 + i] : 0.0f;
        if constexpr (INTEGER || OUTPUT) {
            f32 scale = there ? p.epilogue.scale[n0 + i] : 0.0f;
            if (NUMBERS && STORE == STORE_CODES && (bias != bias || scale != scale)) bias = scale = 0.0f;
            to[i] = scale;
        }
        to[BN + i] = bias;
        if constexpr (STORE == STORE_CODES) to[2 * BN + i] = there ? p.epilogue.recip[n0 + i] : 0.0f;
    }
}

// The values of the residual stream that a lane adds to, prefetched, and their rows.
struct Old {
    u32 targets[2 * BLOCKS];
    // With PREFETCH.
    u32x4 values[2 * BLOCKS][GROUPS];
};

INLINE void load_old(const Params& p, Old& old, s32 row0, s32 column0) {
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++) {
        s32 row = row0 + 32 * (i & ~1) + 8 * (i & 1);
        old.targets[i] = row < p.m ? destination(p.epilogue, row) : PAD;
        if constexpr (!PREFETCH) continue;
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            bool there = old.targets[i] != PAD && column0 + 32 * j < p.epilogue.n;
            u64 at = static_cast<u64>(old.targets[i]) * p.epilogue.stride + column0 + 32 * j;
            const Residual* residual = static_cast<const Residual*>(p.epilogue.out);
            old.values[i][j] = there ? *reinterpret_cast<const u32x4*>(residual + at) : u32x4{0, 0, 0, 0};
        }
    }
}

// The arrays that `load_constants` has written.
struct Copies {
    const f32* scale;
    const f32* bias;
    const f32* recip;
};

// Runs the epilogue of a tile whose first column is `n0`; row i of a lane is written to `old.targets[i]`.
// `constants` is what `load_constants` has written. Nothing but stores depends on a condition, so that the
// compiler interleaves rows.
INLINE void finish_tile(const Params& p, const Sum (&sums)[BLOCKS][4 * EIGHTS], const Old& old, const f32* constants,
                        s32 n0, const f32* tail) {
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        s32 in_tile = 32 * j + 8 * static_cast<s32>(thread_index() % 4), column = n0 + in_tile;
        Columns columns;
        const f32* at_column = constants + in_tile;
        load_columns(columns, Copies{at_column, at_column + BN, at_column + 2 * BN}, 0);
        // The arrays end with the last group of columns.
        if (MORE_CONSTANTS && column >= p.n_packed) continue;
        load_channels(columns, p.epilogue, column);
        auto value = [&](int i, int k) {
            return sum_f32(corrected(sums[i / 2][4 * (4 * j + k / 2) + i % 2 * 2 + k % 2], columns, k));
        };
        if constexpr (HEADS) {
            f32 rows[2 * BLOCKS][8];
            bool there[2 * BLOCKS];
#pragma unroll
            for (int i = 0; i < 2 * BLOCKS; i++) {
                there[i] = old.targets[i] != PAD;
#pragma unroll
                for (int k = 0; k < 8; k++) rows[i][k] = value(i, k);
            }
            if (n0 + 32 * j < p.epilogue.n) finish_heads(p.epilogue, columns, there, old.targets, n0 / 32 + j, rows, tail);
            continue;
        }
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; i++) {
            f32 y[8];
#pragma unroll
            for (int k = 0; k < 8; k++) y[k] = value(i, k);
            u32 target = old.targets[i];
            bool there = target != PAD;
            if constexpr (PREFETCH) {
                finish_values(p.epilogue, columns, y, tail);
                f32 before[8];
                unpack8(before, old.values[i][j]);
                add_old(y, before);
                u64 at = static_cast<u64>(target) * p.epilogue.stride + column;
                if (there && column < p.epilogue.n) store8(static_cast<Residual*>(p.epilogue.out) + at, y);
            } else {
                finish8(p.epilogue, columns, there, target, column, y, tail);
            }
        }
    }
}
