// The threads of the running block, as coroutines.
#pragma once

#include <deque>
#include <ucontext.h>
#include <vector>

#include "runtime.hpp"

namespace host {

// A copy from global to shared memory that is under way.
struct Copy {
    unsigned char* to;
    const unsigned char* from;
    unsigned valid;
    unsigned char bytes[16];
};

enum class State { Running, Barrier, Collective, Finished };

struct Thread {
    ucontext_t context;
    void* stack = nullptr;
    // The address sanitizer's.
    void* fake_stack = nullptr;
    State state = State::Finished;
    const Collective* collective = nullptr;
    void* operands = nullptr;
    // Whether it has waited for the launches before.
    bool waited = false;
    // Copies not yet in a group, and the groups, oldest first.
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> groups;
};
extern std::vector<Thread> threads;

// Memory that earlier launches write or read: a thread that has not waited for them must not touch it.
struct Region {
    void* at;
    size bytes;
};
extern std::vector<Region> guarded;

// Lets the running thread touch guarded memory, or not.
void set_guard(bool on);

// Gives `count` threads stacks.
void create_threads(unsigned count);

// Place `i` of `count` in the order of the run: from the last to the first if it is reversed.
unsigned ordered(unsigned i, unsigned count);
extern bool reversed;

// Runs `kernel` with `params` in every thread, to the end.
void run_block(const void* params);

}  // namespace host
