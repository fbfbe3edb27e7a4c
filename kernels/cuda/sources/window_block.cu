// The attention branch of a transformer block in one launch, for INT8 products, an f16 residual and windows
// of up to 64 tokens. Swin V1: LayerNorm, QKV, window attention, projection and the residual addition. Swin
// V2 (COSINE): QKV of the residual itself, normalised queries and keys, window attention, projection,
// LayerNorm and the residual addition.
//
// A group of four warps processes a window, and each warp has 16 of its rows (tokens). Only keys and values
// pass through shared memory, because every row needs them all. Everything else stays in the registers of the
// lane that computed it: lane `l` of a warp holds rows l / 4 and l / 4 + 8, and of every 32 channels the
// eight from 8 (l % 4) on. The operands and the results of all products have this layout (docs/cuda.md).
//
// A block keeps all weights and constants in shared memory, as the host has laid them out, and its groups
// loop over windows.
//
// Defines: THREADS (128 for each group), BUFFERS (buffers of a group for keys and values: 1 or 2), HEADS
// (heads of 32 channels), TOKENS (tokens of a window), KEY_TILES (tiles of 8 keys: TOKENS / 8, rounded up),
// COSINE (0 or 1), HI_LO (1, with COSINE: queries and keys of some heads have hi and lo codes for each
// value).
#include "window_heads.cuh"

// Loads a warp's rows from the residual and quantizes them, in Swin V1 after LayerNorm. Padding becomes
// zeros.
INLINE void input_codes(const Params& p, const Constants& constants, const Place& at, Rows& rows) {
    Halves x;
    load_rows(p, at, x);
#if COSINE
    f32 sums[4] = {};
    row_sums(x, sums);
    // Sums of finite halves are always finite.
    if (!finite(sums[0]) || !finite(sums[2])) raise_flag(p.overflow);
#else
    RowNorms norms = row_norms(p, x, at);
#endif
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
#if !COSINE
        f32 gamma[8], beta[8];
        load8(gamma, constants.norm[i] + 8 * (at.lane % 4));
        load8(beta, constants.norm[i] + 32 + 8 * (at.lane % 4));
#endif
#pragma unroll
        for (int half = 0; half < 2; half++) {
            rows[i][half] = rows[i][2 + half] = 0;
            if (!at.has(half)) continue;
            f32 y[8];
            unpack8(y, x[half][i]);
#pragma unroll
            for (int k = 0; k < 8; k++) {
#if COSINE
                y[k] = fma_saturated_f32(y[k], p.input_recip, SHARE_OF_ZERO);
#else
                y[k] = fma_saturated_f32(fma_f32(y[k], norms.inverse[half], norms.shift[half]), gamma[k], beta[k]);
#endif
            }
            if (at.tokens[half] != PAD) {
                rows[i][half] = codes_of_shares(y[0], y[1], y[2], y[3]);
                rows[i][2 + half] = codes_of_shares(y[4], y[5], y[6], y[7]);
            }
        }
    }
}

// A lane's part of the projection in 32 columns, for each of its rows.
INLINE void project_columns(const Constants& constants, const Place& at, const Rows& rows, int group, f32 (&y)[2][8]) {
    s32 sums[4][4] = {};
    multiply_columns(sums, 0, constants.proj[group][0], rows, at.lane);
    multiply_columns(sums, 2, constants.proj[group][1], rows, at.lane);
    f32 scale[8], bias[8];
    load8(scale, constants.out[group] + 8 * (at.lane % 4));
    load8(bias, constants.out[group] + 32 + 8 * (at.lane % 4));
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int i = 0; i < 8; i++) y[half][i] = fma_f32(to_f32(sums[i / 2][2 * half + i % 2]), scale[i], bias[i]);
    }
}

// The address of a lane's eight channels of a group in the residual.
INLINE u16* residual_at(const Params& p, const Place& at, int half, int group) {
    return p.residual + static_cast<u64>(at.tokens[half]) * CHANNELS + 32 * group + 8 * (at.lane % 4);
}

INLINE void add_to_residual(u16* to, const u32x4& old, const f32 (&y)[8]) {
    f32 x[8];
    unpack8(x, old);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = y[i] + x[i];
    store8(to, x);
}

#if COSINE

// Projects the warp's rows, normalises the results and adds them to the residual. The results are rounded to
// halves, as they are where a launch of its own normalises them.
INLINE void project(const Params& p, const Constants& constants, const Place& at, const Rows& rows) {
    Halves branch = {};
#pragma unroll 1
    for (int group = 0; group < HEADS; group++) {
        f32 y[2][8];
        project_columns(constants, at, rows, group, y);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const f32(&row)[8] = y[half];
            u32x4 packed = {pack_half2(row[0], row[1]), pack_half2(row[2], row[3]), pack_half2(row[4], row[5]),
                            pack_half2(row[6], row[7])};
            // Registers have no run-time index.
#pragma unroll
            for (int i = 0; i < HEADS; i++) branch[half][i] = i == group ? packed : branch[half][i];
        }
    }
    RowNorms norms = row_norms(p, branch, at);
#pragma unroll
    for (int group = 0; group < HEADS; group++) {
        f32 gamma[8], beta[8];
        load8(gamma, constants.norm[group] + 8 * (at.lane % 4));
        load8(beta, constants.norm[group] + 32 + 8 * (at.lane % 4));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (at.tokens[half] == PAD) continue;
            u16* to = residual_at(p, at, half, group);
            f32 y[8];
            unpack8(y, branch[half][group]);
#pragma unroll
            for (int i = 0; i < 8; i++) y[i] = fma_f32(fma_f32(y[i], norms.inverse[half], norms.shift[half]), gamma[i], beta[i]);
            add_to_residual(to, *reinterpret_cast<const u32x4*>(to), y);
        }
    }
}

#else

// Projects the warp's rows and adds them to the residual.
INLINE void project(const Params& p, const Constants& constants, const Place& at, const Rows& rows) {
#pragma unroll 1
    for (int group = 0; group < HEADS; group++) {
        u32x4 old[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            old[half] = u32x4{0, 0, 0, 0};
            if (at.tokens[half] != PAD) old[half] = *reinterpret_cast<const u32x4*>(residual_at(p, at, half, group));
        }
        f32 y[2][8];
        project_columns(constants, at, rows, group, y);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (at.tokens[half] != PAD) add_to_residual(residual_at(p, at, half, group), old[half], y[half]);
        }
    }
}

#endif

// Heads whose code is written out, which saves registers: the first heads have few results to keep, and the
// last ones no longer need the rows.
constexpr int HEADS_AT_ONCE = COSINE && HEADS <= 3 ? HEADS : 1;

KERNEL(window_block)(const Params p) {
    u8* shared = shared_memory();
    static_assert(sizeof(Constants) % 16 == 0 && sizeof(Exchange) % 16 == 0, "copied in pieces of 16 bytes");
    for (u32 i = 16 * thread_index(); i < sizeof(Constants); i += 16 * THREADS) copy_async_16(shared + i, p.constants + i, 16);
    copy_commit();
    const Constants& constants = *reinterpret_cast<const Constants*>(shared);
    u32 lane = thread_index() % WARP, group = thread_index() / (WARP * WARPS);
    Exchange* exchanges = reinterpret_cast<Exchange*>(shared + sizeof(Constants)) + BUFFERS * group;
    // The last tile of rows may have little work. Each group gives it to another warp, because warps of equal
    // index share a part of the multiprocessor.
    u32 tile = (thread_index() / WARP + group) % WARPS;
    copy_wait<0>();
    block_sync();
    wait_for_previous();
    launch_dependents();
    // With few windows, one group of each block gets one.
    u32 stride = blocks_x() * (THREADS / (WARP * WARPS));
    for (u32 window = block_x() + group * blocks_x(); window < static_cast<u32>(p.total_windows); window += stride) {
        Place at = place_of(p, window, lane, tile);
        Rows x, y = {};
        input_codes(p, constants, at, x);
#pragma unroll HEADS_AT_ONCE
        for (int head = 0; head < HEADS; head++) {
            Exchange& exchange = exchanges[head % BUFFERS];
            // With one buffer, other warps may read the keys and values of the previous head until here. With
            // two, the barrier of the previous head suffices.
            if (BUFFERS == 1 || head == 0) group_sync<WARP * WARPS>();
            write_keys(p, constants, exchange, x, head, at);
            write_values(constants, exchange, x, head, at);
            Queries q;
            u32 out[4];
            queries_of(p, constants, x, head, at, q);
            group_sync<WARP * WARPS>();
            attend(p, constants, exchange, q, head, at, out);
            // Registers have no run-time index.
#pragma unroll
            for (int i = 0; i < 4 * HEADS; i++) y[i / 4][i % 4] = i / 4 == head ? out[i % 4] : y[i / 4][i % 4];
        }
        // Their places are read again, because registers are scarce until here.
        project(p, constants, place_of(p, window, lane, tile), y);
    }
}
