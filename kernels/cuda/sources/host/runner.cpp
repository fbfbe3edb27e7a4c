// The program around a kernel compiled for a CPU. It reads a launch from the standard input, runs it twice,
// and writes the buffers to the standard output. The runs differ in the order of blocks, warps and lanes, and
// in the contents of uninitialised memory. If their results differ, the kernel has a race or reads a value
// that was never written, and the program fails.
//
// The input is a sequence of little-endian u64 values unless stated differently: grid [3], threads, bytes of
// shared memory, bytes of the parameters, the parameters (bytes), and the number of buffers. Then follows for
// each buffer: the offset in the parameters at which its address is stored, whether earlier launches write or
// read it, the number of its bytes, and the bytes. The output is the bytes of every buffer.
#include "threads.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace host {

typedef unsigned long long u64;
typedef std::vector<unsigned char> Bytes;

struct Buffer {
    u64 pointer, guarded;
    Bytes bytes;
};

struct Launch {
    u64 grid[3], threads, shared;
    Bytes params;
    std::vector<Buffer> buffers;
};

static void read(void* to, size bytes) {
    if (bytes != 0 && std::fread(to, 1, bytes, stdin) != bytes) fail("the launch ends early");
}
static u64 read_u64() {
    u64 x;
    read(&x, sizeof x);
    return x;
}
static Bytes read_bytes() {
    Bytes bytes(read_u64());
    read(bytes.data(), bytes.size());
    return bytes;
}

static Launch read_launch() {
    Launch launch;
    for (u64& extent : launch.grid) extent = read_u64();
    launch.threads = read_u64();
    launch.shared = read_u64();
    launch.params = read_bytes();
    launch.buffers.resize(read_u64());
    for (Buffer& buffer : launch.buffers) {
        buffer.pointer = read_u64();
        buffer.guarded = read_u64();
        buffer.bytes = read_bytes();
    }
    return launch;
}

// Allocates exactly `bytes` bytes, so that the address sanitizer detects accesses beyond the end.
static unsigned char* allocate(size bytes, size alignment) {
    void* memory = nullptr;
    if (posix_memalign(&memory, alignment, bytes) != 0) fail("no memory for %zu bytes", bytes);
    return static_cast<unsigned char*>(memory);
}

// Copies every buffer to memory that is aligned like device allocations, and stores the addresses in
// `params`.
static std::vector<unsigned char*> place_buffers(const Launch& launch, Bytes& params) {
    std::vector<unsigned char*> memory;
    for (const Buffer& buffer : launch.buffers) {
        memory.push_back(allocate(buffer.bytes.size(), 256));
        if (!buffer.bytes.empty()) std::memcpy(memory.back(), buffer.bytes.data(), buffer.bytes.size());
        u64 at = buffer.pointer;
        if (at + 8 > params.size()) fail("a pointer at %llu of %zu bytes of parameters", at, params.size());
        std::memcpy(&params[at], &memory.back(), 8);
        if (buffer.guarded) guarded.push_back({memory.back(), buffer.bytes.size()});
    }
    return memory;
}

static void run_grid(const u64 (&grid)[3], const Bytes& params) {
    for (int i = 0; i < 3; i++) block.grid[i] = static_cast<unsigned>(grid[i]);
    unsigned blocks = block.grid[0] * block.grid[1] * block.grid[2];
    for (unsigned i = 0; i < blocks; i++) {
        unsigned index = ordered(i, blocks);
        block.index[0] = index % block.grid[0];
        block.index[1] = index / block.grid[0] % block.grid[1];
        block.index[2] = index / block.grid[0] / block.grid[1];
        run_block(params.data());
    }
}

// Runs the kernel in one order and returns the buffers.
static std::vector<Bytes> run_launch(const Launch& launch, bool reverse) {
    Bytes params = launch.params;
    std::vector<unsigned char*> memory = place_buffers(launch, params);
    reversed = reverse;
    block.garbage = reverse ? 0x7a : 0xff;
    block.shared_bytes = launch.shared;
    block.shared = allocate(launch.shared, 128);
    run_grid(launch.grid, params);
    std::free(block.shared);
    set_guard(false);
    guarded.clear();
    std::vector<Bytes> results;
    for (size i = 0; i < memory.size(); i++) {
        results.emplace_back(memory[i], memory[i] + launch.buffers[i].bytes.size());
        std::free(memory[i]);
    }
    return results;
}

// Fails unless both runs produced the same bytes.
static void expect_equal(const std::vector<Bytes>& forward, const std::vector<Bytes>& backward) {
    for (size i = 0; i < forward.size(); i++) {
        for (size at = 0; at < forward[i].size(); at++) {
            unsigned a = forward[i][at], b = backward[i][at];
            if (a != b) fail("race or unwritten memory: byte %zu of buffer %zu is %u or %u", at, i, a, b);
        }
    }
}

static int run() {
    Launch launch = read_launch();
    if (launch.threads != kernel.threads) {
        fail("a launch of %llu threads, compiled for %u", launch.threads, kernel.threads);
    }
    if (launch.params.size() != kernel.params) {
        fail("%zu bytes of parameters, the kernel has %zu", launch.params.size(), kernel.params);
    }
    create_threads(kernel.threads);
    std::vector<Bytes> results = run_launch(launch, false);
    expect_equal(results, run_launch(launch, true));
    for (const Bytes& bytes : results) {
        if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size()) fail("cannot write the results");
    }
    return std::fflush(stdout);
}

}  // namespace host

int main() { return host::run(); }
