// Elementwise operations in training: GELU, its gradient, and AdamW.
//
// Entry points: `gelu_forward`, `gelu_backward`, `adamw`. Defines: THREADS.
#include "train.cuh"

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
    // AdamW: the gradient's factor; for each moment the factor of its old value and that of the new term; the
    // parameter's factor (weight decay); the learning rate; the bias correction of the second moment; and the
    // epsilon that is added to its root.
    f32 factor, keep_first, add_first, keep_second, add_second, keep, rate, unbias, epsilon;
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
        f32 g = p.grad[i] * p.factor;
        f32 first = p.first[i] * p.keep_first + g * p.add_first;
        f32 second = p.second[i] * p.keep_second + g * g * p.add_second;
        p.first[i] = first;
        p.second[i] = second;
        p.out[i] = p.out[i] * p.keep - p.rate * div_f32(first, sqrt_f32(second * p.unbias) + p.epsilon);
    }
}
