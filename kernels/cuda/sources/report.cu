// Tells the host the first flag that is set, and resets all flags.
//
// Entry point: `report`, one block. Defines: THREADS.
#include "prelude.cuh"

struct Params {
    // `count` flags.
    u32* flags;
    // A word in the host's memory: 0, or the index of a flag plus 1. A word that is not 0 stays as it is.
    u32* word;
    s32 count;
};

KERNEL(report)(const Params p) {
    // A word for each thread: the first of its flags that is set, or `count`; and one for the block.
    u32* words = reinterpret_cast<u32*>(shared_memory());
    u32* any = words + THREADS;
    wait_for_previous();
    launch_dependents();
    if (thread_index() == 0) *any = 0;
    block_sync();
    u32 first = static_cast<u32>(p.count);
    for (s32 i = p.count - 1 - static_cast<s32>(thread_index()); i >= 0; i -= THREADS) {
        if (p.flags[i] == 0) continue;
        first = static_cast<u32>(i);
        p.flags[i] = 0;
    }
    words[thread_index()] = first;
    if (first < static_cast<u32>(p.count)) raise_flag(any);
    block_sync();
    if (thread_index() != 0 || *any == 0) return;
    for (s32 i = 0; i < THREADS; i++) first = words[i] < first ? words[i] : first;
    volatile u32* word = p.word;
    if (*word == 0) *word = first + 1;
}
