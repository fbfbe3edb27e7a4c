// Runs the threads of a block one at a time. A thread runs until a GPU would make it wait: in `barrier` until
// every thread of the block arrives, in `join` until every lane of the warp is at the same collective. If no
// thread can continue, an error names the kernel, the block and the threads.
#include "threads.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#define SWINQ_FIBERS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SWINQ_FIBERS 1
#endif
#endif
#if defined(SWINQ_FIBERS)
#include <sanitizer/asan_interface.h>
#else
// Without the address sanitizer these calls do nothing: only the sanitizer must know when the stack changes,
// and only it can poison memory.
static void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
static void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
static void __asan_poison_memory_region(void*, size_t) {}
static void __asan_unpoison_memory_region(void*, size_t) {}
#endif

namespace host {

constexpr size STACK = 256 * 1024;

Block block;
std::vector<Thread> threads;
std::vector<Region> guarded;
bool reversed;

// The scheduler: the coroutine that resumes the threads.
static struct {
    Context context;
    void* fake_stack;
    const void* stack;
    size_t stack_bytes;
    const void* params;
} scheduler;

void fail(const char* format, ...) {
    std::fprintf(stderr, "%s, block (%u, %u, %u), thread %u: ", kernel.name, block.index[0], block.index[1],
                 block.index[2], block.thread);
    va_list arguments;
    va_start(arguments, format);
    std::vfprintf(stderr, format, arguments);
    va_end(arguments);
    std::fputc('\n', stderr);
    std::fflush(stderr);
    std::_Exit(3);
}

void expect_shared(const void* at, size bytes, const char* what) {
    size offset = reinterpret_cast<size>(at) - reinterpret_cast<size>(block.shared);
    if (offset > block.shared_bytes || bytes > block.shared_bytes - offset) {
        fail("%s: %zu bytes at offset %zd of a shared memory of %zu", what, bytes, static_cast<ssize_t>(offset),
             block.shared_bytes);
    }
    if (offset % bytes != 0) fail("%s: offset %zu of shared memory is not aligned to %zu", what, offset, bytes);
}

unsigned ordered(unsigned i, unsigned count) { return reversed ? count - 1 - i : i; }

void set_guard(bool on) {
    static bool now = false;
    if (on == now) return;
    for (const Region& region : guarded) {
        on ? __asan_poison_memory_region(region.at, region.bytes)
           : __asan_unpoison_memory_region(region.at, region.bytes);
    }
    now = on;
}

void wait_for_previous() {
    threads[block.thread].waited = true;
    set_guard(false);
}

// Suspends the running thread and returns to the scheduler.
static void yield(State state) {
    Thread& thread = threads[block.thread];
    thread.state = state;
    __sanitizer_start_switch_fiber(&thread.fake_stack, scheduler.stack, scheduler.stack_bytes);
    switch_to(thread.context, scheduler.context);
    __sanitizer_finish_switch_fiber(thread.fake_stack, nullptr, nullptr);
}

// Lets thread `index` run until it yields.
static void resume(unsigned index) {
    Thread& thread = threads[index];
    block.thread = index;
    set_guard(!thread.waited);
    __sanitizer_start_switch_fiber(&scheduler.fake_stack, thread.stack, STACK);
    switch_to(scheduler.context, thread.context);
    __sanitizer_finish_switch_fiber(scheduler.fake_stack, nullptr, nullptr);
}

// The body of a thread's coroutine: runs the kernel once for every block.
static void thread_main() {
    __sanitizer_finish_switch_fiber(nullptr, &scheduler.stack, &scheduler.stack_bytes);
    for (;;) {
        kernel.run(scheduler.params);
        yield(State::Finished);
    }
}

void create_threads(unsigned count) {
    threads.resize(count);
    for (Thread& thread : threads) {
        thread.stack = std::malloc(STACK);
        prepare(thread.context, thread.stack, STACK, thread_main);
    }
}

void barrier(unsigned group) {
    threads[block.thread].group = group;
    yield(State::Barrier);
}

void join(const Collective& collective, void* operands) {
    Thread& thread = threads[block.thread];
    thread.collective = &collective;
    thread.operands = operands;
    yield(State::Collective);
}

// Describes the point where a thread waits, for error messages.
static const char* place(const Thread& thread) {
    switch (thread.state) {
        case State::Running: return "running";
        case State::Barrier: return thread.group == 0 ? "block_sync" : "group_sync";
        case State::Finished: return "the end";
        case State::Collective: break;
    }
    return thread.collective->name;
}

// Fails because two threads wait for each other.
[[noreturn]] static void deadlock(unsigned a, unsigned b) {
    auto argument = [](const Thread& thread) {
        if (thread.state == State::Barrier) return thread.group;
        return thread.collective ? thread.collective->argument : 0;
    };
    const Thread &first = threads[a], &second = threads[b];
    block.thread = a;
    fail("deadlock: at %s (%u), while thread %u is at %s (%u)", place(first), argument(first), b, place(second),
         argument(second));
}

// Lanes may reach one collective at several places of a kernel.
static bool is_same(const Collective& a, const Collective& b) {
    return &a == &b || (std::strcmp(a.name, b.name) == 0 && a.argument == b.argument);
}

// Runs the collective that lanes of the warp starting at thread `first` wait in; returns false if no lane
// waits.
static bool run_collective(unsigned first, unsigned lanes) {
    unsigned leader = first;
    while (leader < first + lanes && threads[leader].state != State::Collective) leader++;
    if (leader == first + lanes) return false;
    const Collective& collective = *threads[leader].collective;
    if (lanes != LANES) fail("%s in a warp of %u lanes", collective.name, lanes);
    void* operands[LANES];
    for (unsigned i = 0; i < LANES; i++) {
        const Thread& thread = threads[first + i];
        if (thread.state != State::Collective || !is_same(*thread.collective, collective)) {
            deadlock(leader, first + i);
        }
        operands[i] = thread.operands;
    }
    collective.run(operands);
    for (unsigned i = 0; i < LANES; i++) threads[first + i].state = State::Running;
    return true;
}

// Runs a warp until each of its lanes waits at the barrier or has returned.
static void run_warp(unsigned first) {
    unsigned left = static_cast<unsigned>(threads.size()) - first;
    unsigned lanes = left < LANES ? left : LANES;
    do {
        for (unsigned i = 0; i < lanes; i++) {
            unsigned index = first + ordered(i, lanes);
            if (threads[index].state == State::Running) resume(index);
        }
    } while (run_collective(first, lanes));
}

// Lets the groups continue whose threads all wait at their barrier; returns false if there is none. A group
// with threads elsewhere is an error.
static bool release_groups() {
    bool released = false;
    for (unsigned first = 0; first < threads.size(); first++) {
        unsigned group = threads[first].group;
        if (threads[first].state != State::Barrier || group == 0) continue;
        unsigned begin = first / group * group;
        for (unsigned i = begin; i < begin + group; i++) {
            if (threads[i].state != State::Barrier || threads[i].group != group) deadlock(first, i);
        }
        for (unsigned i = begin; i < begin + group; i++) threads[i].state = State::Running;
        released = true;
    }
    return released;
}

void run_block(const void* params) {
    scheduler.params = params;
    std::memset(block.shared, block.garbage, block.shared_bytes);
    for (Thread& thread : threads) {
        thread.state = State::Running;
        thread.waited = false;
        thread.open.clear();
        thread.groups.clear();
    }
    unsigned count = static_cast<unsigned>(threads.size()), warps = (count + LANES - 1) / LANES;
    for (;;) {
        for (unsigned i = 0; i < warps; i++) run_warp(LANES * ordered(i, warps));
        if (release_groups()) continue;
        for (unsigned i = 1; i < count; i++) {
            if (threads[i].state != threads[0].state) deadlock(0, i);
        }
        if (threads[0].state == State::Finished) break;
        for (Thread& thread : threads) thread.state = State::Running;
    }
    // A later launch waits for this launch only, so this launch must wait for the launches before it.
    bool waited = guarded.empty();
    for (const Thread& thread : threads) waited = waited || thread.waited;
    if (!waited) fail("no thread waits for the launches before");
}

}  // namespace host
