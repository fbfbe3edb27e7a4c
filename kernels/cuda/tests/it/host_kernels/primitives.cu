// Kernels that test the primitives of the CPU shim and the functions of `prelude.cuh`, and kernels with
// mistakes that must be detected. FAULT selects a mistake; 0 is none. PRODUCT selects the product: 0 mma_s8,
// 1 mma_u8s8, 2 mma_f16.
#include "prelude.cuh"

#if !defined(FAULT)
#define FAULT 0
#endif

struct Params {
    const void* in;
    void* out;
    // Number of elements of `in`.
    u32 n;
};

// For k < 5, `out[k][thread]` is the value of `in` from the lane whose index differs in bit k. `out[5]` is
// the sum of the low halves over the warp, in f32.
KERNEL(shuffle)(const Params p) {
    u32 t = block_x() * THREADS + thread_index();
    u32 value = static_cast<const u32*>(p.in)[t];
    u32* out = static_cast<u32*>(p.out);
    for (u32 k = 0; k < 5; k++) out[k * p.n + t] = shuffle_xor(value, 1 << k);
    f32 sum = static_cast<f32>(value & 0xffff);
    for (u32 mask = 16; mask > 0; mask /= 2) sum = sum + shuffle_xor(sum, mask);
    out[5 * p.n + t] = static_cast<u32>(sum);
}

// Matrix loads of 32 rows of 16 bytes: `out[transposed][thread][4]`. Each row is copied by the neighbour of
// the lane that passes its address.
KERNEL(matrix)(const Params p) {
    u8* shared = shared_memory();
    u32 t = thread_index();
    copy_async_16(shared + 16 * (t ^ 1), static_cast<const u8*>(p.in) + 16 * (t ^ 1), 16);
    copy_commit();
    copy_wait<0>();
#if FAULT == 0
    warp_sync();
#endif
    u32 direct[4], transposed[4];
    load_matrix_x4(direct, shared + 16 * t);
    load_matrix_x4_transposed(transposed, shared + 16 * t);
    for (u32 i = 0; i < 4; i++) {
        static_cast<u32*>(p.out)[4 * t + i] = direct[i];
        static_cast<u32*>(p.out)[128 + 4 * t + i] = transposed[i];
    }
}

#if !defined(PRODUCT)
#define PRODUCT 0
#endif
#if PRODUCT == 2
typedef f32 Sum;
#else
typedef s32 Sum;
#endif
// `c += a b` with matrices in memory: a is 16 rows of 32 bytes, b is 8 columns of 32 bytes, and c (the first
// part of `out`) is 16 x 8.
KERNEL(product)(const Params p) {
    u8* shared = shared_memory();
    u32 lane = thread_index();
    for (u32 i = lane; i < 48; i += 32) {
        copy_async_16(shared + 16 * i, static_cast<const u8*>(p.in) + 16 * i, 16);
    }
    copy_commit();
    copy_wait<0>();
    block_sync();
    u32 a[4], all[4];
    load_matrix_x4(a, shared + lane % 16 * 32 + lane / 16 * 16);
    load_matrix_x4(all, shared + 512 + lane % 8 * 32 + lane / 8 % 2 * 16);
    const u32 b[2] = {all[0], all[1]};
    Sum* at[4];
    Sum c[4];
    for (u32 i = 0; i < 4; i++) {
        at[i] = static_cast<Sum*>(p.out) + (lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2;
        c[i] = *at[i];
    }
#if PRODUCT == 0
    mma_s8(c, a, b);
#elif PRODUCT == 1
    mma_u8s8(c, a, b);
#else
    mma_f16(c, a, b);
#endif
    for (u32 i = 0; i < 4; i++) *at[i] = c[i];
}

// Copies `n` bytes in two stages; the last 16 bytes are partial and filled with zeros. Every thread writes
// the bytes that its neighbour copied.
KERNEL(copies)(const Params p) {
    u8* shared = shared_memory();
    u32 t = thread_index(), next = (t + 1) % THREADS;
    for (u32 stage = 0; stage < 2; stage++) {
        u32 at = 16 * (stage * THREADS + t);
        u32 valid = at >= p.n ? 0 : p.n - at < 16 ? p.n - at : 16;
        copy_async_16(shared + at, static_cast<const u8*>(p.in) + (valid == 0 ? 0 : at), valid);
        copy_commit();
    }
    for (u32 stage = 0; stage < 2; stage++) {
#if FAULT == 1
        copy_wait<1>();
#else
        if (stage == 0) copy_wait<1>();
        if (stage == 1) copy_wait<0>();
#endif
#if FAULT == 2
        if (stage == 0)
#endif
            block_sync();
        u32 at = 16 * (stage * THREADS + next);
        for (u32 i = 0; i < 16; i++) static_cast<u8*>(p.out)[at + i] = shared[at + i];
    }
}

// Kernels with one mistake each.
KERNEL(mistake)(const Params p) {
    u8* shared = shared_memory();
    u32* words = reinterpret_cast<u32*>(shared);
    u32 t = thread_index();
    u32* out = static_cast<u32*>(p.out);
    words[t] = t;
    block_sync();
#if FAULT == 3
    // Reads another warp's word without a barrier.
    words[t] = 2 * t;
    out[t] = words[(t + 32) % THREADS];
#elif FAULT == 4
    // Reads another lane's word without a `warp_sync`.
    words[t] = 2 * t;
    out[t] = words[t ^ 1];
#elif FAULT == 5
    // One lane does not take part in a collective.
    if (t != 37) out[t] = shuffle_xor(t, 1);
#elif FAULT == 6
    // A warp returns before a barrier.
    if (t >= 32) return;
    block_sync();
#elif FAULT == 7
    // Lanes of a warp are at different collectives.
    if (t % 32 < 16) {
        out[t] = shuffle_xor(t, 1);
    } else {
        out[t] = shuffle_xor(t, 2);
    }
#elif FAULT == 8
    // Reads a word that was never written.
    out[t] = words[THREADS];
#elif FAULT == 9
    // Reads a word beyond the shared memory.
    out[t] = words[THREADS + 1];
#elif FAULT == 10
    // Writes a word beyond a buffer.
    out[t + 1] = t;
#elif FAULT == 11
    copy_async_16(shared + 16, static_cast<const u8*>(p.in) + 4, 16);
#elif FAULT == 12
    copy_async_16(shared + 8, p.in, 16);
#elif FAULT == 13
    copy_async_16(shared + 4 * THREADS, p.in, 16);
#elif FAULT == 14
    // Several blocks write the same words.
    out[t] = block_x();
#elif FAULT == 15
    // Writes to the destination of a copy in flight.
    copy_async_16(shared + 16 * t, p.in, 16);
    copy_commit();
    words[4 * t] = 1;
    copy_wait<0>();
#else
    out[t] = words[(t + 32) % THREADS];
#endif
}

// Copies words that an earlier launch writes. Mistakes: reads them before the wait; never waits.
KERNEL(dependent)(const Params p) {
    u32 t = thread_index();
#if FAULT == 0
    wait_for_previous();
#endif
    u32 value = FAULT == 2 ? 0 : static_cast<const u32*>(p.in)[t];
    static_cast<u32*>(p.out)[t] = value;
}

// Converts `n` f32 values. Six words each: the bits of the nearest half, that half as f32, the nearest
// integer, the code, and the minimum and the maximum of the value and the next one.
KERNEL(conversions)(const Params p) {
    const f32* in = static_cast<const f32*>(p.in);
    u32* out = static_cast<u32*>(p.out);
    for (u32 i = block_x() * THREADS + thread_index(); i < p.n; i += blocks_x() * THREADS) {
        f32 x = in[i], other = in[(i + 1) % p.n];
        u16 half = f32_to_half(x);
        out[6 * i] = half;
        out[6 * i + 1] = bits(half_to_f32(half));
        out[6 * i + 2] = static_cast<u32>(round_s32(x));
        out[6 * i + 3] = bits(code_f32(x));
        out[6 * i + 4] = bits(min_f32(x, other));
        out[6 * i + 5] = bits(max_f32(x, other));
    }
}

// Packs `n` groups of four f32 values. Three words each: the codes by both functions, and the values
// saturated to u8.
KERNEL(packs)(const Params p) {
    const f32* in = static_cast<const f32*>(p.in);
    u32* out = static_cast<u32*>(p.out);
    for (u32 i = thread_index(); i < p.n; i += THREADS) {
        const f32* x = in + 4 * i;
        out[3 * i] = codes_s8x4(x[0], x[1], x[2], x[3]);
        out[3 * i + 1] = codes_of_numbers(x[0], x[1], x[2], x[3]);
        out[3 * i + 2] = pack_u8x4(round_s32(x[0]), round_s32(x[1]), round_s32(x[2]), round_s32(x[3]));
    }
}

// For each of `n` f32 values: `gelu_fast`, the power of two, and the sum of its four bytes and `i`.
KERNEL(fast)(const Params p) {
    const f32* in = static_cast<const f32*>(p.in);
    f32* out = static_cast<f32*>(p.out);
    for (u32 i = block_x() * THREADS + thread_index(); i < p.n; i += blocks_x() * THREADS) {
        out[3 * i] = gelu_fast(in[i]);
        out[3 * i + 1] = exp2_approx(in[i]);
        out[3 * i + 2] = from_bits(add_bytes(bits(in[i]), i));
    }
}

// For each block, its index in x and y and the size of the grid in x and y.
KERNEL(places)(const Params p) {
    u32* out = static_cast<u32*>(p.out) + 4 * (block_y() * blocks_x() + block_x());
    const u32 place[4] = {block_x(), block_y(), blocks_x(), blocks_y()};
    if (thread_index() < 4) out[thread_index()] = place[thread_index()];
}

// For each of `n` f32 values: GELU in both forms, and `exp_below` and `exp_255` of minus its magnitude, which
// is limited to 60 and to 11.
KERNEL(functions)(const Params p) {
    f32* tail = reinterpret_cast<f32*>(shared_memory());
    f32* quadratic = tail + TAIL_FLOATS;
    load_tail(tail, THREADS);
    load_quadratic(quadratic, THREADS);
    block_sync();
    const f32* in = static_cast<const f32*>(p.in);
    f32* out = static_cast<f32*>(p.out);
    for (u32 i = block_x() * THREADS + thread_index(); i < p.n; i += blocks_x() * THREADS) {
        out[4 * i] = gelu(in[i], tail);
        out[4 * i + 1] = gelu_quadratic(in[i], quadratic);
        out[4 * i + 2] = exp_below(max_f32(-abs_f32(in[i]), from_bits(FLOOR_BITS)));
        out[4 * i + 3] = exp_255(max_f32(-abs_f32(in[i]), from_bits(CODE_FLOOR_BITS)));
    }
}
