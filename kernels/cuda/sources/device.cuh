// The GPU primitives that kernels use; only this header and those for sm_90a contain inline PTX.
// `host/host.cuh` defines the same names for a CPU, so that kernels also run there. It includes no
// toolkit header, so that NVRTC works without the toolkit.
#pragma once

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

// If MIN_BLOCKS is defined, the compiler limits registers so that a multiprocessor can hold this many blocks.
#if defined(MIN_BLOCKS)
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) name
#else
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS) name
#endif
#define INLINE __device__ __forceinline__
#define CONSTANT static __device__ const

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

// The dynamic shared memory of the block, aligned to 128 bytes.
INLINE u8* shared_memory() {
    extern __shared__ __align__(128) u8 dynamic_shared[];
    return dynamic_shared;
}

INLINE u32 thread_index() { return threadIdx.x; }
INLINE u32 block_x() { return blockIdx.x; }
INLINE u32 block_y() { return blockIdx.y; }
INLINE u32 blocks_x() { return gridDim.x; }
INLINE u32 blocks_y() { return gridDim.y; }
INLINE void block_sync() { __syncthreads(); }
// A barrier of the group of `threads` threads that this thread belongs to: those with the same
// thread_index() / threads. A block has at most 15 groups.
template <u32 threads>
INLINE void group_sync() {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + threadIdx.x / threads), "n"(threads) : "memory");
}
INLINE void warp_sync() { __syncwarp(); }

// Returns the value of the lane whose index is this lane's index ^ mask. Every lane must take part.
INLINE f32 shuffle_xor(f32 v, u32 mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
INLINE u32 shuffle_xor(u32 v, u32 mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }

// Whether `x` is not 0 in any lane. Every lane must take part.
INLINE bool any_lane(u32 x) { return __any_sync(0xffffffffu, x != 0); }

// f32 operations, each rounded once, to nearest even.
INLINE f32 fma_f32(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
// a b + c, clamped to [0, 1]; a NaN becomes 0.
INLINE f32 fma_saturated_f32(f32 a, f32 b, f32 c) {
    f32 y;
    asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
    return y;
}
INLINE f32 div_f32(f32 a, f32 b) { return __fdiv_rn(a, b); }
INLINE f32 min_f32(f32 a, f32 b) { return fminf(a, b); }
INLINE f32 max_f32(f32 a, f32 b) { return fmaxf(a, b); }
INLINE f32 rsqrt_f32(f32 x) { return __fdiv_rn(1.0f, __fsqrt_rn(x)); }
INLINE f32 sqrt_f32(f32 x) { return __fsqrt_rn(x); }
// 1 / sqrt(x) with an error of about two units in the last place.
INLINE f32 rsqrt_approx(f32 x) {
    f32 y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Rounds to the nearest integer, ties to even.
INLINE f32 rint_f32(f32 x) { return rintf(x); }
INLINE f64 sqrt_f64(f64 x) { return __dsqrt_rn(x); }
INLINE f64 div_f64(f64 a, f64 b) { return __ddiv_rn(a, b); }
INLINE f64 max_f64(f64 a, f64 b) { return fmax(a, b); }
// With an error of at most one unit in the last place.
INLINE f64 exp_f64(f64 x) { return exp(x); }
INLINE f64 log_f64(f64 x) { return log(x); }
// 2^x with an error of about two units in the last place; subnormal results become 0.
INLINE f32 exp2_approx(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
INLINE u32 bits(f32 x) { return __float_as_uint(x); }
INLINE f32 from_bits(u32 x) { return __uint_as_float(x); }
INLINE f32 abs_f32(f32 x) { return from_bits(bits(x) & 0x7fffffffu); }
// Converts to the nearest integer, ties to even; saturates; a NaN becomes 0.
INLINE s32 round_s32(f32 x) { return __float2int_rn(x); }
INLINE f32 to_f32(s32 x) { return __int2float_rn(x); }

// Conversions of half precision, held as bits.
INLINE f32 half_to_f32(u16 h) {
    f32 x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
INLINE u16 f32_to_half(f32 x) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
// Packs two halves into a word, the first in the low bits.
INLINE u32 pack_half2(f32 low, f32 high) {
    return static_cast<u32>(f32_to_half(low)) | static_cast<u32>(f32_to_half(high)) << 16;
}

// As `pack_half2`, but values beyond the range of f16 become the largest finite halves.
INLINE u32 pack_half2_finite(f32 low, f32 high) {
#if __CUDA_ARCH__ >= 800
    u32 pair;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return pack_half2(fminf(fmaxf(low, -65504.0f), 65504.0f), fminf(fmaxf(high, -65504.0f), 65504.0f));
#endif
}

// Operations on pairs of halves, each rounded once, to nearest even.
INLINE u32 mul_half2(u32 a, u32 b) {
    u32 pair;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
}
INLINE u32 fma_half2(u32 a, u32 b, u32 c) {
    u32 pair;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(c));
    return pair;
}
INLINE u32 min_half2(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 800
    u32 pair;
    asm("min.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
#else
    f32 low = fminf(half_to_f32(static_cast<u16>(a)), half_to_f32(static_cast<u16>(b)));
    f32 high = fminf(half_to_f32(static_cast<u16>(a >> 16)), half_to_f32(static_cast<u16>(b >> 16)));
    return pack_half2(low, high);
#endif
}
INLINE u32 max_half2(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 800
    u32 pair;
    asm("max.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
#else
    f32 low = fmaxf(half_to_f32(static_cast<u16>(a)), half_to_f32(static_cast<u16>(b)));
    f32 high = fmaxf(half_to_f32(static_cast<u16>(a >> 16)), half_to_f32(static_cast<u16>(b >> 16)));
    return pack_half2(low, high);
#endif
}
// The hyperbolic tangent of two halves, with an error of about one unit in the last place.
INLINE u32 tanh_half2(u32 x) {
    u32 pair;
    asm("tanh.approx.f16x2 %0, %1;" : "=r"(pair) : "r"(x));
    return pair;
}

// Saturates four integers to [-128, 127] and packs them, the first in the low byte.
INLINE u32 pack_s8x4(s32 a, s32 b, s32 c, s32 d) {
    u32 high, all;
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(high) : "r"(d), "r"(c), "r"(0));
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(b), "r"(a), "r"(high));
    return all;
}
// Saturates four integers to [0, 255] and packs them, the first in the low byte.
INLINE u32 pack_u8x4(s32 a, s32 b, s32 c, s32 d) {
    u32 high, all;
    asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(high) : "r"(d), "r"(c), "r"(0));
    asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(b), "r"(a), "r"(high));
    return all;
}
// Adds the four bytes of `word` to `sum`.
INLINE u32 add_bytes(u32 word, u32 sum) { return __dp4a(word, 0x01010101u, sum); }
INLINE s32 count_bits(u64 x) { return __popcll(x); }
// Selects four of the eight bytes in (low, high) by the nibbles of `selector`.
INLINE u32 byte_permute(u32 low, u32 high, u32 selector) { return __byte_perm(low, high, selector); }

// Copies the first `valid` of 16 bytes from global to shared memory and fills the rest with zeros. Both
// addresses must be 16-byte aligned.
INLINE void copy_async_16(void* shared, const void* global, u32 valid) {
#if __CUDA_ARCH__ >= 800
    u32 address = static_cast<u32>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(valid) : "memory");
#else
    u32x4 value = {0, 0, 0, 0};
    if (valid == 16) {
        value = *static_cast<const u32x4*>(global);
    } else {
        u32 words[4] = {0, 0, 0, 0};
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            if (i < valid) words[i / 4] |= static_cast<u32>(static_cast<const u8*>(global)[i]) << (8 * (i % 4));
        }
        value = u32x4{words[0], words[1], words[2], words[3]};
    }
    *static_cast<u32x4*>(shared) = value;
#endif
}
// Commits the copies started so far as a group.
INLINE void copy_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until all groups of this thread are done, except the `newest` last ones.
template <int newest>
INLINE void copy_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(newest) : "memory");
#endif
}

// Loads four 8x8 matrices of 16-bit elements (8 rows of 16 bytes). Lane i passes the address of row i % 8 of
// matrix i / 8. It receives elements 2 (i % 4) and 2 (i % 4) + 1 of row i / 4 of each matrix.
INLINE void load_matrix_x4(u32 (&out)[4], const void* row) {
    u32 address = static_cast<u32>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
}
// As `load_matrix_x4`, but each matrix is transposed.
INLINE void load_matrix_x4_transposed(u32 (&out)[4], const void* row) {
    u32 address = static_cast<u32>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
}

// Matrix products of a warp, 16 x 8 with 32 bytes of k. `a` has 16 rows of 32 bytes; its registers hold rows
// 0-7 and 8-15 of the first 16 bytes, then of the last 16. `b` has 8 columns of 32 bytes. `c` has the 16 x 8
// sums. Lane i holds bytes 4 (i % 4) to 4 (i % 4) + 3 of rows i / 4 and i / 4 + 8 of `a` and of column i / 4
// of `b`. Of `c` it holds columns 2 (i % 4) and 2 (i % 4) + 1 of rows i / 4 (c[0], c[1]) and i / 4 + 8 (c[2],
// c[3]).
#if __CUDA_ARCH__ >= 800
#define SWINQ_MMA_I8(name, type)                                                                                     \
    INLINE void name(s32(&c)[4], const u32(&a)[4], const u32(&b)[2]) {                                               \
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." type ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, " \
                     "{%0,%1,%2,%3};"                                                                                \
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                                \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                            \
    }
#else
#define SWINQ_MMA_I8(name, type)                                                                                  \
    INLINE void name##_half(s32& c0, s32& c1, u32 a, u32 b) {                                                     \
        asm volatile("mma.sync.aligned.m8n8k16.row.col.s32." type ".s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"         \
                     : "+r"(c0), "+r"(c1)                                                                         \
                     : "r"(a), "r"(b));                                                                           \
    }                                                                                                             \
    INLINE void name(s32(&c)[4], const u32(&a)[4], const u32(&b)[2]) {                                            \
        name##_half(c[0], c[1], a[0], b[0]);                                                                      \
        name##_half(c[2], c[3], a[1], b[0]);                                                                      \
        name##_half(c[0], c[1], a[2], b[1]);                                                                      \
        name##_half(c[2], c[3], a[3], b[1]);                                                                      \
    }
#endif
SWINQ_MMA_I8(mma_s8, "s8")
SWINQ_MMA_I8(mma_u8s8, "u8")

// The same product for f16: 32 bytes of k are 16 halves, and sums are f32.
INLINE void mma_f16(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
}

// Sets a word to 1. Several threads may set the same word.
INLINE void raise_flag(u32* flag) { *static_cast<volatile u32*>(flag) = 1; }

// Starts to load the line of 128 bytes at `address` into the L2 cache.
INLINE void prefetch_line(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

// Programmatic dependent launch: `launch_dependents` lets the next kernel of the stream start, and
// `wait_for_previous` waits for the end of the previous kernel. Both have no effect if the launch did not ask
// for overlap.
INLINE void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
INLINE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
