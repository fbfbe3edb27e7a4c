// The pixels of a batch as the rows of the patch embedding.
//
// Entry point: `patches`. Defines: THREADS.
#include "prelude.cuh"

struct Params {
    // `[images, size, size, 3]`.
    const u8* pixels;
    // The normalised value of each byte, `[3, 256]`.
    const f32* table;
    // `[images * grid * grid, 3 * patch * patch]`: in a row, channel by channel.
    f32* out;
    u32 size, patch, grid;
    // Number of results.
    u32 count;
};

KERNEL(patches)(const Params p) {
    u32 area = p.patch * p.patch, columns = 3 * area;
    for (u32 i = block_x() * THREADS + thread_index(); i < p.count; i += blocks_x() * THREADS) {
        u32 row = i / columns, at = i % columns;
        u32 channel = at / area, inside = at % area;
        u32 image = row / (p.grid * p.grid), place = row % (p.grid * p.grid);
        u32 y = place / p.grid * p.patch + inside / p.patch, x = place % p.grid * p.patch + inside % p.patch;
        u8 byte = p.pixels[((static_cast<u64>(image) * p.size + y) * p.size + x) * 3 + channel];
        p.out[i] = p.table[256 * channel + byte];
    }
}
