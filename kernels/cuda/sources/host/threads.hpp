// The threads of the running block, as coroutines.
#pragma once

#include <deque>
#include <vector>

#include "switch.hpp"

namespace host {

// A copy from global to shared memory that is in flight.
struct Copy {
    unsigned char* to;
    const unsigned char* from;
    unsigned valid;
    unsigned char bytes[16];
};

enum class State { Running, Barrier, Collective, Finished };

struct Thread {
    Context context;
    void* stack = nullptr;
    // State that the address sanitizer keeps for a stack.
    void* fake_stack = nullptr;
    State state = State::Finished;
    // At a barrier: the number of threads of the group that waits; 0 is the whole block.
    unsigned group = 0;
    const Collective* collective = nullptr;
    void* operands = nullptr;
    // Whether the thread has waited for the previous launches.
    bool waited = false;
    // Copies not yet in a group, and the groups, oldest first.
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> groups;
};
extern std::vector<Thread> threads;

// Memory that earlier launches write or read. A thread that has not waited for them must not access it.
struct Region {
    void* at;
    size bytes;
};
extern std::vector<Region> guarded;

// Permits or forbids the running thread to access guarded memory.
void set_guard(bool on);

// Creates `count` threads with their stacks.
void create_threads(unsigned count);

// Position `i` of `count` in the order of the run; counted from the end if `reversed`.
unsigned ordered(unsigned i, unsigned count);
extern bool reversed;

// Runs `kernel` with `params` in every thread until all have returned.
void run_block(const void* params);

}  // namespace host
