// The ladder of softmax over rows of f32 `[rows, columns]`. `swinq bench softmax` measures it; no engine runs
// it.
//
// Defines: THREADS. For `softmax_rows`, `softmax_staged` and `softmax_codes` also COLUMNS, the number of
// columns. For `softmax_rows` and `softmax_codes` also LANES, the number of threads that share a row: a power
// of two up to 32, or THREADS.
#include "prelude.cuh"

struct Params {
    // `[rows, columns]`, contiguous.
    const f32* x;
    // f32 `[rows, columns]`; u8 `[rows, columns]` for `softmax_codes`.
    void* out;
    // Sum of the codes of each row (`softmax_codes`).
    u32* sums;
    s32 rows, columns;
};

constexpr s32 WARPS = THREADS / WARP;

// e^(x - largest), where differences below the floor of -60 give e^-60. -inf - -inf is a NaN, for which
// `max_f32` returns the floor; in `softmax_online` the sum that is then multiplied by e^-60 is 0.
INLINE f32 exp_of(f32 x, f32 largest) { return exp_below(max_f32(x - largest, from_bits(FLOOR_BITS))); }

INLINE f32 warp_max(f32 x) {
#pragma unroll
    for (u32 mask = 16; mask > 0; mask /= 2) x = max_f32(x, shuffle_xor(x, mask));
    return x;
}
template <class T>
INLINE T warp_sum(T x) {
#pragma unroll
    for (u32 mask = 16; mask > 0; mask /= 2) x = x + shuffle_xor(x, mask);
    return x;
}

// Row that this thread's warp computes.
INLINE s32 row_of_warp() {
    return static_cast<s32>(block_x()) * WARPS + static_cast<s32>(thread_index() / WARP);
}

// One block per row and three passes over the row: maximum, sum, quotients.
KERNEL(softmax_naive)(const Params p) {
    f32* shared = reinterpret_cast<f32*>(shared_memory());
    const f32* x = p.x + static_cast<u64>(block_x()) * p.columns;
    f32* out = static_cast<f32*>(p.out) + static_cast<u64>(block_x()) * p.columns;
    u32 warp = thread_index() / WARP, lane = thread_index() % WARP;
    s32 first = static_cast<s32>(thread_index());

    f32 largest = from_bits(0xff800000u);
    for (s32 i = first; i < p.columns; i += THREADS) largest = max_f32(largest, x[i]);
    largest = warp_max(largest);
    if (lane == 0) shared[warp] = largest;
    block_sync();
    for (s32 i = 0; i < WARPS; i++) largest = max_f32(largest, shared[i]);

    f32 sum = 0.0f;
    for (s32 i = first; i < p.columns; i += THREADS) sum = sum + exp_of(x[i], largest);
    sum = warp_sum(sum);
    if (lane == 0) shared[WARPS + warp] = sum;
    block_sync();
    sum = 0.0f;
    for (s32 i = 0; i < WARPS; i++) sum = sum + shared[WARPS + i];

    for (s32 i = first; i < p.columns; i += THREADS) out[i] = div_f32(exp_of(x[i], largest), sum);
}

// One warp per row: maximum and sum in one pass, where a new maximum rescales the sum so far; then the
// quotients.
KERNEL(softmax_online)(const Params p) {
    s32 row = row_of_warp();
    if (row >= p.rows) return;
    const f32* x = p.x + static_cast<u64>(row) * p.columns;
    f32* out = static_cast<f32*>(p.out) + static_cast<u64>(row) * p.columns;
    s32 lane = static_cast<s32>(thread_index() % WARP);

    f32 largest = from_bits(0xff800000u), sum = 0.0f;
    for (s32 i = lane; i < p.columns; i += WARP) {
        f32 value = x[i], larger = max_f32(largest, value);
        sum = fma_f32(sum, exp_of(largest, larger), exp_of(value, larger));
        largest = larger;
    }
    f32 of_row = warp_max(largest);
    f32 inverse = div_f32(1.0f, warp_sum(sum * exp_of(largest, of_row)));

    for (s32 i = lane; i < p.columns; i += WARP) out[i] = exp_of(x[i], of_row) * inverse;
}

#if defined(LANES)
// Threads of a warp that share a row.
constexpr u32 WARP_LANES = LANES < 32 ? LANES : 32;
// Neighbouring columns that a thread loads at once, and the number of such groups that it holds.
constexpr s32 VECTOR = COLUMNS % 4 == 0 ? 4 : 1;
constexpr s32 GROUPS = (COLUMNS + LANES * VECTOR - 1) / (LANES * VECTOR);

// Combines the values of the LANES threads of a row, each of which receives the result. If a row has the
// whole block, the warps exchange their values in shared memory.
template <class T, class Combine>
INLINE T combine_lanes(T x, Combine combine) {
#pragma unroll
    for (u32 mask = WARP_LANES / 2; mask > 0; mask /= 2) x = combine(x, shuffle_xor(x, mask));
    if constexpr (LANES > 32) {
        T* of_warp = reinterpret_cast<T*>(shared_memory());
        block_sync();
        if (thread_index() % WARP == 0) of_warp[thread_index() / WARP] = x;
        block_sync();
        x = of_warp[0];
#pragma unroll
        for (s32 i = 1; i < WARPS; i++) x = combine(x, of_warp[i]);
    }
    return x;
}

// A row of `x` in the registers of LANES threads.
struct RowInRegisters {
    f32 value[GROUPS][VECTOR];
    u64 first;
    s32 row, lane;
    // Whether the row exists. A thread without a row takes part in the exchanges, with the last row's values.
    bool live;

    INLINE s32 column(s32 group) const { return (group * LANES + lane) * VECTOR; }

    INLINE explicit RowInRegisters(const Params& p) {
        s32 thread = static_cast<s32>(thread_index());
        row = static_cast<s32>(block_x()) * (THREADS / LANES) + thread / LANES;
        lane = thread % LANES;
        live = row < p.rows;
        if (!live) row = p.rows - 1;
        first = static_cast<u64>(row) * COLUMNS;
#pragma unroll
        for (s32 g = 0; g < GROUPS; g++) {
            bool inside = column(g) < COLUMNS;
            if constexpr (VECTOR == 4) {
                f32x4 lowest = f32x4{from_bits(0xff800000u), from_bits(0xff800000u), from_bits(0xff800000u),
                                     from_bits(0xff800000u)};
                f32x4 v = inside ? *reinterpret_cast<const f32x4*>(p.x + first + column(g)) : lowest;
                value[g][0] = v.x, value[g][1] = v.y, value[g][2] = v.z, value[g][3] = v.w;
            } else {
                value[g][0] = inside ? p.x[first + column(g)] : from_bits(0xff800000u);
            }
        }
    }

    INLINE f32 largest() const {
        f32 found = value[0][0];
#pragma unroll
        for (s32 g = 0; g < GROUPS; g++)
#pragma unroll
            for (s32 i = 0; i < VECTOR; i++) found = max_f32(found, value[g][i]);
        return combine_lanes(found, [](f32 a, f32 b) { return max_f32(a, b); });
    }
};

// Several rows per warp, each in the registers of its threads: one read, one write. The exponentials are the
// GPU's, which take less time than those of the number contract.
KERNEL(softmax_rows)(const Params p) {
    RowInRegisters row(p);
    f32 largest = row.largest(), sum = 0.0f;
#pragma unroll
    for (s32 g = 0; g < GROUPS; g++) {
        bool inside = row.column(g) < COLUMNS;
#pragma unroll
        for (s32 i = 0; i < VECTOR; i++) {
            f32 e = exp2_approx((row.value[g][i] - largest) * from_bits(LOG2_E_BITS));
            row.value[g][i] = e;
            sum = sum + (inside ? e : 0.0f);
        }
    }
    f32 inverse = div_f32(1.0f, combine_lanes(sum, [](f32 a, f32 b) { return a + b; }));

    if (!row.live) return;
    f32* out = static_cast<f32*>(p.out) + row.first;
#pragma unroll
    for (s32 g = 0; g < GROUPS; g++) {
        if (row.column(g) >= COLUMNS) continue;
        const f32(&e)[VECTOR] = row.value[g];
        if constexpr (VECTOR == 4) {
            *reinterpret_cast<f32x4*>(out + row.column(g)) =
                f32x4{e[0] * inverse, e[1] * inverse, e[2] * inverse, e[3] * inverse};
        } else {
            out[row.column(g)] = e[0] * inverse;
        }
    }
}

// The probabilities of the INT8 attention (`reference::attention_row_u8`), with rows in registers: codes
// 255 e^(x - largest) and their integer sum.
KERNEL(softmax_codes)(const Params p) {
    RowInRegisters row(p);
    f32 largest = row.largest();
    u8* out = static_cast<u8*>(p.out) + row.first;
    u32 sum = 0;
#pragma unroll
    for (s32 g = 0; g < GROUPS; g++) {
        if (row.column(g) >= COLUMNS) continue;
        u32 packed = 0;
#pragma unroll
        for (s32 i = 0; i < VECTOR; i++) {
            f32 below = max_f32(row.value[g][i] - largest, from_bits(CODE_FLOOR_BITS));
            u32 code = static_cast<u32>(round_s32(exp_255(below)));
            sum = sum + code;
            packed = packed | code << (8 * i);
        }
        if (!row.live) continue;
        if constexpr (VECTOR == 4) {
            *reinterpret_cast<u32*>(out + row.column(g)) = packed;
        } else {
            out[row.column(g)] = static_cast<u8>(packed);
        }
    }
    sum = combine_lanes(sum, [](u32 a, u32 b) { return a + b; });
    if (row.live && row.lane == 0) p.sums[row.row] = sum;
}
#elif defined(COLUMNS)
// As `softmax_rows`, for short rows that begin at any multiple of 4 bytes. A block copies its rows, which are
// contiguous, through shared memory in accesses of 16 bytes; each thread computes one row. Rows of an odd
// number of columns are in different banks.
KERNEL(softmax_staged)(const Params p) {
    f32* shared = reinterpret_cast<f32*>(shared_memory());
    s32 thread = static_cast<s32>(thread_index()), first = static_cast<s32>(block_x()) * THREADS;
    s32 rows = p.rows - first < THREADS ? p.rows - first : THREADS, count = rows * COLUMNS;
    const f32* x = p.x + static_cast<u64>(first) * COLUMNS;
#pragma unroll
    for (s32 i = 0; i < (COLUMNS + 3) / 4; i++) {
        s32 at = 4 * (i * THREADS + thread);
        if (at < count) copy_async_16(shared + at, x + at, count - at < 4 ? 4 * (count - at) : 16);
    }
    copy_commit();
    copy_wait<0>();
    block_sync();
    if (thread < rows) {
        f32* row = shared + thread * COLUMNS;
        f32 value[COLUMNS], largest = from_bits(0xff800000u), sum = 0.0f;
#pragma unroll
        for (s32 i = 0; i < COLUMNS; i++) value[i] = row[i], largest = max_f32(largest, value[i]);
#pragma unroll
        for (s32 i = 0; i < COLUMNS; i++) {
            value[i] = exp2_approx((value[i] - largest) * from_bits(LOG2_E_BITS));
            sum = sum + value[i];
        }
        f32 inverse = div_f32(1.0f, sum);
#pragma unroll
        for (s32 i = 0; i < COLUMNS; i++) row[i] = value[i] * inverse;
    }
    block_sync();
    f32* out = static_cast<f32*>(p.out) + static_cast<u64>(first) * COLUMNS;
#pragma unroll
    for (s32 i = 0; i < (COLUMNS + 3) / 4; i++) {
        s32 at = 4 * (i * THREADS + thread);
        if (at + 4 <= count) {
            *reinterpret_cast<f32x4*>(out + at) = *reinterpret_cast<const f32x4*>(shared + at);
        } else {
            for (s32 j = at; j < count; j++) out[j] = shared[j];
        }
    }
}
#endif
