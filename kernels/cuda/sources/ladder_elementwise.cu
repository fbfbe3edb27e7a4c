// The ladder of elementwise ops, whose speed is limited by memory bandwidth. `swinq bench elementwise`
// measures them; no engine runs them.
//
// A thread of a vectorised op processes every `blocks * THREADS`-th group of neighbouring elements; the
// elements after the last full group are processed by the first threads. A thread of the other ops loads
// UNROLL elements, THREADS apart, before it stores any, so that enough loads are in flight.
//
// Defines: THREADS.
#include "prelude.cuh"

struct Params {
    // f32 or f16 `[count]`.
    const void* x;
    const void* y;
    // f32, f16 or s8 `[count]`.
    void* out;
    u64 count;
    f32 scale;
};

INLINE u64 first_index() { return static_cast<u64>(block_x()) * THREADS + thread_index(); }
INLINE u64 threads_of_grid() { return static_cast<u64>(blocks_x()) * THREADS; }

// Calls `group` with the index of every full group of `SIZE` elements, and `one` with the index of each
// remaining element.
template <u64 SIZE, class Group, class One>
INLINE void for_groups(u64 count, Group group, One one) {
    u64 groups = count / SIZE, first = first_index();
    for (u64 i = first; i < groups; i += threads_of_grid()) group(i);
    if (first < count % SIZE) one(groups * SIZE + first);
}

INLINE f32 scale_add_of(f32 x, f32 y, f32 scale) { return fma_f32(x, scale, y); }

constexpr u64 UNROLL = 4;

// Writes `of(index)` to `out[index]` for every index below `count`.
template <class Of>
INLINE void for_elements(f32* out, u64 count, Of of) {
    u64 first = static_cast<u64>(block_x()) * THREADS * UNROLL + thread_index();
    f32 results[UNROLL];
#pragma unroll
    for (u64 i = 0; i < UNROLL; i++) {
        u64 index = first + i * THREADS;
        results[i] = index < count ? of(index) : 0.0f;
    }
#pragma unroll
    for (u64 i = 0; i < UNROLL; i++) {
        u64 index = first + i * THREADS;
        if (index < count) out[index] = results[i];
    }
}

KERNEL(copy_f32)(const Params p) {
    const f32* x = static_cast<const f32*>(p.x);
    for_elements(static_cast<f32*>(p.out), p.count, [&](u64 i) { return x[i]; });
}

KERNEL(copy_f32x4)(const Params p) {
    const f32* x = static_cast<const f32*>(p.x);
    f32* out = static_cast<f32*>(p.out);
    for_groups<4>(
        p.count, [&](u64 i) { reinterpret_cast<f32x4*>(out)[i] = reinterpret_cast<const f32x4*>(x)[i]; },
        [&](u64 i) { out[i] = x[i]; });
}

KERNEL(scale_add_f32)(const Params p) {
    const f32 *x = static_cast<const f32*>(p.x), *y = static_cast<const f32*>(p.y);
    for_elements(static_cast<f32*>(p.out), p.count, [&](u64 i) { return scale_add_of(x[i], y[i], p.scale); });
}

KERNEL(scale_add_f32x4)(const Params p) {
    const f32 *x = static_cast<const f32*>(p.x), *y = static_cast<const f32*>(p.y);
    f32* out = static_cast<f32*>(p.out);
    auto group = [&](u64 i) {
        f32x4 a = reinterpret_cast<const f32x4*>(x)[i], b = reinterpret_cast<const f32x4*>(y)[i];
        reinterpret_cast<f32x4*>(out)[i] = f32x4{scale_add_of(a.x, b.x, p.scale), scale_add_of(a.y, b.y, p.scale),
                                                 scale_add_of(a.z, b.z, p.scale), scale_add_of(a.w, b.w, p.scale)};
    };
    for_groups<4>(p.count, group, [&](u64 i) { out[i] = scale_add_of(x[i], y[i], p.scale); });
}

KERNEL(gelu_f32x4)(const Params p) {
    f32* tail = reinterpret_cast<f32*>(shared_memory());
    load_tail(tail, THREADS);
    block_sync();
    const f32* x = static_cast<const f32*>(p.x);
    f32* out = static_cast<f32*>(p.out);
    auto group = [&](u64 i) {
        f32x4 v = reinterpret_cast<const f32x4*>(x)[i];
        reinterpret_cast<f32x4*>(out)[i] = f32x4{gelu(v.x, tail), gelu(v.y, tail), gelu(v.z, tail), gelu(v.w, tail)};
    };
    for_groups<4>(p.count, group, [&](u64 i) { out[i] = gelu(x[i], tail); });
}

// `scale` is the reciprocal of the quantization scale.
KERNEL(quantize_s8)(const Params p) {
    const f32* x = static_cast<const f32*>(p.x);
    s8* out = static_cast<s8*>(p.out);
    auto group = [&](u64 i) {
        f32 v[8];
        load8(v, x + 8 * i);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = v[j] * p.scale;
        store8(out + 8 * i, v);
    };
    for_groups<8>(p.count, group,
                  [&](u64 i) { out[i] = static_cast<s8>(static_cast<s32>(code_f32(x[i] * p.scale))); });
}

// Adds halves in f32 and rounds the sum once.
KERNEL(add_f16x8)(const Params p) {
    const u16 *x = static_cast<const u16*>(p.x), *y = static_cast<const u16*>(p.y);
    u16* out = static_cast<u16*>(p.out);
    auto group = [&](u64 i) {
        f32 a[8], b[8];
        load8(a, x + 8 * i);
        load8(b, y + 8 * i);
#pragma unroll
        for (int j = 0; j < 8; j++) a[j] = a[j] + b[j];
        store8(out + 8 * i, a);
    };
    for_groups<8>(p.count, group, [&](u64 i) { out[i] = f32_to_half(half_to_f32(x[i]) + half_to_f32(y[i])); });
}
