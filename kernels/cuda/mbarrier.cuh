// Barriers in shared memory whose phases end by arrivals, of copies too; roles of warpgroups (sm_90a). Not for the host.
#pragma once

#include "prelude.cuh"

INLINE u32 shared_address(const void* at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }

// A phase of `barrier` ends with `count` arrivals. One thread does this, and a barrier of the block follows.
INLINE void mbarrier_init(u64* barrier, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
INLINE void mbarrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives when the copies that this thread has started are done.
INLINE void mbarrier_arrive_copies(u64* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Waits for the end of the phase of this parity: 0 is the first.
INLINE void mbarrier_wait(u64* barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@done bra DONE;\nbra AGAIN;\nDONE:\n}\n"
        ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

// A barrier of `threads` threads, whole warps: those that name the same `id`, from 1 to 15.
template <int threads>
INLINE void barrier_sync(s32 id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(threads) : "memory");
}

// The warpgroup of this thread, by what the compiler knows to be the same for the whole of it.
INLINE s32 warpgroup() { return __shfl_sync(0xffffffffu, static_cast<s32>(threadIdx.x / 128), 0); }

// Registers of each thread of this warpgroup from here on.
template <int registers>
INLINE void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
INLINE void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
