// The MLP branch of a block in one launch, for INT8 and sm_90a: residual +=
// fc2(GELU(fc1(LayerNorm(residual)))), and for Swin V2 residual += LayerNorm(fc2(GELU(fc1(residual)))).
//
// A warpgroup computes 64 rows by itself, and everything between the residual and the residual stays in its
// registers. The codes of LayerNorm (of the residual for Swin V2) are the operand A of fc1. fc1 is computed
// in chunks of 64 hidden columns; the codes of a chunk are the operand A of fc2, which adds the chunk to its
// sums. Lane `q` of four has columns 16 i + 4 q to 16 i + 4 q + 3 of its rows, for every i: `operand_column`
// (mlp.rs) orders the columns of both weights so that a product's results are in the registers in which the
// next product reads them.
//
// Weights are stored chunk by chunk, as they lie in shared memory (`pieces_descriptor`). The first STAY
// chunks stay in shared memory. If they are not all, the others pass through a ring of STAGES slots; then all
// warpgroups process the same chunks, because a slot is refilled once all of them have used it.
//
// Defines: FORM (PRE_NORM; for Swin V2 POST_NORM, or POST_NORM_CODES, which can also store the codes of the
// new residual), COLUMNS, HIDDEN (a multiple of 64), STAY, STAGES (0 if all chunks stay), GROUPS
// (warpgroups), RESIDUAL_F32 (1: the residual is f32, and the results are those of the reference, bit for
// bit), CHANNELS (1: each hidden column has a scale and a zero point of its own), HALVES (GELU and its codes
// in packed halves; needs an f16 residual), THREADS.
#include "moments.cuh"
#include "wgmma.cuh"
#include "mbarrier.cuh"

#define PRE_NORM 0
#define POST_NORM 1
#define POST_NORM_CODES 2

struct Params {
    // `[m, COLUMNS]`, f32 or f16.
    void* residual;
    // HIDDEN / 64 chunks: 64 columns of fc1's weight, then 64 bytes of k of fc2's weight.
    const u8* weights;
    // In the order of `Constants`.
    const f32* constants;
    // Set to 1 if an f16 residual holds a value that is not finite.
    u32* overflow;
    // With POST_NORM_CODES: the codes of the new residual, `[m, COLUMNS]`, null if none are stored; and the
    // row of each token of an image, null if token t is row t.
    s8* codes;
    const u32* code_rows;
    s32 m;
    // Tokens of an image, if there are `code_rows`.
    s32 tokens;
    f32 epsilon;
    // Reciprocals of the scales of the inputs of fc1 and fc2, and of the codes of the new residual.
    f32 norm_recip, hidden_recip, code_recip;
};

// Per-column constants, in shared memory.
struct Constants {
    // For an f16 residual and PRE_NORM, multiplied by `norm_recip`.
    f32 gamma[COLUMNS], beta[COLUMNS];
    // Factors of the sums of fc1, and its bias; with HALVES, half of them (see `gelu_half2`).
    f32 hidden_scale[HIDDEN], hidden_bias[HIDDEN];
    // Factors of the sums of fc2, and its bias. For an f16 residual the bias makes up for the zero points of
    // the hidden columns.
    f32 scale[COLUMNS], bias[COLUMNS];
#if CHANNELS && HALVES
    // For four hidden columns: two pairs of `HalfCodes`.
    u32x4 hidden_codes[HIDDEN / 4];
#elif CHANNELS
    // Reciprocals of the scales of the hidden columns, and their zero points.
    f32 hidden_recip[HIDDEN], hidden_zero[HIDDEN];
#if RESIDUAL_F32
    // The term of the zero points in the sums of fc2.
    s32 correction[COLUMNS];
#endif
#endif
};

constexpr int CHUNK = 64, CHUNKS = HIDDEN / CHUNK;
// Bytes of the weights of a chunk: of fc1, then of fc2.
constexpr u32 HALF_CHUNK_BYTES = CHUNK * COLUMNS, CHUNK_BYTES = 2 * HALF_CHUNK_BYTES;
// Pieces of 16 columns, of which a lane has four.
constexpr int PIECES = COLUMNS / 16;
// The chunks of a tile that pass through the ring, and its slots; 1 where there is no ring.
constexpr int PASSING = STAGES > 0 ? CHUNKS - STAY : 1, SLOTS = STAGES > 0 ? STAGES : 1;
static_assert(THREADS == 128 * GROUPS && HIDDEN % CHUNK == 0 && COLUMNS % 32 == 0, "sizes");
static_assert(STAY == CHUNKS ? STAGES == 0 : STAY < CHUNKS && STAGES >= 3, "chunks stay or are in the ring");

struct Shared {
    u8* slots;
    // Address of `slots` in shared memory.
    u32 address;
    const Constants* constants;
    f32* tail;
    // `ready` counts constants and the chunks that stay; `full` and `empty` have a barrier for each stage.
    u64 *ready, *full, *empty;
};

INLINE Shared shared_parts() {
    u8* at = shared_memory();
    u8* after = at + (STAY + STAGES) * CHUNK_BYTES;
    f32* tail = reinterpret_cast<f32*>(after + sizeof(Constants));
    u64* barriers = reinterpret_cast<u64*>(tail + (RESIDUAL_F32 ? TAIL_FLOATS : 0));
    return Shared{at, shared_address(at), reinterpret_cast<const Constants*>(after), tail, barriers, barriers + 1, barriers + 1 + STAGES};
}

// Starts the copy of the chunk with index `index` in the sequence of those in the ring.
INLINE void fill(const Params& p, const Shared& shared, s32 index) {
    s32 stage = index % SLOTS, chunk = STAY + index % PASSING;
    mbarrier_arrive_expecting(shared.full + stage, CHUNK_BYTES);
    copy_bulk(shared.slots + (STAY + stage) * CHUNK_BYTES, p.weights + chunk * CHUNK_BYTES, CHUNK_BYTES, shared.full + stage);
}

// Initialises barriers and starts the first copies; one thread calls it.
INLINE void start_copies(const Params& p, const Shared& shared, s32 ring_chunks) {
    mbarrier_init(shared.ready, 1);
    for (int i = 0; i < STAGES; i++) {
        mbarrier_init(shared.full + i, 1);
        mbarrier_init(shared.empty + i, 4 * GROUPS);
    }
    fence_barrier_init();
    mbarrier_arrive_expecting(shared.ready, sizeof(Constants) + STAY * CHUNK_BYTES);
    copy_bulk(const_cast<Constants*>(shared.constants), p.constants, sizeof(Constants), shared.ready);
    for (int i = 0; i < STAY; i++) {
        copy_bulk(shared.slots + i * CHUNK_BYTES, p.weights + i * CHUNK_BYTES, CHUNK_BYTES, shared.ready);
    }
    for (int i = 0; i < STAGES && i < ring_chunks; i++) fill(p, shared, i);
}

#if RESIDUAL_F32
typedef f32 Residual;
typedef f32x4 Four;
INLINE void unpack(f32 (&x)[4], const Four& v) { x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w; }
INLINE Four pack(const f32 (&x)[4]) { return f32x4{x[0], x[1], x[2], x[3]}; }
#else
typedef u16 Residual;
typedef u32x2 Four;
INLINE void unpack(f32 (&x)[4], const Four& v) {
    x[0] = half_to_f32(static_cast<u16>(v.x)), x[1] = half_to_f32(static_cast<u16>(v.x >> 16));
    x[2] = half_to_f32(static_cast<u16>(v.y)), x[3] = half_to_f32(static_cast<u16>(v.y >> 16));
}
INLINE Four pack(const f32 (&x)[4]) { return u32x2{pack_half2(x[0], x[1]), pack_half2(x[2], x[3])}; }
#endif

// Whether a lane holds its part of the rows in registers until the results are added. There are too few
// registers for f32, and for LayerNorm of the results: then the rows are read again.
#define HOLD (!RESIDUAL_F32 && FORM == PRE_NORM)

// A lane's part of two rows of the residual, which are eight rows apart.
struct Rows {
    Residual* at;
    bool there[2];
#if HOLD
    Four held[2][PIECES];
#endif

    INLINE Residual* piece(int half, int piece) const { return at + 8 * half * COLUMNS + 16 * piece; }

    INLINE Four read(int half, int i) const {
        return there[half] ? *reinterpret_cast<const Four*>(piece(half, i)) : Four{};
    }

    INLINE void load(const Params& p, s32 row, s32 q) {
        at = static_cast<Residual*>(p.residual) + static_cast<u64>(row) * COLUMNS + 4 * q;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            there[half] = row + 8 * half < p.m;
#if HOLD
#pragma unroll
            for (int i = 0; i < PIECES; i++) held[half][i] = read(half, i);
#endif
        }
    }

    // Starts to load the rows that are `distance` rows further into the L2 cache. The four lanes of a row
    // share its lines.
    INLINE void prefetch(const Params& p, s32 row, s32 distance, s32 q) const {
        const Residual* to = at + static_cast<s64>(distance) * COLUMNS + q * (COLUMNS / 4 - 4);
        if (row + 8 + distance < p.m) prefetch_line(to), prefetch_line(to + 8 * COLUMNS);
    }

    INLINE void values(f32 (&x)[4], int half, int i) const {
#if HOLD
        unpack(x, held[half][i]);
#else
        unpack(x, read(half, i));
#endif
    }

    INLINE void store(const f32 (&x)[4], int half, int i) const {
        if (there[half]) *reinterpret_cast<Four*>(piece(half, i)) = pack(x);
    }
};

#if FORM == PRE_NORM

// The codes of LayerNorm of a lane's part of a row, four columns in a word.
INLINE void operand_of_row(const Params& p, const Constants& c, const Rows& rows, int half, s32 q,
                      u32 (&codes)[PIECES]) {
#if RESIDUAL_F32
    RowNorm norm = row_norm(COLUMNS, PIECES, p.epsilon, [&](s32 i) { return rows.read(half, i); });
#else
    f32 sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        f32 x[4];
        rows.values(x, half, i);
        sum = sum + ((x[0] + x[1]) + (x[2] + x[3]));
    }
    sum = sum + shuffle_xor(sum, 1);
    sum = sum + shuffle_xor(sum, 2);
    f32 mean = sum * (1.0f / COLUMNS);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        f32 x[4];
        rows.values(x, half, i);
#pragma unroll
        for (int j = 0; j < 4; j++) square = fma_f32(x[j] - mean, x[j] - mean, square);
    }
    square = square + shuffle_xor(square, 1);
    square = square + shuffle_xor(square, 2);
    f32 variance = square * (1.0f / COLUMNS), inverse = rsqrt_f32(variance + p.epsilon), shift = -mean * inverse;
    // A value that is not finite makes the variance of its row not finite.
    if (q == 0 && !finite(variance)) raise_flag(p.overflow);
#endif
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        f32 x[4], gamma[4], beta[4];
        rows.values(x, half, i);
        load4(gamma, c.gamma + 16 * i + 4 * q);
        load4(beta, c.beta + 16 * i + 4 * q);
#pragma unroll
        for (int j = 0; j < 4; j++) {
#if RESIDUAL_F32
            x[j] = apply(norm, x[j], gamma[j], beta[j]) * p.norm_recip;
#else
            x[j] = fma_f32(fma_f32(x[j], inverse, shift), gamma[j], beta[j]);
#endif
        }
        // Conversions have a low throughput, but here fewer instructions count more: the unit has little to
        // do.
        codes[i] = codes_s8x4(x[0], x[1], x[2], x[3]);
    }
}

#else

// The codes of a lane's part of a row, four columns in a word.
INLINE void operand_of_row(const Params& p, const Constants&, const Rows& rows, int half, s32, u32 (&codes)[PIECES]) {
    f32 sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        f32 x[4];
        rows.values(x, half, i);
        sum = sum + ((x[0] + x[1]) + (x[2] + x[3]));
#pragma unroll
        for (int j = 0; j < 4; j++) x[j] = x[j] * p.norm_recip;
        codes[i] = codes_s8x4(x[0], x[1], x[2], x[3]);
    }
#if !RESIDUAL_F32
    // Sums of finite halves are always finite.
    if (!finite(sum)) raise_flag(p.overflow);
#endif
}

#endif

// The constants of four hidden columns of a lane.
struct HiddenColumns {
    f32 scale[4], bias[4];
#if CHANNELS && HALVES
    HalfCodes codes[2];
#elif CHANNELS
    f32 recip[4], zero[4];
#endif

    INLINE void load(const Constants& c, s32 column) {
        load4(scale, c.hidden_scale + column);
        load4(bias, c.hidden_bias + column);
#if CHANNELS && HALVES
        u32x4 words = c.hidden_codes[column / 4];
        codes[0] = HalfCodes{words.x, words.y}, codes[1] = HalfCodes{words.z, words.w};
#elif CHANNELS
        load4(recip, c.hidden_recip + column);
        load4(zero, c.hidden_zero + column);
#endif
    }
};

// The codes of GELU of four sums of fc1.
INLINE u32 hidden_codes(const Params& p, const HiddenColumns& columns, const s32 (&sums)[4], const f32* tail) {
    f32 y[4];
#pragma unroll
    for (int i = 0; i < 4; i++) y[i] = fma_f32(to_f32(sums[i]), columns.scale[i], columns.bias[i]);
#if HALVES
    u32 low = gelu_half2(pack_half2_finite(y[0], y[1])), high = gelu_half2(pack_half2_finite(y[2], y[3]));
#if CHANNELS
    low = codes_half2(low, columns.codes[0]), high = codes_half2(high, columns.codes[1]);
#else
    u32 recip = pack_half2(p.hidden_recip, p.hidden_recip);
    low = codes_half2(low, recip), high = codes_half2(high, recip);
#endif
    return byte_permute(low, high, 0x6420);
#else
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if RESIDUAL_F32
        y[i] = gelu_of_layer(y[i], tail);
#else
        y[i] = gelu_fast(y[i], max_f32(y[i], 0.0f));
#endif
#if CHANNELS
        y[i] = fma_f32(y[i], columns.recip[i], columns.zero[i]);
#else
        y[i] = y[i] * p.hidden_recip;
#endif
    }
    return codes_of_numbers(y[0], y[1], y[2], y[3]);
#endif
}

// The codes of a chunk, as the operand A of two steps of fc2. Columns 16 piece + 4 q to 16 piece + 4 q + 3
// are in two neighbouring blocks of eight columns of the product. `first` has the constants of the first
// piece.
INLINE void hidden_operand(const Params& p, const Shared& shared, s32 chunk, s32 q, const HiddenColumns& first,
                           const s32 (&sums)[CHUNK / 2], u32 (&operand)[2][4]) {
#pragma unroll
    for (int piece = 0; piece < 4; piece++) {
        HiddenColumns columns = first;
        if (piece > 0) columns.load(*shared.constants, CHUNK * chunk + 16 * piece + 4 * q);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const s32* at = sums + 8 * piece + 2 * half;
            const s32 four[4] = {at[0], at[1], at[4], at[5]};
            operand[piece / 2][piece % 2 * 2 + half] = hidden_codes(p, columns, four, shared.tail);
        }
    }
}

// Four sums of fc2 of one row, without the zero points of the hidden columns.
INLINE void branch_sums(const Constants& c, s32 column, const s32* at, s32 (&four)[4]) {
    four[0] = at[0], four[1] = at[1], four[2] = at[4], four[3] = at[5];
#if CHANNELS && RESIDUAL_F32
#pragma unroll
    for (int j = 0; j < 4; j++) four[j] = four[j] - c.correction[column + j];
#endif
}

#if FORM == PRE_NORM

// Adds fc2's results to a lane's part of two rows.
INLINE void finish(const Params&, const Constants& c, s32, s32 q, const s32 (&sums)[COLUMNS / 2], const Rows& rows) {
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        f32 scale[4], bias[4];
        load4(scale, c.scale + 16 * i + 4 * q);
        load4(bias, c.bias + 16 * i + 4 * q);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            s32 four[4];
            branch_sums(c, 16 * i + 4 * q, sums + 8 * i + 2 * half, four);
            f32 x[4];
            rows.values(x, half, i);
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = fma_f32(to_f32(four[j]), scale[j], bias[j]) + x[j];
            rows.store(x, half, i);
        }
    }
}

#else

// A lane's part of fc2's results for a row.
typedef f32 Branch[PIECES][4];

INLINE void branch_of_row(const Constants& c, s32 q, const s32 (&sums)[COLUMNS / 2], int half, Branch& y) {
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        f32 scale[4], bias[4];
        load4(scale, c.scale + 16 * i + 4 * q);
        load4(bias, c.bias + 16 * i + 4 * q);
        s32 four[4];
        branch_sums(c, 16 * i + 4 * q, sums + 8 * i + 2 * half, four);
#pragma unroll
        for (int j = 0; j < 4; j++) y[i][j] = fma_f32(to_f32(four[j]), scale[j], bias[j]);
    }
}

// Replaces a lane's part of a row by its part of LayerNorm of the row, which four lanes share.
INLINE void normalize(const Params& p, const Constants& c, s32 q, Branch& y) {
#if RESIDUAL_F32
    RowNorm norm = row_norm(COLUMNS, PIECES, p.epsilon, [&](s32 i) { return pack(y[i]); });
#else
    f32 sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int i = 0; i < PIECES; i++) sum = sum + ((y[i][0] + y[i][1]) + (y[i][2] + y[i][3]));
    sum = sum + shuffle_xor(sum, 1);
    f32 mean = (sum + shuffle_xor(sum, 2)) * (1.0f / COLUMNS);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) square = fma_f32(y[i][j] - mean, y[i][j] - mean, square);
    }
    square = square + shuffle_xor(square, 1);
    square = square + shuffle_xor(square, 2);
    f32 inverse = rsqrt_f32(square * (1.0f / COLUMNS) + p.epsilon), shift = -mean * inverse;
#endif
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        f32 gamma[4], beta[4];
        load4(gamma, c.gamma + 16 * i + 4 * q);
        load4(beta, c.beta + 16 * i + 4 * q);
#pragma unroll
        for (int j = 0; j < 4; j++) {
#if RESIDUAL_F32
            y[i][j] = apply(norm, y[i][j], gamma[j], beta[j]);
#else
            y[i][j] = fma_f32(fma_f32(y[i][j], inverse, shift), gamma[j], beta[j]);
#endif
        }
    }
}

// The codes of the new residual's token `token`.
INLINE s8* codes_of(const Params& p, s32 token) {
    s32 row = token;
    if (p.code_rows != nullptr) {
        s32 image = token / p.tokens;
        row = image * p.tokens + static_cast<s32>(p.code_rows[token - image * p.tokens]);
    }
    return p.codes + static_cast<u64>(row) * COLUMNS;
}

// Adds LayerNorm of fc2's results to a lane's part of two rows, of which `row` is the first.
INLINE void finish(const Params& p, const Constants& c, s32 row, s32 q, const s32 (&sums)[COLUMNS / 2], const Rows& rows) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        Branch y;
        branch_of_row(c, q, sums, half, y);
        normalize(p, c, q, y);
        bool stores = FORM == POST_NORM_CODES && p.codes != nullptr && rows.there[half];
        s8* codes = stores ? codes_of(p, row + 8 * half) + 4 * q : nullptr;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            f32 x[4];
            rows.values(x, half, i);
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = x[j] + y[i][j];
            rows.store(x, half, i);
            if (!stores) continue;
            // The codes are those of the values that the residual holds.
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = (RESIDUAL_F32 ? x[j] : half_to_f32(f32_to_half(x[j]))) * p.code_recip;
            *reinterpret_cast<u32*>(codes + 16 * i) = codes_s8x4(x[0], x[1], x[2], x[3]);
        }
    }
}

#endif

// The chunks in the ring that a block uses in one tile: the index of the first in the sequence of all, and
// the length of that sequence.
struct Sequence {
    s32 first, all;
};

// Waits for the weights of `chunk` and returns their address in shared memory.
INLINE u32 chunk_weights(const Shared& shared, const Sequence& sequence, s32 chunk) {
    if (STAGES == 0 || chunk < STAY) return shared.address + chunk * CHUNK_BYTES;
    s32 index = sequence.first + chunk - STAY, slot = index % SLOTS;
    mbarrier_wait(shared.full + slot, index / SLOTS & 1);
    return shared.address + (STAY + slot) * CHUNK_BYTES;
}

// Says that this warp has used `chunk`. The first thread also refills the slot of the chunk before it in the
// ring: by then the other warpgroups are usually done with that one, so the thread does not wait.
INLINE void leave_chunk(const Params& p, const Shared& shared, const Sequence& sequence, s32 chunk) {
    if (STAGES == 0 || chunk < STAY) return;
    s32 index = sequence.first + chunk - STAY, before = index - 1, next = before + SLOTS;
    if (thread_index() % WARP == 0) mbarrier_arrive(shared.empty + index % SLOTS);
    if (thread_index() == 0 && before >= 0 && next < sequence.all) {
        mbarrier_wait(shared.empty + before % SLOTS, before / SLOTS & 1);
        fill(p, shared, next);
    }
}

// The sums of fc2 for the operand A of fc1.
INLINE void multiply(const Params& p, const Shared& shared, const Sequence& sequence, s32 q, const u32 (&a)[COLUMNS / 32][4],
                     s32 (&sums)[COLUMNS / 2]) {
    u32 operand[2][4];
#pragma unroll 1
    for (s32 chunk = 0; chunk < CHUNKS; chunk++) {
        u32 weights = chunk_weights(shared, sequence, chunk);
        s32 hidden[CHUNK / 2];
        u64 w = pieces_descriptor(weights, CHUNK);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < COLUMNS / 32; step++, w = next_pieces(w, CHUNK)) {
            WgmmaA<CHUNK>::i8(hidden, a[step], w, step > 0);
        }
        wgmma_commit();
        HiddenColumns first;
        first.load(*shared.constants, CHUNK * chunk + 4 * q);
        // Also waits for fc2 of the chunk before, whose operand is overwritten.
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < CHUNK / 2; i++) tie(hidden[i]);
        if (chunk > 0) leave_chunk(p, shared, sequence, chunk - 1);
        hidden_operand(p, shared, chunk, q, first, hidden, operand);
        w = pieces_descriptor(weights + HALF_CHUNK_BYTES, COLUMNS);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 2; step++, w = next_pieces(w, COLUMNS)) {
            WgmmaA<COLUMNS>::i8(sums, operand[step], w, chunk > 0 || step > 0);
        }
        wgmma_commit();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) tie(sums[i]);
    leave_chunk(p, shared, sequence, CHUNKS - 1);
}

// Leaves all chunks of a tile that this warpgroup does not have.
INLINE void skip_chunks(const Params& p, const Shared& shared, const Sequence& sequence) {
#pragma unroll 1
    for (s32 chunk = STAY; chunk < CHUNKS; chunk++) {
        chunk_weights(shared, sequence, chunk);
        leave_chunk(p, shared, sequence, chunk);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) mlp_sm90(const Params p) {
    Shared shared = shared_parts();
    s32 tiles = (p.m + 63) / 64, blocks = static_cast<s32>(blocks_x()), together = GROUPS * blocks;
    s32 rounds = (tiles + together - 1) / together;
    Sequence sequence = {0, rounds * (CHUNKS - STAY)};
    if (thread_index() == 0) start_copies(p, shared, sequence.all);
#if RESIDUAL_F32
    load_gelu(shared.tail, THREADS);
#endif
    block_sync();
    wait_for_previous();
    launch_dependents();
    mbarrier_wait(shared.ready, 0);

    s32 lane = static_cast<s32>(thread_index() % WARP), q = lane % 4;
    s32 tile = static_cast<s32>(block_x()) + warpgroup() * blocks;
    for (s32 round = 0; round < rounds; round++, tile += together, sequence.first += CHUNKS - STAY) {
        if (tile >= tiles) {
            // The ring waits for all warpgroups.
            if (STAGES > 0) skip_chunks(p, shared, sequence);
            break;
        }
        s32 row = 64 * tile + static_cast<s32>(thread_index() / WARP % 4) * 16 + lane / 4;
        Rows rows;
        rows.load(p, row, q);
        u32 a[COLUMNS / 32][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 codes[PIECES];
            operand_of_row(p, *shared.constants, rows, half, q, codes);
#pragma unroll
            for (int i = 0; i < PIECES; i++) a[i / 2][i % 2 * 2 + half] = codes[i];
        }
        rows.prefetch(p, row, 64 * together, q);
        s32 sums[COLUMNS / 2];
        multiply(p, shared, sequence, q, a, sums);
        finish(p, *shared.constants, row, q, sums, rows);
    }
}
