// Elementwise operations in training: GELU, its gradient, and AdamW.
//
// Entry points: `gelu_forward`, `gelu_backward`, `adamw`. Defines: THREADS.
#include "train.cuh"

// The constants of an update by AdamW.
struct AdamWStep {
    // How values change.
    MomentRule moments;
    // The gradient's factor.
    f32 factor;
    // The parameter's factor: 1 without weight decay.
    f32 keep;
    // Learning rate with the bias correction of the first moment.
    f32 rate;
    // Bias correction of the second moment.
    f32 unbias;
};

struct Params {
    // GELU's argument.
    const f32* x;
    // The gradient.
    const f32* grad;
    // The result; for AdamW the parameter, which is updated in place.
    f32* out;
    // AdamW's first and second moments.
    f32* first;
    f32* second;
    u32 count;
    // AdamW.
    AdamWStep step;
};

INLINE u32 position() { return block_x() * THREADS + thread_index(); }

KERNEL(gelu_forward)(const Params p) {
    f32* tail = reinterpret_cast<f32*>(shared_memory());
    load_tail(tail, THREADS);
    block_sync();
    for (u32 i = position(); i < p.count; i += blocks_x() * THREADS) p.out[i] = gelu(p.x[i], tail);
}

KERNEL(gelu_backward)(const Params p) {
    f32* tail = reinterpret_cast<f32*>(shared_memory());
    load_tail(tail, THREADS);
    block_sync();
    for (u32 i = position(); i < p.count; i += blocks_x() * THREADS) {
        p.out[i] = p.grad[i] * gelu_derivative(p.x[i], tail);
    }
}

KERNEL(adamw)(const Params p) {
    for (u32 i = position(); i < p.count; i += blocks_x() * THREADS) {
        const AdamWStep& s = p.step;
        f32 grad = p.grad[i] * s.factor;
        p.out[i] = adamw_value(p.out[i], grad, p.first[i], p.second[i], s.moments, s.keep, s.rate, s.unbias);
    }
}
