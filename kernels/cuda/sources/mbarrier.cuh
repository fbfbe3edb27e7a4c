// Barriers in shared memory whose phases end by arrivals of threads and of asynchronous copies, and register
// allocation per warpgroup (sm_90a). Not available on the host.
#pragma once

#include "prelude.cuh"

INLINE u32 shared_address(const void* at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }

// Initialises `barrier`: each of its phases ends after `count` arrivals. One thread calls it, and a
// `block_sync` must follow.
INLINE void mbarrier_init(u64* barrier, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
INLINE void mbarrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and lets the phase also wait for `bytes` bytes of bulk copies.
INLINE void mbarrier_arrive_expecting(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Starts a copy of `bytes` bytes (a multiple of 16, as the addresses) to shared memory, which `barrier`
// counts. One thread calls it.
INLINE void copy_bulk(void* to, const void* from, u32 bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}
// A matrix of bytes in global memory as the copy engine sees it: its address, sizes and stride, and the box
// that one copy takes. The driver encodes it (`tensor_map.rs`).
struct alignas(64) TensorMap {
    u64 words[16];
};
// Starts the copy of a box to shared memory, which `barrier` counts: the box's 128 bytes from byte `k` on of
// its rows from `row` on, in the 128-byte swizzle (`tile_descriptor`). What lies outside the matrix is filled
// with zeros, and counted. `map` is in the kernel's parameters. One thread calls it.
INLINE void copy_box(void* to, const TensorMap& map, s32 k, s32 row, u64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            shared_address(to)),
        "l"(&map), "r"(k), "r"(row), "r"(shared_address(barrier))
        : "memory");
}
// Makes initialised barriers visible to bulk copies.
INLINE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Waits for the end of the phase with this parity; the first phase has parity 0.
INLINE void mbarrier_wait(u64* barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@done bra DONE;\nbra AGAIN;\nDONE:\n}\n"
        ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

// A barrier for `threads` threads, which must form full warps and pass the same `id`, from 1 to 15.
template <int threads>
INLINE void barrier_sync(s32 id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(threads) : "memory");
}

// Index of this thread's warpgroup. The shuffle tells the compiler that it is uniform within a warp.
INLINE s32 warpgroup() { return __shfl_sync(0xffffffffu, static_cast<s32>(threadIdx.x / 128), 0); }

// Sets the number of registers of each thread of this warpgroup.
template <int registers>
INLINE void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
INLINE void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
