// LayerNorm of rows gathered from the residual stream. The rows are stored in the order and the type that the
// next linear layer reads.
//
// With ADD, the rows are those of a branch, in the order of its windows, and the norm of each row is added to
// its token of the residual (Swin V2). ADD_CODES can also store the codes of the sums, which the next linear
// layer reads.
//
// Entry points: `norm_exact` reads f32 and is bit-exact to the reference; it keeps short rows in registers.
// `norm_half` reads f16, keeps the row in registers and computes its mean and variance in f32, in two passes.
//
// Defines: those of `rows.cuh`, ADD (ADD_NONE, ADD_RESIDUAL, ADD_CODES); for `norm_exact` also HELD (pieces
// of four elements that a lane keeps: those of a row; 0 if it reads the row again for each pass); for
// `norm_half` also LANES (lanes per row, a power of two up to 32) and CHUNKS (chunks of 8 elements per lane).

// For sm_100 and later the compiler would spill registers of rows in few chunks, and of the longest rows that
// are held, without a number of blocks.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#if defined(HELD) && HELD > 16
#define MIN_BLOCKS 2
#elif !(defined(CHUNKS) && CHUNKS > 4) && !(defined(HELD) && HELD > 6)
#define MIN_BLOCKS (ADD ? 3 : 4)
#endif
#endif
#include "moments.cuh"
#include "rows.cuh"

#define ADD_NONE 0
#define ADD_RESIDUAL 1
#define ADD_CODES 2

#if ADD != ADD_NONE

// The codes of a token of the residual; null if none are stored.
INLINE s8* codes_of(const Params& p, u32 token) {
    if (p.codes == nullptr) return nullptr;
    if (p.code_rows == nullptr) return p.codes + static_cast<u64>(token) * p.stride;
    u32 image = token / p.tokens;
    u32 row = p.code_rows[token - image * p.tokens];
    return p.codes + (static_cast<u64>(image) * p.tokens + row) * p.stride;
}

// Adds `y` to columns `at..at + count` of a token of the residual. With ADD_CODES, stores the codes of the
// sums as the residual holds them; `codes` is the place of the token's codes.
INLINE void add_values(const Params& p, u32 token, s8* codes, s32 at, const f32 (&y)[4]) {
    f32x4* to = reinterpret_cast<f32x4*>(static_cast<f32*>(p.out) + static_cast<u64>(token) * p.columns + at);
    f32x4 x = *to;
    x = f32x4{x.x + y[0], x.y + y[1], x.z + y[2], x.w + y[3]};
    *to = x;
#if ADD == ADD_CODES
    if (codes == nullptr) return;
    *reinterpret_cast<u32*>(codes + at) = codes_s8x4(x.x * p.recip, x.y * p.recip, x.z * p.recip, x.w * p.recip);
#endif
}
// The same for eight columns, whose values are `old`, at `to`.
INLINE void add_values(const Params& p, u16* to, s8* codes, s32 at, const u32x4& old, const f32 (&y)[8]) {
    f32 x[8];
    unpack8(x, old);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = half_to_f32(f32_to_half(x[i] + y[i]));
    store8(to, x);
#if ADD == ADD_CODES
    if (codes == nullptr) return;
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = x[i] * p.recip;
    store8(codes + at, x);
#endif
}

#endif

#if defined(EXACT)

// Columns `at..at + 4` of the row whose pieces are the tokens `from`; padding is zeros.
INLINE f32x4 piece_values(const u32 (&from)[PIECES], const f32* residual, s32 piece_columns, s32 at) {
    s32 piece = at / piece_columns;
    u32 token = from[0];
#pragma unroll
    for (int i = 1; i < PIECES; i++) token = piece == i ? from[i] : token;
    if (token == PAD) return f32x4{0.0f, 0.0f, 0.0f, 0.0f};
    u64 offset = static_cast<u64>(token) * piece_columns + (at - piece * piece_columns);
    return *reinterpret_cast<const f32x4*>(residual + offset);
}

// Four lanes share a row.
KERNEL(norm_exact)(const Params p) {
    wait_for_previous();
    launch_dependents();
    u32 index = block_x() * THREADS + thread_index();
    s32 lane = index % 4;
    bool real = index / 4 < static_cast<u32>(p.total_rows);
    u32 row = real ? index / 4 : 0;
    const f32* residual = static_cast<const f32*>(p.input);
    s32 piece_columns = p.columns / PIECES;
    u32 from[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++) from[i] = source(p, row, i);
#if ADD != ADD_NONE
    u32 target = from[0];
    from[0] = row;
    real = real && target != PAD;
#endif
    s32 pieces = pieces_of(p.columns, lane);
    auto read = [&](s32 i) { return piece_values(from, residual, piece_columns, 16 * i + 4 * lane); };
    // All reads of a row in registers are started before the first is used.
    f32x4 held[HELD > 0 ? HELD : 1];
#pragma unroll
    for (s32 i = 0; i < HELD; i++) held[HELD > 0 ? i : 0] = i < pieces ? read(i) : f32x4{0.0f, 0.0f, 0.0f, 0.0f};
    auto values = [&](s32 i) { return HELD > 0 ? held[HELD > 0 ? i : 0] : read(i); };
    RowNorm norm = row_norm<HELD>(p.columns, pieces, p.epsilon, values);
    if (!real) return;
    bool padding = PIECES == 1 && from[0] == PAD;
#if ADD != ADD_NONE
    s8* codes = ADD == ADD_CODES ? codes_of(p, target) : nullptr;
#endif
#pragma unroll
    for (s32 i = 0; i < (HELD > 0 ? HELD : pieces); i++) {
        if (HELD > 0 && i >= pieces) continue;
        s32 at = 16 * i + 4 * lane;
        f32x4 x = values(i);
        f32x4 gamma = *reinterpret_cast<const f32x4*>(p.gamma + at), beta = *reinterpret_cast<const f32x4*>(p.beta + at);
        f32 y[4] = {apply(norm, x.x, gamma.x, beta.x), apply(norm, x.y, gamma.y, beta.y),
                    apply(norm, x.z, gamma.z, beta.z), apply(norm, x.w, gamma.w, beta.w)};
#if ADD != ADD_NONE
        add_values(p, target, codes, at, y);
#else
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] = padding ? 0.0f : y[i];
        store_values(p, static_cast<u64>(row) * p.stride + at, y);
#endif
    }
}

#else

// The sum over the LANES lanes of a row.
INLINE f32 row_sum(f32 x) {
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) x = x + shuffle_xor(x, mask);
    return x;
}

// Computes the offset in the residual of columns `at..at + 8` of the row whose pieces are the tokens `from`;
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
#if ADD != ADD_NONE
// Whether the lanes read the token of the residual before the sums of the branch, so that they wait for
// memory once.
constexpr bool HOLD_TOKEN = CHUNKS <= 4;
#endif

// LANES lanes share a row. Everything that no earlier launch writes is read before the wait: the map, and
// gamma and beta, which are copied to shared memory.
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
    const u16* residual = static_cast<const u16*>(p.input);
    s32 piece_columns = p.columns / PIECES;
    u32 from[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++) from[i] = source(p, row, i);
#if ADD != ADD_NONE
    u32 target = from[0];
    from[0] = row;
    bool adds = real && target != PAD;
    u16* token = static_cast<u16*>(p.out) + static_cast<u64>(target) * p.columns;
    s8* codes = ADD == ADD_CODES && adds ? codes_of(p, target) : nullptr;
#endif
    wait_for_previous();
    launch_dependents();
    auto read = [&](int chunk) {
        u64 offset;
        bool there = place(from, piece_columns, 8 * (lane + LANES * chunk), p.columns, offset);
        return there ? *reinterpret_cast<const u32x4*>(residual + offset) : u32x4{0, 0, 0, 0};
    };
    u32x4 held[HOLD ? CHUNKS : 1];
    if (HOLD) {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) held[HOLD ? chunk : 0] = read(chunk);
    }
#if ADD != ADD_NONE
    auto read_token = [&](int chunk) {
        s32 at = 8 * (lane + LANES * chunk);
        return adds && at < p.columns ? *reinterpret_cast<const u32x4*>(token + at) : u32x4{0, 0, 0, 0};
    };
    u32x4 old[HOLD_TOKEN ? CHUNKS : 1];
    if (HOLD_TOKEN) {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) old[HOLD_TOKEN ? chunk : 0] = read_token(chunk);
    }
#endif
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
#if ADD != ADD_NONE
    if (!adds) return;
#endif
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
#if ADD != ADD_NONE
        add_values(p, token + at, codes, at, HOLD_TOKEN ? old[HOLD_TOKEN ? chunk : 0] : read_token(chunk), y);
#else
        store_values(p, static_cast<u64>(row) * p.stride + at, y);
#endif
    }
}

#endif
