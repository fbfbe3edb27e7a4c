// The attention half of a transformer block in one launch: LayerNorm, QKV, window attention, projection and
// the residual addition, for INT8 products, an f16 stream and windows of up to 64 tokens.
//
// A group of four warps processes a window, and each warp has 16 of its rows (tokens). Only keys and values
// pass through shared memory, because every row needs them all. Everything else stays in the registers of the
// lane that computed it: lane `l` of a warp holds rows l / 4 and l / 4 + 8, and of every 32 channels the eight
// from 8 (l % 4) on. The operands and the results of all products have this layout (docs/cuda.md).
//
// A block keeps all weights and constants in shared memory, as the host has laid them out, and its groups
// loop over windows.
//
// Defines: THREADS (128 for each group), BUFFERS (buffers of a group for keys and values: 1 or 2), HEADS (heads of 32 channels), TOKENS (tokens of a window), KEY_TILES
// (tiles of 8 keys: TOKENS / 8, rounded up).
#define EXACT 0
#include "softmax.cuh"

// Added to a logit if its query and its key lie in different regions: -100 log2(e), because logits are in units of
// ln(2).
constexpr f32 MASK = -144.26950408889634f;

struct Params {
    // The residual stream, f16 `[images * tokens, channels]`, which is updated.
    u16* stream;
    // Token of each row of one image's windows, `[windows * TOKENS]`; PAD for padding.
    const u32* map;
    // `Constants`.
    const u8* constants;
    // Region of each token, for the windows of one image, `[windows, 64]`; null if no window is masked.
    const u8* regions;
    // Whether a window has more than one region, for the windows of one image, `[windows]`.
    const u8* masked;
    // Set to 1 if the stream holds a value that is not finite.
    u32* overflow;
    // Number of windows in all images and in one image, and of tokens in one image.
    s32 total_windows, windows, tokens;
    f32 epsilon;
    // Factor that turns sums of q . k into logits in units of ln(2).
    f32 logit_scale;
    // Scale of the values, divided by 255 times the scale of the projection's input.
    f32 value_scale;
};

// Number of heads, and of groups of 32 channels.
constexpr int CHANNELS = 32 * HEADS;
static_assert(TOKENS > 48 && TOKENS <= 64, "every warp has rows");
constexpr int WARPS = 4;
// Bytes of a fragment: the part of a weight that a warp multiplies at once, 16 columns and 32 channels.
constexpr int FRAGMENT = 512;

// Scale and bias of 32 columns: `scale[32]`, then `bias[32]`. A sum becomes `sum * scale + bias`.
typedef f32 Columns[64];

// The constants in shared memory. A code c is computed as (c + 128) / 255, which saturates at 0 and 1 (see
// `codes_of_shares`); scales and biases that precede a quantization include this.
struct Constants {
    // Rows of the QKV weight for each head: q, k and v, each as two halves of 16 columns.
    u8 qkv[HEADS][3][2][HEADS][FRAGMENT];
    // The projection's weight: groups of 32 columns, halves of 16 columns, heads.
    u8 proj[HEADS][2][HEADS][FRAGMENT];
    // Relative position bias in units of ln(2), as halves: the four of each lane for each tile of keys.
    u32x2 bias[HEADS][WARPS][KEY_TILES][WARP];
    // Of the LayerNorm: gamma in place of the scale, beta in place of the bias.
    Columns norm[HEADS];
    Columns query[HEADS], key[HEADS];
    // Scale and bias of a head's values, in the order of the packed rows.
    f32x2 value[HEADS][32];
    Columns out[HEADS];
};

// Keys and values of a head of one window, in the layout in which the products read them.
struct Exchange {
    // For each tile of 8 keys: the eight channels of each lane.
    u32x2 keys[8][WARP];
    // For each tile of 8 channels: for each lane, four keys of each warp.
    u32x4 values[4][WARP];
};

// A warp's 16 rows of codes, 32 channels at a time: the registers of the left operand of a product.
typedef u32 Rows[HEADS][4];

// The rows of this lane: row 16 `tile` + lane / 4 of its window, and that row + 8.
struct Place {
    u32 lane, tile;
    // Index of each row in the stream; PAD if there is none.
    u32 tokens[2];
    // For each row, one bit for each of the lane's keys that lies in another region: bit 2 (key tile) + b of
    // element b of `Logits`.
    u32 masked[2];

    // Whether any of the warp's rows `half` is one of the window.
    INLINE bool has(int half) const { return TOKENS % 16 == 0 || TOKENS % 16 > 8 || half == 0 || tile != TOKENS / 16; }
};

// The bits of `Place::masked`.
INLINE void compare_regions(const u8* regions, Place& at) {
    u32 row = 16 * at.tile + at.lane / 4;
    const u8 of_row[2] = {regions[row], regions[row + 8]};
#pragma unroll
    for (int i = 0; i < 2 * KEY_TILES; i++) {
        u8 key = regions[8 * (i / 2) + 2 * (at.lane % 4) + i % 2];
        at.masked[0] |= static_cast<u32>(key != of_row[0]) << i;
        at.masked[1] |= static_cast<u32>(key != of_row[1]) << i;
    }
}

INLINE Place place_of(const Params& p, u32 window, u32 lane, u32 tile) {
    Place at = {lane, tile, {PAD, PAD}, {0, 0}};
    u32 image = window / p.windows, of_image = window - image * p.windows;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 row = 16 * tile + lane / 4 + 8 * half;
        u32 token = row < TOKENS ? p.map[of_image * TOKENS + row] : PAD;
        if (token != PAD) at.tokens[half] = image * p.tokens + token;
    }
    if (p.regions != nullptr && p.masked[of_image]) compare_regions(p.regions + of_image * 64, at);
    return at;
}

// Adds the products of a warp's rows with 16 columns: sums [0] are those of the first tile of 8 columns.
INLINE void multiply_columns(s32 (&sums)[4][4], int first, const u8 (&weight)[HEADS][FRAGMENT], const Rows& rows, u32 lane) {
#pragma unroll
    for (int step = 0; step < HEADS; step++) {
        u32x4 w = *reinterpret_cast<const u32x4*>(weight[step] + 16 * lane);
        const u32 low[2] = {w.x, w.y}, high[2] = {w.z, w.w};
        mma_s8(sums[first], rows[step], low);
        mma_s8(sums[first + 1], rows[step], high);
    }
}

// Codes of a warp's rows in 32 columns: words [half][0] and [half][1] are the eight of row lane / 4 + 8 half.
INLINE void column_codes(const s32 (&sums)[4][4], const Columns& columns, const Place& at, u32 (&words)[2][2]) {
    f32 scale[8], bias[8];
    load8(scale, columns + 8 * (at.lane % 4));
    load8(bias, columns + 32 + 8 * (at.lane % 4));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        words[half][0] = words[half][1] = 0;
        if (!at.has(half)) continue;
        f32 y[8];
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = fma_saturated_f32(to_f32(sums[i / 2][2 * half + i % 2]), scale[i], bias[i]);
        words[half][0] = codes_of_shares(y[0], y[1], y[2], y[3]);
        words[half][1] = codes_of_shares(y[4], y[5], y[6], y[7]);
    }
}

// Loads a warp's rows from the stream, normalises and quantizes them. Padding becomes zeros.
INLINE void normalise(const Params& p, const Constants& constants, const Place& at, Rows& rows) {
    u32x4 x[2][HEADS];
#pragma unroll
    for (int i = 0; i < 2 * HEADS; i++) {
        u32 token = at.tokens[i / HEADS];
        const u16* from = p.stream + static_cast<u64>(token) * CHANNELS + 32 * (i % HEADS) + 8 * (at.lane % 4);
        x[i / HEADS][i % HEADS] = token == PAD ? u32x4{0, 0, 0, 0} : *reinterpret_cast<const u32x4*>(from);
    }
    // The product with ones adds up the rows.
    const u32 ones[2] = {0x3c003c00u, 0x3c003c00u};
    f32 sums[4] = {};
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        const u32 low[4] = {x[0][i].x, x[1][i].x, x[0][i].y, x[1][i].y};
        const u32 high[4] = {x[0][i].z, x[1][i].z, x[0][i].w, x[1][i].w};
        mma_f16(sums, low, ones);
        mma_f16(sums, high, ones);
    }
    f32 inverse[2] = {}, shift[2] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (!at.has(half)) continue;
        f32 mean = sums[2 * half] * (1.0f / CHANNELS), square = 0.0f;
#pragma unroll
        for (int i = 0; i < HEADS; i++) {
            f32 y[8];
            unpack8(y, x[half][i]);
#pragma unroll
            for (int k = 0; k < 8; k++) square = fma_f32(y[k] - mean, y[k] - mean, square);
        }
        f32 variance = quad_sum(square) * (1.0f / CHANNELS);
        // A value that is not finite makes the variance of its row not finite.
        if (!finite(variance)) raise_flag(p.overflow);
        inverse[half] = rsqrt_f32(variance + p.epsilon);
        shift[half] = -mean * inverse[half];
    }
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        f32 gamma[8], beta[8];
        load8(gamma, constants.norm[i] + 8 * (at.lane % 4));
        load8(beta, constants.norm[i] + 32 + 8 * (at.lane % 4));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            rows[i][half] = rows[i][2 + half] = 0;
            if (!at.has(half)) continue;
            f32 y[8];
            unpack8(y, x[half][i]);
#pragma unroll
            for (int k = 0; k < 8; k++) y[k] = fma_saturated_f32(fma_f32(y[k], inverse[half], shift[half]), gamma[k], beta[k]);
            if (at.tokens[half] != PAD) {
                rows[i][half] = codes_of_shares(y[0], y[1], y[2], y[3]);
                rows[i][2 + half] = codes_of_shares(y[4], y[5], y[6], y[7]);
            }
        }
    }
}

// The warp's keys of a head.
INLINE void write_keys(const Constants& constants, Exchange& exchange, const Rows& rows, int head, const Place& at) {
    s32 sums[4][4] = {};
    multiply_columns(sums, 0, constants.qkv[head][1][0], rows, at.lane);
    multiply_columns(sums, 2, constants.qkv[head][1][1], rows, at.lane);
    u32 words[2][2];
    column_codes(sums, constants.key[head], at, words);
    exchange.keys[2 * at.tile][at.lane] = u32x2{words[0][0], words[0][1]};
    exchange.keys[2 * at.tile + 1][at.lane] = u32x2{words[1][0], words[1][1]};
}

// The warp's values of a head. The product is that of the weight with the transposed rows, so that a lane has
// several tokens of a channel: the registers of the left operand of 16 rows are those of the right operand of
// two tiles of 8 rows.
INLINE void write_values(const Constants& constants, Exchange& exchange, const Rows& rows, int head, const Place& at) {
#pragma unroll
    for (int part = 0; part < 2; part++) {
        s32 sums[2][4] = {};
#pragma unroll
        for (int step = 0; step < HEADS; step++) {
            u32x4 w = *reinterpret_cast<const u32x4*>(constants.qkv[head][2][part][step] + 16 * at.lane);
            const u32 weight[4] = {w.x, w.y, w.z, w.w};
            const u32 low[2] = {rows[step][0], rows[step][2]}, high[2] = {rows[step][1], rows[step][3]};
            mma_s8(sums[0], weight, low);
            mma_s8(sums[1], weight, high);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 tile = 2 * part + half;
            f32x2 column = constants.value[head][8 * tile + at.lane / 4];
            f32 y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) y[i] = fma_saturated_f32(to_f32(sums[i / 2][2 * half + i % 2]), column.x, column.y);
            u32* word = reinterpret_cast<u32*>(&exchange.values[tile][at.lane]) + at.tile;
            *word = codes_of_shares(y[0], y[1], y[2], y[3]);
        }
    }
}

// The warp's queries of a head, as the left operand of a product.
INLINE void queries_of(const Constants& constants, const Rows& rows, int head, const Place& at, u32 (&q)[4]) {
    s32 sums[4][4] = {};
    multiply_columns(sums, 0, constants.qkv[head][0][0], rows, at.lane);
    multiply_columns(sums, 2, constants.qkv[head][0][1], rows, at.lane);
    u32 words[2][2];
    column_codes(sums, constants.query[head], at, words);
    q[0] = words[0][0], q[1] = words[1][0], q[2] = words[0][1], q[3] = words[1][1];
}

// Attention of the warp's queries: the codes of the head's 32 channels of its rows.
INLINE void attend(const Params& p, const Constants& constants, const Exchange& exchange, const u32 (&q)[4], int head,
                   const Place& at, u32 (&out)[4]) {
    Logits x;
#pragma unroll
    for (int t = 0; t < KEY_TILES; t++) {
        s32 sums[4] = {};
        u32x2 k = exchange.keys[t][at.lane], bias = constants.bias[head][at.tile][t][at.lane];
        const u32 keys[2] = {k.x, k.y}, halves[2] = {bias.x, bias.y};
        mma_s8(sums, q, keys);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[t][i] = fma_f32(to_f32(sums[i]), p.logit_scale, half_to_f32(static_cast<u16>(halves[i / 2] >> (16 * (i % 2)))));
        }
    }
    if (any_lane(at.masked[0] | at.masked[1])) {
#pragma unroll
        for (int i = 0; i < 4 * KEY_TILES; i++) {
            if (at.masked[i / 2 % 2] >> (2 * (i / 4) + i % 2) & 1) x[i / 4][i % 4] = x[i / 4][i % 4] + MASK;
        }
    }
    ProbabilityCodes words = {};
    f32 factor[2] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (at.has(half)) factor[half] = div_f32(p.value_scale, to_f32(probabilities_u8(x, half, words)));
    }
    s32 sums[4][4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u32x4 v = exchange.values[j][at.lane];
        const u32 low[2] = {v.x, v.y}, high[2] = {v.z, v.w};
        mma_u8s8(sums[j], words[0], low);
        mma_u8s8(sums[j], words[1], high);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        out[half] = out[2 + half] = 0;
        if (!at.has(half)) continue;
        f32 y[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            y[i] = fma_saturated_f32(to_f32(sums[i / 2][2 * half + i % 2]), factor[half], SHARE_OF_ZERO);
        }
        out[half] = codes_of_shares(y[0], y[1], y[2], y[3]);
        out[2 + half] = codes_of_shares(y[4], y[5], y[6], y[7]);
    }
}

// Projects the warp's rows and adds them to the stream.
INLINE void project(const Params& p, const Constants& constants, const Place& at, const Rows& rows) {
#pragma unroll 1
    for (int group = 0; group < HEADS; group++) {
        u32x4 old[2];
        u16* to[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            to[half] = p.stream + static_cast<u64>(at.tokens[half]) * CHANNELS + 32 * group + 8 * (at.lane % 4);
            old[half] = at.tokens[half] == PAD ? u32x4{0, 0, 0, 0} : *reinterpret_cast<const u32x4*>(to[half]);
        }
        s32 sums[4][4] = {};
        multiply_columns(sums, 0, constants.proj[group][0], rows, at.lane);
        multiply_columns(sums, 2, constants.proj[group][1], rows, at.lane);
        f32 scale[8], bias[8];
        load8(scale, constants.out[group] + 8 * (at.lane % 4));
        load8(bias, constants.out[group] + 32 + 8 * (at.lane % 4));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (at.tokens[half] == PAD) continue;
            f32 y[8];
            unpack8(y, old[half]);
#pragma unroll
            for (int i = 0; i < 8; i++) y[i] = fma_f32(to_f32(sums[i / 2][2 * half + i % 2]), scale[i], bias[i]) + y[i];
            store8(to[half], y);
        }
    }
}

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
        normalise(p, constants, at, x);
#pragma unroll 1
        for (int head = 0; head < HEADS; head++) {
            Exchange& exchange = exchanges[head % BUFFERS];
            // With one buffer, other warps may read the keys and values of the previous head until here. With
            // two, the barrier of the previous head suffices.
            if (BUFFERS == 1 || head == 0) group_sync<WARP * WARPS>();
            write_keys(constants, exchange, x, head, at);
            write_values(constants, exchange, x, head, at);
            u32 q[4], out[4];
            queries_of(constants, x, head, at, q);
            group_sync<WARP * WARPS>();
            attend(p, constants, exchange, q, head, at, out);
            // Registers have no run-time index.
#pragma unroll
            for (int i = 0; i < 4 * HEADS; i++) y[i / 4][i % 4] = i / 4 == head ? out[i % 4] : y[i / 4][i % 4];
        }
        project(p, constants, at, y);
    }
}
