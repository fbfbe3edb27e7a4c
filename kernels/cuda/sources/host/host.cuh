// The primitives of `device.cuh` on a CPU, for kernels compiled with SWINQ_HOST. They have the same names but
// are stricter: a copy is performed only when its thread waits, a collective needs every lane, and addresses
// must be aligned and inside shared memory.
#pragma once

#include "runtime.hpp"

typedef signed char s8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef short s16;
typedef int s32;
typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

#define KERNEL(name) extern "C" void name
#define INLINE inline
#define CONSTANT static const

struct alignas(16) u32x4 {
    u32 x, y, z, w;
};
struct alignas(8) u32x2 {
    u32 x, y;
};
struct alignas(8) f32x2 {
    f32 x, y;
};
struct alignas(16) f32x4 {
    f32 x, y, z, w;
};

INLINE u8* shared_memory() { return host::block.shared; }
INLINE u32 thread_index() { return host::block.thread; }
INLINE u32 block_x() { return host::block.index[0]; }
INLINE u32 block_y() { return host::block.index[1]; }
INLINE u32 blocks_x() { return host::block.grid[0]; }
INLINE u32 blocks_y() { return host::block.grid[1]; }
INLINE void block_sync() { host::barrier(0); }
template <u32 threads>
INLINE void group_sync() {
    host::barrier(threads);
}

INLINE u32 bits(f32 x) {
    u32 word;
    __builtin_memcpy(&word, &x, sizeof word);
    return word;
}
INLINE f32 from_bits(u32 word) {
    f32 x;
    __builtin_memcpy(&x, &word, sizeof x);
    return x;
}

// Simulates the largest error that a GPU may make: the result is off by up to two units in the last place, by
// an amount that depends on `x` alone. Subnormal results become 0.
INLINE f32 exp2_approx(f32 x) {
    f32 y = __builtin_exp2f(x);
    if (y < 0x1p-126f) return 0.0f;
    if (x != 0.0f && y < 0x1p127f) y = from_bits(bits(y) + (bits(x) * 2654435761u >> 16) % 5 - 2);
    return y;
}
INLINE u32 add_bytes(u32 word, u32 sum) {
    return sum + (word & 255) + (word >> 8 & 255) + (word >> 16 & 255) + (word >> 24);
}

// Every operation is rounded separately, because -ffp-contract=off forbids contraction.
INLINE f32 fma_f32(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
INLINE f32 div_f32(f32 a, f32 b) { return a / b; }
INLINE f32 fma_saturated_f32(f32 a, f32 b, f32 c) {
    f32 y = fma_f32(a, b, c);
    return y > 0.0f ? y < 1.0f ? y : 1.0f : 0.0f;
}
INLINE f32 rsqrt_f32(f32 x) { return 1.0f / __builtin_sqrtf(x); }
INLINE f32 rsqrt_approx(f32 x) { return rsqrt_f32(x); }
INLINE f32 sqrt_f32(f32 x) { return __builtin_sqrtf(x); }
INLINE f32 rint_f32(f32 x) { return __builtin_rintf(x); }
INLINE f32 abs_f32(f32 x) { return from_bits(bits(x) & 0x7fffffffu); }
INLINE f32 to_f32(s32 x) { return static_cast<f32>(x); }

// If one operand is a NaN, the result is the other; -0 is less than 0.
template <class T>
INLINE T host_min(T a, T b) {
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return __builtin_signbit(a) ? a : b;
    return a < b ? a : b;
}
INLINE f32 min_f32(f32 a, f32 b) { return host_min(a, b); }
INLINE f32 max_f32(f32 a, f32 b) { return -host_min(-a, -b); }
INLINE f64 sqrt_f64(f64 x) { return __builtin_sqrt(x); }
INLINE f64 div_f64(f64 a, f64 b) { return a / b; }
INLINE f64 exp_f64(f64 x) { return __builtin_exp(x); }
INLINE f64 log_f64(f64 x) { return __builtin_log(x); }
INLINE f64 max_f64(f64 a, f64 b) { return -host_min(-a, -b); }

INLINE s32 round_s32(f32 x) {
    if (x != x) return 0;
    if (x >= 2147483648.0f) return 2147483647;
    if (x <= -2147483648.0f) return -2147483647 - 1;
    return static_cast<s32>(__builtin_rintf(x));
}

INLINE f32 half_to_f32(u16 h) {
    u32 sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    if (magnitude > 0x7c00u) return from_bits(0x7fffffffu);
    if (magnitude == 0x7c00u) return from_bits(sign | 0x7f800000u);
    // Subnormal halves are multiples of 2^-24.
    if (magnitude < 0x400u) return from_bits(sign | bits(static_cast<f32>(magnitude) * 0x1p-24f));
    return from_bits(sign | ((magnitude << 13) + 0x38000000u));
}
INLINE u16 f32_to_half(f32 x) {
    u32 sign = bits(x) >> 16 & 0x8000u, magnitude = bits(x) & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
    if (magnitude >= 0x477ff000u) return static_cast<u16>(sign | 0x7c00u);
    // Subnormal halves: the last bit of an f32 near 0.5 is 2^-24, so adding 0.5 rounds to a multiple of it.
    if (magnitude < 0x38800000u) return static_cast<u16>(sign | (bits(from_bits(magnitude) + 0.5f) - 0x3f000000u));
    u32 even = magnitude >> 13 & 1;
    return static_cast<u16>(sign | ((magnitude - 0x38000000u + 0xfffu + even) >> 13));
}
INLINE u32 pack_half2(f32 low, f32 high) {
    return static_cast<u32>(f32_to_half(low)) | static_cast<u32>(f32_to_half(high)) << 16;
}

INLINE u32 pack_half2_finite(f32 low, f32 high) {
    return pack_half2(max_f32(min_f32(low, 65504.0f), -65504.0f), max_f32(min_f32(high, 65504.0f), -65504.0f));
}

// Applies `f` to each half of the words. A NaN stays a NaN in `pack_half2`. Sums of products of halves are
// rounded to f32 first, which may differ from a single rounding in the last place of the half.
template <class F, class... Words>
INLINE u32 host_halves(F f, Words... words) {
    return pack_half2(f(half_to_f32(static_cast<u16>(words))...), f(half_to_f32(static_cast<u16>(words >> 16))...));
}
INLINE u32 mul_half2(u32 a, u32 b) {
    return host_halves([](f32 x, f32 y) { return x * y; }, a, b);
}
INLINE u32 fma_half2(u32 a, u32 b, u32 c) {
    return host_halves([](f32 x, f32 y, f32 z) { return fma_f32(x, y, z); }, a, b, c);
}
INLINE u32 min_half2(u32 a, u32 b) {
    return host_halves([](f32 x, f32 y) { return min_f32(x, y); }, a, b);
}
INLINE u32 max_half2(u32 a, u32 b) {
    return host_halves([](f32 x, f32 y) { return max_f32(x, y); }, a, b);
}
// Simulates the largest error that a GPU may make: the result is off by up to one unit in the last place, by
// an amount that depends on `x` alone.
INLINE u32 tanh_half2(u32 x) {
    auto tanh = [](f32 y) {
        u16 exact = f32_to_half(__builtin_tanhf(y));
        bool off = (exact & 0x7fffu) > 0x400u && (exact & 0x7fffu) < 0x3c00u;
        return half_to_f32(off ? static_cast<u16>(exact + (bits(y) * 2654435761u >> 16) % 3 - 1) : exact);
    };
    return host_halves(tanh, x);
}

INLINE u32 host_saturated(s32 x, s32 low, s32 high) {
    return static_cast<u32>(x < low ? low : x > high ? high : x) & 0xffu;
}
INLINE u32 pack_s8x4(s32 a, s32 b, s32 c, s32 d) {
    return host_saturated(a, -128, 127) | host_saturated(b, -128, 127) << 8 | host_saturated(c, -128, 127) << 16 |
           host_saturated(d, -128, 127) << 24;
}
INLINE u32 pack_u8x4(s32 a, s32 b, s32 c, s32 d) {
    return host_saturated(a, 0, 255) | host_saturated(b, 0, 255) << 8 | host_saturated(c, 0, 255) << 16 |
           host_saturated(d, 0, 255) << 24;
}
// The fourth bit of a selector nibble replicates the sign bit of the selected byte.
INLINE s32 count_bits(u64 x) { return __builtin_popcountll(x); }
INLINE u32 byte_permute(u32 low, u32 high, u32 selector) {
    u64 from = static_cast<u64>(high) << 32 | low;
    u32 out = 0;
    for (u32 i = 0; i < 4; i++) {
        u32 nibble = selector >> 4 * i & 15;
        u32 byte = static_cast<u32>(from >> 8 * (nibble & 7)) & 0xffu;
        if (nibble & 8) byte = byte & 0x80u ? 0xffu : 0;
        out |= byte << 8 * i;
    }
    return out;
}

INLINE void raise_flag(u32* flag) { __atomic_store_n(flag, 1u, __ATOMIC_RELAXED); }

// Launches run one after the other here, so there is no overlap to start.
INLINE void launch_dependents() {}
INLINE void wait_for_previous() { host::wait_for_previous(); }

INLINE void copy_async_16(void* shared, const void* global, u32 valid) { host::start_copy(shared, global, valid); }
INLINE void copy_commit() { host::commit_copies(); }
template <int newest>
INLINE void copy_wait() {
    host::wait_for_copies(newest);
}

#include "warp.hpp"
