// LayerNorm of rows gathered from the residual stream. The rows are stored in the order and the type that the
// next linear layer reads. A row has one source token (shift and window partition) or four (merging of 2 x 2
// tokens).
//
// Entry points: `norm_exact` reads an f32 stream and is bit-exact to the reference. `norm_half` reads an f16
// stream, keeps the row in registers and computes its mean and variance in f32, in two passes.
//
// Defines: THREADS, PIECES (source tokens of a row: 1 or 4), STORE (STORE_CODES, STORE_HALF, STORE_FLOAT),
// FAKE (quantize and dequantize before a float store); for `norm_half` also LANES (lanes per row, a power of
// two up to 32) and CHUNKS (chunks of 8 elements per lane).
#include "moments.cuh"

#define STORE_CODES 0
#define STORE_HALF 1
#define STORE_FLOAT 2

struct Params {
    // The stream, `[images * tokens, columns / PIECES]`.
    const void* stream;
    // Source tokens of each row of one image, `[rows, PIECES]`, PAD for padding; null if row r is token r.
    const u32* map;
    const f32* gamma;
    const f32* beta;
    // `[images * rows, stride]`.
    void* out;
    // Set to 1 if an f16 stream holds a value that is not finite; null for an f32 stream.
    u32* overflow;
    // Number of rows of all images.
    s32 total_rows;
    // Number of rows and of tokens of one image.
    s32 rows, tokens;
    // Number of columns of a row, over all pieces.
    s32 columns;
    // Elements from one row of `out` to the next.
    s32 stride;
    f32 epsilon;
    // Reciprocal of the output scale, and the output scale itself.
    f32 recip, scale;
};

// The value to store for `y`.
INLINE f32 stored(const Params& p, f32 y) {
#if STORE == STORE_CODES
    return y * p.recip;
#elif FAKE
    return fake(y, p.recip, p.scale);
#else
    return y;
#endif
}

// Stores four values from `at` on.
INLINE void store_values(const Params& p, u64 at, const f32 (&values)[4]) {
    const f32 y[4] = {stored(p, values[0]), stored(p, values[1]), stored(p, values[2]), stored(p, values[3])};
#if STORE == STORE_CODES
    *reinterpret_cast<u32*>(static_cast<s8*>(p.out) + at) = codes_s8x4(y[0], y[1], y[2], y[3]);
#elif STORE == STORE_HALF
    *reinterpret_cast<u32x2*>(static_cast<u16*>(p.out) + at) = u32x2{pack_half2(y[0], y[1]), pack_half2(y[2], y[3])};
#else
    *reinterpret_cast<f32x4*>(static_cast<f32*>(p.out) + at) = f32x4{y[0], y[1], y[2], y[3]};
#endif
}

// Stores eight values from `at` on.
INLINE void store_values(const Params& p, u64 at, f32 (&y)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = stored(p, y[i]);
#if STORE == STORE_CODES
    store8(static_cast<s8*>(p.out) + at, y);
#elif STORE == STORE_HALF
    store8(static_cast<u16*>(p.out) + at, y);
#else
    store8(static_cast<f32*>(p.out) + at, y);
#endif
}

// Index in the stream, over all images, of the token for piece `piece` of row `row`; PAD for padding.
INLINE u32 source(const Params& p, u32 row, s32 piece) {
    if (p.map == nullptr) return row;
    u32 image = row / p.rows;
    u32 token = p.map[(row - image * p.rows) * PIECES + piece];
    return token == PAD ? PAD : image * p.tokens + token;
}

#if defined(EXACT)

// Columns `at..at + 4` of the row whose pieces are the tokens `from`; padding is zeros.
INLINE f32x4 piece_values(const u32 (&from)[PIECES], const f32* stream, s32 piece_columns, s32 at) {
    s32 piece = at / piece_columns;
    u32 token = from[0];
#pragma unroll
    for (int i = 1; i < PIECES; i++) token = piece == i ? from[i] : token;
    if (token == PAD) return f32x4{0.0f, 0.0f, 0.0f, 0.0f};
    u64 offset = static_cast<u64>(token) * piece_columns + (at - piece * piece_columns);
    return *reinterpret_cast<const f32x4*>(stream + offset);
}

// Four lanes share a row.
KERNEL(norm_exact)(const Params p) {
    wait_for_previous();
    launch_dependents();
    u32 index = block_x() * THREADS + thread_index();
    u32 lane = index % 4;
    bool real = index / 4 < static_cast<u32>(p.total_rows);
    u32 row = real ? index / 4 : 0;
    const f32* stream = static_cast<const f32*>(p.stream);
    s32 piece_columns = p.columns / PIECES;
    u32 from[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++) from[i] = source(p, row, i);
    Moments moments;
    moments.clear();
    for (s32 at = 4 * lane; at < p.columns; at += 16) moments.add(piece_values(from, stream, piece_columns, at));
    RowNorm norm = moments.norm(p.columns, p.epsilon);
    if (!real) return;
    bool padding = PIECES == 1 && from[0] == PAD;
    for (s32 at = 4 * lane; at < p.columns; at += 16) {
        f32x4 x = piece_values(from, stream, piece_columns, at);
        f32x4 gamma = *reinterpret_cast<const f32x4*>(p.gamma + at), beta = *reinterpret_cast<const f32x4*>(p.beta + at);
        f32 y[4] = {apply(norm, x.x, gamma.x, beta.x), apply(norm, x.y, gamma.y, beta.y),
                    apply(norm, x.z, gamma.z, beta.z), apply(norm, x.w, gamma.w, beta.w)};
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] = padding ? 0.0f : y[i];
        store_values(p, static_cast<u64>(row) * p.stride + at, y);
    }
}

#else

// The sum over the LANES lanes of a row.
INLINE f32 row_sum(f32 x) {
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) x = x + shuffle_xor(x, mask);
    return x;
}

// Computes the offset in the stream of columns `at..at + 8` of the row whose pieces are the tokens `from`;
// returns false for a PAD piece.
INLINE bool place(const u32 (&from)[PIECES], s32 piece_columns, s32 at, s32 columns, u64& offset) {
#if PIECES == 1
    offset = static_cast<u64>(from[0]) * columns + at;
    return at < columns && from[0] != PAD;
#else
    s32 piece = at / piece_columns;
    u32 token = from[0];
#pragma unroll
    for (int i = 1; i < PIECES; i++) token = piece == i ? from[i] : token;
    offset = static_cast<u64>(token) * piece_columns + (at - piece * piece_columns);
    return at < columns && token != PAD;
#endif
}

// Whether the lanes keep the row in registers, as halves, between the passes; longer rows are read again.
constexpr bool HOLD = CHUNKS <= 16;
// A row in registers needs loops without indices. Rows that are read again are too long for it.
constexpr int UNROLL = HOLD ? CHUNKS : 2;

// LANES lanes share a row. Everything that no earlier launch writes is read before the wait: the map, and gamma
// and beta, which are copied to shared memory.
KERNEL(norm_half)(const Params p) {
    f32* gamma_beta = reinterpret_cast<f32*>(shared_memory());
    for (s32 i = 4 * thread_index(); i < p.columns; i += 4 * THREADS) {
        copy_async_16(gamma_beta + i, p.gamma + i, 16);
        copy_async_16(gamma_beta + p.columns + i, p.beta + i, 16);
    }
    copy_commit();
    u32 index = block_x() * THREADS + thread_index();
    s32 lane = index % LANES;
    bool real = index / LANES < static_cast<u32>(p.total_rows);
    u32 row = real ? index / LANES : 0;
    const u16* stream = static_cast<const u16*>(p.stream);
    s32 piece_columns = p.columns / PIECES;
    u32 from[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++) from[i] = source(p, row, i);
    wait_for_previous();
    launch_dependents();
    auto read = [&](int chunk) {
        u64 offset;
        bool there = place(from, piece_columns, 8 * (lane + LANES * chunk), p.columns, offset);
        return there ? *reinterpret_cast<const u32x4*>(stream + offset) : u32x4{0, 0, 0, 0};
    };
    u32x4 held[HOLD ? CHUNKS : 1];
    if (HOLD) {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) held[HOLD ? chunk : 0] = read(chunk);
    }
    auto values = [&](f32(&x)[8], int chunk) { unpack8(x, HOLD ? held[HOLD ? chunk : 0] : read(chunk)); };
    f32 sum = 0.0f;
#pragma unroll UNROLL
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        f32 x[8];
        values(x, chunk);
#pragma unroll
        for (int i = 0; i < 8; i++) sum = sum + x[i];
    }
    f32 mean = div_f32(row_sum(sum), to_f32(p.columns));
    f32 square = 0.0f;
#pragma unroll UNROLL
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        if (8 * (lane + LANES * chunk) < p.columns) {
            f32 x[8];
            values(x, chunk);
#pragma unroll
            for (int i = 0; i < 8; i++) square = fma_f32(x[i] - mean, x[i] - mean, square);
        }
    }
    f32 variance = div_f32(row_sum(square), to_f32(p.columns));
    f32 inverse = rsqrt_f32(variance + p.epsilon);
    copy_wait<0>();
    block_sync();
    if (!real) return;
    // A value that is not finite makes the variance of its row not finite. Sums of finite halves are always
    // finite.
    if (lane == 0 && !finite(variance)) raise_flag(p.overflow);
    bool padding = PIECES == 1 && from[0] == PAD;
#pragma unroll UNROLL
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        s32 at = 8 * (lane + LANES * chunk);
        if (at >= p.columns) continue;
        f32 x[8], gamma[8], beta[8], y[8];
        values(x, chunk);
        load8(gamma, gamma_beta + at);
        load8(beta, gamma_beta + p.columns + at);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            f32 normalised = fma_f32((x[i] - mean) * inverse, gamma[i], beta[i]);
            y[i] = padding ? 0.0f : normalised;
        }
        store_values(p, static_cast<u64>(row) * p.stride + at, y);
    }
}

#endif
