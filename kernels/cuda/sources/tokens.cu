// Tokens of a network that begins with blocks, in any form, to the residual stream. A tile passes through
// shared memory, so that it is read and written along the rows of each side.
//
// Defines: those of `patch.cuh`, whose patches are single pixels here (PATCH is 1); THREADS; RESIDUAL_F32 (1:
// the residual is f32; 0: f16).
#define OPERAND f32
#include "patch.cuh"

// Tokens and channels of a tile.
constexpr u32 TILE = 32;
constexpr u32 TILE_ROW = TILE + 1;

KERNEL(tokens)(const Params p) {
    f32* tile = reinterpret_cast<f32*>(shared_memory());
    u32 first = block_x() * TILE, channels = block_y() * TILE;
    u32 count = p.total_tokens - first, width = CHANNELS - channels;
    wait_for_previous();
    launch_dependents();
    for (u32 i = thread_index(); i < TILE * TILE; i += THREADS) {
        u32 token = CHANNELS_FIRST ? i % TILE : i / TILE, channel = CHANNELS_FIRST ? i / TILE : i % TILE;
        if (token >= count || channel >= width) continue;
        Pixel pixel(p, first + token, 0, 0);
        tile[token * TILE_ROW + channel] = operand(p, p.lookup, channels + channel, *pixel.at(p, channels + channel, 0));
    }
    block_sync();
    for (u32 i = thread_index(); i < TILE * TILE; i += THREADS) {
        u32 token = i / TILE, channel = i % TILE;
        if (token >= count || channel >= width) continue;
        u64 to = static_cast<u64>(first + token) * CHANNELS + channels + channel;
        f32 x = tile[token * TILE_ROW + channel];
#if RESIDUAL_F32
        static_cast<f32*>(p.out)[to] = x;
#else
        static_cast<u16*>(p.out)[to] = f32_to_half(x);
#endif
    }
}
