// Functions that the primitives of `host.cuh` need from the program that runs a kernel on a CPU (`block.cpp`,
// `copy.cpp`, `warp.cpp`, `runner.cpp`). It includes no library header, because kernels are compiled many
// times, with different defines.
#pragma once

namespace host {

typedef __SIZE_TYPE__ size;

constexpr unsigned LANES = 32;

// The block that is running.
struct Block {
    unsigned grid[3], index[3];
    // Its shared memory.
    unsigned char* shared;
    size shared_bytes;
    // The thread that is running.
    unsigned thread;
    // The byte that fills uninitialised memory.
    unsigned char garbage;
};
extern Block block;

// Ends the process with a message that names the kernel, the block and the running thread.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);

// Fails unless the `bytes` bytes at `at` are in the block's shared memory and aligned to their size.
void expect_shared(const void* at, size bytes, const char* what);

// Waits until every thread of the running thread's group of `group` threads has arrived; 0 is the whole block.
void barrier(unsigned group);

// Permits the running thread to access buffers that earlier launches write or read.
void wait_for_previous();

// An operation that all lanes of a warp take part in. `run` gets the operands of every lane, in lane order.
// Lanes whose `name` or `argument` differ are in different operations.
struct Collective {
    const char* name;
    unsigned argument;
    void (*run)(void* const (&lanes)[LANES]);
};

// Waits in `collective` with the running thread's operands; results are written to them.
void join(const Collective& collective, void* operands);

// Asynchronous copies of the running thread, as in `copy_async_16`, `copy_commit` and `copy_wait`.
void start_copy(void* shared, const void* global, unsigned valid);
void commit_copies();
void wait_for_copies(unsigned newest);

// Operands of a lane in a matrix load: its row, which is read when the lane arrives.
struct MatrixLane {
    unsigned short row[8];
    unsigned out[4];
};
void load_matrix(void* const (&lanes)[LANES]);
void load_matrix_transposed(void* const (&lanes)[LANES]);

// Operands of a lane in a matrix product; `c` receives the sums.
template <class Sum>
struct ProductLane {
    unsigned a[4], b[2];
    Sum c[4];
};
void multiply_s8(void* const (&lanes)[LANES]);
void multiply_u8s8(void* const (&lanes)[LANES]);
void multiply_f16(void* const (&lanes)[LANES]);

// A compiled kernel; every program defines exactly one.
struct Kernel {
    const char* name;
    unsigned threads;
    size params;
    void (*run)(const void* params);
};
extern const Kernel kernel;

// The fields of a `Kernel` for a function of one parameter.
template <auto function>
struct Entry;
template <class Params, void (*function)(Params)>
struct Entry<function> {
    static constexpr size params = sizeof(Params);
    static void run(const void* from) {
        Params params;
        __builtin_memcpy(static_cast<void*>(&params), from, sizeof params);
        function(params);
    }
};

}  // namespace host

// Makes `name` the kernel of the program.
#define SWINQ_ENTRY(name) \
    const host::Kernel host::kernel = {#name, THREADS, host::Entry<name>::params, host::Entry<name>::run};
