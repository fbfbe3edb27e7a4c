// The pixels of a batch as the rows of the patch embedding.
//
// Entry point: `patches`. Defines: THREADS.
#include "prelude.cuh"

struct Params {
    // `[images, height, width, channels]`.
    const u8* pixels;
    // The normalised value of each byte, `[channels, 256]`.
    const f32* table;
    // `[images * rows * columns, channels * patch * patch]`: in a row, channel by channel.
    f32* out;
    u32 height, width, channels, patch;
    // Rows and columns of patches. Values beyond the image are zero.
    u32 rows, columns;
    // Number of results.
    u32 count;
};

KERNEL(patches)(const Params p) {
    u32 area = p.patch * p.patch, values = p.channels * area;
    for (u32 i = block_x() * THREADS + thread_index(); i < p.count; i += blocks_x() * THREADS) {
        u32 row = i / values, at = i % values;
        u32 channel = at / area, inside = at % area;
        u32 image = row / (p.rows * p.columns), place = row % (p.rows * p.columns);
        u32 y = place / p.columns * p.patch + inside / p.patch, x = place % p.columns * p.patch + inside % p.patch;
        f32 value = 0.0f;
        if (y < p.height && x < p.width) {
            u64 pixel = (static_cast<u64>(image) * p.height + y) * p.width + x;
            value = p.table[256 * channel + p.pixels[pixel * p.channels + channel]];
        }
        p.out[i] = value;
    }
}
