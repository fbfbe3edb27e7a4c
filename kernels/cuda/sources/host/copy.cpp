// Asynchronous copies. A copy is performed when its thread waits for it. Until then its destination holds
// garbage, and neither source nor destination may be written.
#include "threads.hpp"

#include <cstring>

namespace host {

// The byte that fills the destination of a copy in flight.
static int under_way() { return block.garbage ^ 0x55; }

void start_copy(void* shared, const void* global, unsigned valid) {
    expect_shared(shared, 16, "copy_async_16");
    if (reinterpret_cast<size>(global) % 16 != 0) fail("copy_async_16: the source %p is not aligned to 16", global);
    if (valid > 16) fail("copy_async_16: %u bytes of 16", valid);
    Copy copy = {static_cast<unsigned char*>(shared), static_cast<const unsigned char*>(global), valid, {}};
    std::memcpy(copy.bytes, global, valid);
    std::memset(shared, under_way(), 16);
    threads[block.thread].open.push_back(copy);
}

void commit_copies() {
    Thread& thread = threads[block.thread];
    thread.groups.push_back(std::move(thread.open));
    thread.open.clear();
}

static void land(const Copy& copy) {
    unsigned char untouched[16];
    std::memset(untouched, under_way(), 16);
    if (std::memcmp(copy.to, untouched, 16) != 0) {
        fail("the destination of a copy under way was written, at offset %zd of shared memory",
             copy.to - block.shared);
    }
    if (std::memcmp(copy.from, copy.bytes, copy.valid) != 0) fail("the source of a copy under way was written");
    std::memcpy(copy.to, copy.bytes, 16);
}

void wait_for_copies(unsigned newest) {
    auto& groups = threads[block.thread].groups;
    while (groups.size() > newest) {
        for (const Copy& copy : groups.front()) land(copy);
        groups.pop_front();
    }
}

}  // namespace host
