// Backward pass of window attention in training. It recomputes everything that the forward pass computed.
//
// Entry point: `attention_backward`. Defines: those of `train_attention.cuh`, and STEPS, whether the
// gradients of scales are computed.
#include "train_attention.cuh"

// Rows of a window, and of a chunk of its queries, in shared memory.
struct Tiles {
    f32 *k, *v, *q, *grad;
    // `[CHUNK, STRIDE]`: `probs` holds the scores, then the weights of the values; `dscores` holds the
    // gradients of the probabilities, then of the scores.
    f32 *probs, *dscores;
};

INLINE Tiles tiles() {
    f32* k = reinterpret_cast<f32*>(shared_memory());
    f32* v = k + PADDED * ROW;
    f32* q = v + PADDED * ROW;
    f32* grad = q + CHUNK * ROW;
    f32* probs = grad + CHUNK * ROW;
    return Tiles{k, v, q, grad, probs, probs + CHUNK * STRIDE};
}

// Turns the gradients of a row's probabilities, `dx`, into those of its scores before the factor. Adds to the
// gradient of the probabilities' scale.
INLINE void row_gradient(const Params& p, const Row& row, f32 (&dx)[KEYS], f32& dprobs_step) {
    f32 mean = 0.0f;
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        if (PROBS == PROBS_S8) dx[i] = clipped(row.soft[i], dx[i], p.steps[4].recip, LOW, HIGH, dprobs_step);
        f32 weight = PROBS == PROBS_U8 ? row.probs[i] * row.factor : row.soft[i];
        mean = fma_f32(weight, dx[i], mean);
    }
    mean = warp_sum(mean);
    f32 factor = PROBS == PROBS_U8 ? 255.0f * row.factor : 1.0f;
#pragma unroll
    for (int i = 0; i < KEYS; i++) dx[i] = factor * row.soft[i] * (dx[i] - mean);
}

// Turns the scores of a chunk's rows into probabilities, and the gradients of its probabilities into
// gradients of its scores. Rows beyond the window become zeros.
INLINE void rows_of_chunk(const Params& p, const Head& head, const Tiles& t, s32 first, f32* dbias, bool fresh,
                          f32 (&sums)[5]) {
    for (s32 i = warp_index(); i < CHUNK; i += THREADS / WARP) {
        s32 query = first + i;
        bool real = query < N;
        f32* probs = t.probs + i * STRIDE;
        f32* dscores = t.dscores + i * STRIDE;
        Row row;
        softmax_row(p, head, probs, real ? query : N - 1, row);
        f32 dx[KEYS], step = 0.0f;
#pragma unroll
        for (int k = 0; k < KEYS; k++) dx[k] = key_of(k) < N ? dscores[key_of(k)] : 0.0f;
        row_gradient(p, row, dx, step);
        if (real) sums[4] = sums[4] + step;
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            s32 key = key_of(k);
            if (real && key < N) {
                f32* to = dbias + query * N + key;
                *to = fresh ? dx[k] : *to + dx[k];
            }
            f32 d = dx[k] * p.scale;
            step = 0.0f;
            if (SITES & 8) d = clipped(row.scores[k], d, p.steps[3].recip, LOW, HIGH, step);
            if (real && key < N) sums[3] = sums[3] + step;
            if (key < PADDED) {
                probs[key] = real && key < N ? row.probs[k] * row.factor : 0.0f;
                dscores[key] = real && key < N ? d : 0.0f;
            }
        }
    }
}

// Stores the gradient of four channels of a token, clipped by their site if it is on.
template <bool on>
INLINE void store_gradient(f32* to, const f32* raw, f32 (&grad)[4], const Step& step, f32& sum) {
    if (on) {
        f32 x[4];
        load_values(x, raw);
#pragma unroll
        for (int b = 0; b < 4; b++) grad[b] = clipped(x[b], grad[b], step.recip, LOW, HIGH, sum);
    }
    store_values(to, grad);
}

// Computes and stores the gradients of a chunk's queries.
INLINE void store_queries(const Params& p, const Head& head, const Tiles& t, s32 first, f32* out, f32& sum) {
    s32 tile = thread_index() / (D / 4), at = 4 * (thread_index() % (D / 4));
    if (tile >= CHUNK_TILES) return;
    f32 dq[4][4] = {};
    mix_rows(dq, t.dscores, t.k, tile, at);
#pragma unroll
    for (int a = 0; a < 4; a++) {
        s32 token = first + tile + a * CHUNK_TILES;
        if (token >= N) continue;
        u64 place = token * head.width + at;
        store_gradient<(SITES & 1) != 0>(out + place, head.q + place, dq[a], p.steps[0], sum);
    }
}

// Adds the product of a chunk's transposed weights `[CHUNK, STRIDE]` with its rows, for keys `key` to `key +
// 3` and channels `at` to `at + 3`.
INLINE void mix_transposed(f32 (&sums)[4][4], const f32* weights, const f32* rows, s32 key, s32 at) {
#pragma unroll 4
    for (s32 i = 0; i < CHUNK; i++) {
        f32 w[4], x[4];
        load_values(w, weights + i * STRIDE + key);
        load_values(x, rows + i * ROW + at);
#pragma unroll
        for (int a = 0; a < 4; a++) {
#pragma unroll
            for (int b = 0; b < 4; b++) sums[a][b] = fma_f32(w[a], x[b], sums[a][b]);
        }
    }
}

// Writes the gradients of one head of one window to its columns of `out`, and adds to the sums.
INLINE void window_gradient(const Params& p, const Head& head, const f32* grad, f32* out, f32* dbias, bool fresh,
                            f32 (&sums)[5]) {
    Tiles t = tiles();
    const f32 *k = head.q + head.channels, *v = k + head.channels;
    load_rows<(SITES & 2) != 0>(t.k, k, head.width, 0, PADDED, p.steps[1]);
    load_rows<(SITES & 4) != 0>(t.v, v, head.width, 0, PADDED, p.steps[2]);
    s32 key = 4 * (thread_index() / (D / 4)), at = 4 * (thread_index() % (D / 4));
    f32 dk[4][4] = {}, dv[4][4] = {};
    for (s32 first = 0; first < N; first += CHUNK) {
        load_rows<(SITES & 1) != 0>(t.q, head.q, head.width, first, CHUNK, p.steps[0]);
        load_rows<false>(t.grad, grad, head.channels, first, CHUNK, p.steps[0]);
        block_sync();
        dot_rows(t.probs, t.q, t.k);
        dot_rows(t.dscores, t.grad, t.v);
        block_sync();
        rows_of_chunk(p, head, t, first, dbias, fresh, sums);
        block_sync();
        store_queries(p, head, t, first, out, sums[0]);
        if (key < PADDED) {
            mix_transposed(dv, t.probs, t.grad, key, at);
            mix_transposed(dk, t.dscores, t.q, key, at);
        }
        block_sync();
    }
#pragma unroll
    for (int a = 0; a < 4; a++) {
        if (key + a >= N) continue;
        u64 place = (key + a) * head.width + at;
        f32 *to = out + head.channels + place;
        store_gradient<(SITES & 2) != 0>(to, k + place, dk[a], p.steps[1], sums[1]);
        store_gradient<(SITES & 4) != 0>(to + head.channels, v + place, dv[a], p.steps[2], sums[2]);
    }
}

// Block (x, y) processes head x of windows `y + i * parts`.
KERNEL(attention_backward)(const Params p) {
    s32 index = block_x(), part = block_y();
    u64 slot = static_cast<u64>(part) * p.heads + index;
    f32* dbias = p.dbias + slot * (N * N);
    f32 sums[5] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (s32 window = part; window < p.windows; window += p.parts) {
        Head head = head_of(p, window, index);
        u64 token = static_cast<u64>(window) * N;
        const f32* grad = p.grad + token * head.channels + index * D;
        f32* out = p.out + token * head.width + index * D;
        window_gradient(p, head, grad, out, dbias, window == part, sums);
    }
#if STEPS
    f32* shared = reinterpret_cast<f32*>(shared_memory());
#pragma unroll
    for (int i = 0; i < 5; i++) {
        f32 sum = block_sum(sums[i], shared);
        if (thread_index() == 0) p.dsteps[slot * 5 + i] = sum;
    }
#endif
}
