// The update of all parameters by AdamW. The parameters lie one after the other, and so do the gradients and
// the moments.
//
// Entry points, in this order: `measure`, `decide`, `update`; and `add`. Defines: THREADS.
#include "train.cuh"
#include "train_controls.cuh"

// Bits of a parameter's kind.
#define DECAYS 1
#define IS_SCALE 2
#define NO_GRADIENT 4

// The constants of all updates of a training.
struct UpdateRule {
    // How values change.
    MomentRule moments;
    // Gradients with a larger norm are scaled down to it; 0 is off.
    f32 clip;
    // The share of the old value in the moving average.
    f32 decay_average;
    // Ratios of learned scales stay within this factor of 1.
    f32 limit;
};

struct Params {
    // `[count]` each.
    const f32* grad;
    f32* values;
    f32* first;
    f32* second;
    // Moving average of the parameters, or null.
    f32* average;
    const u8* kinds;
    // Of each block of `measure` the sum of the squares of gradients, and whether a parameter is not finite,
    // `[2, blocks]`.
    f64* partial;
    const Controls* controls;
    Outcome* outcome;
    u32 count, blocks;
    UpdateRule rule;
};

KERNEL(measure)(const Params p) {
    f64* shared = reinterpret_cast<f64*>(shared_memory());
    f64 sum = 0.0, unusable = 0.0;
    for (u32 i = block_x() * THREADS + thread_index(); i < p.count; i += blocks_x() * THREADS) {
        f64 grad = p.kinds[i] & NO_GRADIENT ? 0.0 : p.grad[i];
        sum = sum + grad * grad;
        if (!finite(p.values[i])) unusable = 1.0;
    }
    sum = over_block<false>(sum, shared);
    unusable = over_block<false>(unusable, shared);
    if (thread_index() != 0) return;
    p.partial[block_x()] = sum;
    p.partial[p.blocks + block_x()] = unusable > 0.0 ? 1.0 : 0.0;
}

// Whether `x` is neither infinite nor a NaN.
INLINE bool finite_f64(f64 x) { return x - x == 0.0; }

// One block.
KERNEL(decide)(const Params p) {
    f64* shared = reinterpret_cast<f64*>(shared_memory());
    f64 sum = 0.0, unusable = 0.0;
    for (u32 i = thread_index(); i < p.blocks; i += THREADS) {
        sum = sum + p.partial[i];
        unusable = unusable + p.partial[p.blocks + i];
    }
    sum = over_block<false>(sum, shared);
    unusable = over_block<false>(unusable, shared);
    if (thread_index() != 0) return;
    Outcome* o = p.outcome;
    o->norm = div_f64(sqrt_f64(sum), p.controls->loss_scale);
    o->unusable = unusable;
    bool good = finite_f64(o->norm) && finite_f64(o->total) && o->total <= p.controls->most_loss && unusable == 0.0;
    o->updated = good ? 1.0 : 0.0;
}

KERNEL(update)(const Params p) {
    if (p.outcome->updated == 0.0) return;
    f64 norm = p.outcome->norm;
    f64 shorter = p.rule.clip > 0.0f && norm > p.rule.clip ? div_f64(p.rule.clip, norm) : 1.0;
    f32 factor = static_cast<f32>(div_f64(shorter, p.controls->loss_scale));
    f32 unbias = static_cast<f32>(p.controls->unbias);
    for (u32 i = block_x() * THREADS + thread_index(); i < p.count; i += blocks_x() * THREADS) {
        u8 kind = p.kinds[i];
        f32 value = p.values[i];
        if (!(kind & NO_GRADIENT)) {
            f32 rate = static_cast<f32>(kind & IS_SCALE ? p.controls->rate_scales : p.controls->rate_weights);
            f32 keep = kind & DECAYS ? static_cast<f32>(p.controls->keep) : 1.0f;
            value = adamw_value(value, p.grad[i] * factor, p.first[i], p.second[i], p.rule.moments, keep, rate, unbias);
            if (kind & IS_SCALE) value = clamp_f32(value, div_f32(1.0f, p.rule.limit), p.rule.limit);
            p.values[i] = value;
        }
        if (p.average != nullptr) {
            p.average[i] = p.average[i] * p.rule.decay_average + value * (1.0f - p.rule.decay_average);
        }
    }
}

// Adds `grad` to `values`.
KERNEL(add)(const Params p) {
    for (u32 i = block_x() * THREADS + thread_index(); i < p.count; i += blocks_x() * THREADS) {
        p.values[i] = p.values[i] + p.grad[i];
    }
}
