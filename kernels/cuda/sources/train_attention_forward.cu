// Forward pass of window attention in training: from the output of the qkv layer to the input of the
// projection.
//
// Entry point: `attention_forward`. Defines: those of `train_attention.cuh`.
#include "train_attention.cuh"

// Block x processes head `x % heads` of window `x / heads`.
KERNEL(attention_forward)(const Params p) {
    f32* k = reinterpret_cast<f32*>(shared_memory());
    f32* v = k + PADDED * ROW;
    f32* q = v + PADDED * ROW;
    f32* scores = q + CHUNK * ROW;
    f32* factors = scores + CHUNK * STRIDE;
    s32 window = block_x() / p.heads, index = block_x() % p.heads;
    Head head = head_of(p, window, index);
    load_rows<(SITES & 2) != 0>(k, head.q + head.channels, head.width, 0, PADDED, p.steps[1]);
    load_rows<(SITES & 4) != 0>(v, head.q + 2 * head.channels, head.width, 0, PADDED, p.steps[2]);
    for (s32 first = 0; first < N; first += CHUNK) {
        load_rows<(SITES & 1) != 0>(q, head.q, head.width, first, CHUNK, p.steps[0]);
        block_sync();
        dot_rows(scores, q, k);
        block_sync();
        for (s32 i = warp_index(); i < CHUNK; i += THREADS / WARP) {
            s32 query = first + i < N ? first + i : N - 1;
            Row row;
            softmax_row(p, head, scores + i * STRIDE, query, row);
#pragma unroll
            for (int key = 0; key < KEYS; key++) {
                if (key_of(key) < PADDED) scores[i * STRIDE + key_of(key)] = row.probs[key];
            }
            if (lane_index() == 0) factors[i] = row.factor;
        }
        block_sync();
        s32 tile = thread_index() / (D / 4), at = 4 * (thread_index() % (D / 4));
        if (tile < CHUNK_TILES) {
            f32 sums[4][4] = {};
            mix_rows(sums, scores, v, tile, at);
#pragma unroll
            for (int a = 0; a < 4; a++) {
                s32 i = tile + a * CHUNK_TILES, token = first + i;
                if (token >= N) continue;
#pragma unroll
                for (int b = 0; b < 4; b++) sums[a][b] = sums[a][b] * factors[i];
                store_values(p.out + (static_cast<u64>(window) * N + token) * head.channels + index * D + at, sums[a]);
            }
        }
        block_sync();
    }
}
