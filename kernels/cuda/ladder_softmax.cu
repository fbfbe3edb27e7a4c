// The ladder of softmax over rows of f32 `[rows, columns]`. `swinq bench softmax` measures it; no engine runs
// it.
//
// Defines: THREADS.
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

// The probabilities of the INT8 attention (`reference::attention_row_u8`), one warp per row: codes 255 e^(x -
// largest) and their integer sum.
KERNEL(softmax_codes)(const Params p) {
    s32 row = row_of_warp();
    if (row >= p.rows) return;
    const f32* x = p.x + static_cast<u64>(row) * p.columns;
    u8* out = static_cast<u8*>(p.out) + static_cast<u64>(row) * p.columns;
    s32 lane = static_cast<s32>(thread_index() % WARP);

    f32 largest = from_bits(0xff800000u);
    for (s32 i = lane; i < p.columns; i += WARP) largest = max_f32(largest, x[i]);
    largest = warp_max(largest);

    u32 sum = 0;
    for (s32 i = lane; i < p.columns; i += WARP) {
        s32 code = round_s32(255.0f * exp_of(x[i], largest));
        out[i] = static_cast<u8>(code);
        sum = sum + static_cast<u32>(code);
    }
    sum = warp_sum(sum);
    if (lane == 0) p.sums[row] = sum;
}
