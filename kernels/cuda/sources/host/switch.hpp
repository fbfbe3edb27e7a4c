// Switches between the stacks of coroutines. The sanitizers are not told; see `block.cpp`.
#pragma once

#include "runtime.hpp"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace host {

// A point at which execution can continue, on a stack of its own.
struct Context {
#if defined(__x86_64__)
    // The registers that a called function keeps lie there, and above them the address to continue at.
    void* top = nullptr;
#else
    ucontext_t context;
#endif
};

// Lets `context` begin with `entry`, which never returns, on a stack of `bytes` bytes at `stack`.
void prepare(Context& context, void* stack, size bytes, void (*entry)());

// Stores the present point in `from` and continues at `to`.
void switch_to(Context& from, const Context& to);

}  // namespace host
