// The relative squared errors of a feature map, and its gradient. `qat/src/loss.rs` has the definition.
//
// Entry points, in this order: `squares`, `errors`, `gradient`. Defines: THREADS.
#include "train.cuh"
#include "train_controls.cuh"

struct Params {
    // `[images, values]`.
    const f32* map;
    // The teacher's map.
    const f32* target;
    const Controls* controls;
    // The gradient of the map, times the factor of the loss.
    f32* gradient;
    // Of each part of an image the sum of the squares of the errors and that of the teacher's values,
    // `[images, parts, 2]`.
    f64* partial;
    // Of each image the relative error, and the gradient of an error of 1, `[images, 2]`.
    f64* of_images;
    Outcome* outcome;
    // The weight of the loss of all maps, and the share of an image's error in it.
    f64 weight, share;
    u32 images;
    // Values of an image, and of each of its parts but the last.
    u32 values, part, parts;
    // Whether the map is the iteration's first: its loss is stored, and that of others added.
    u32 first;
};

// Block x adds up a part of an image.
KERNEL(squares)(const Params p) {
    f64* shared = reinterpret_cast<f64*>(shared_memory());
    u64 image = block_x() / p.parts;
    u32 begin = block_x() % p.parts * p.part;
    u32 end = p.values - begin < p.part ? p.values : begin + p.part;
    const f32* map = p.map + image * p.values;
    const f32* target = p.target + image * p.values;
    f64 noise = 0.0, signal = 0.0;
    for (u32 i = begin + thread_index(); i < end; i += THREADS) {
        f64 error = map[i] - target[i], value = target[i];
        noise = noise + error * error;
        signal = signal + value * value;
    }
    noise = over_block<false>(noise, shared);
    signal = over_block<false>(signal, shared);
    if (thread_index() != 0) return;
    f64* to = p.partial + 2 * static_cast<u64>(block_x());
    to[0] = noise;
    to[1] = signal;
}

// One block. Adds the parts of an image, and the errors of the images, in their order.
KERNEL(errors)(const Params p) {
    for (u32 image = thread_index(); image < p.images; image += THREADS) {
        const f64* parts = p.partial + 2 * static_cast<u64>(image) * p.parts;
        f64 noise = 0.0, signal = 0.0;
        for (u32 i = 0; i < p.parts; i++) {
            noise = noise + parts[2 * i];
            signal = signal + parts[2 * i + 1];
        }
        p.of_images[2 * image] = div_f64(noise, signal);
        p.of_images[2 * image + 1] = div_f64(2.0 * p.weight * p.share * p.controls->loss_scale, signal);
    }
    block_sync();
    if (thread_index() != 0) return;
    f64 sum = 0.0;
    for (u32 image = 0; image < p.images; image++) sum = sum + p.of_images[2 * image];
    Outcome* o = p.outcome;
    f64 outputs = p.share * sum, total = p.weight * outputs;
    o->outputs = p.first ? outputs : o->outputs + outputs;
    o->total = p.first ? total : o->total + total;
    if (p.first) o->labels = o->kl = o->correct = 0.0;
}

KERNEL(gradient)(const Params p) {
    u32 count = p.images * p.values;
    for (u32 i = block_x() * THREADS + thread_index(); i < count; i += blocks_x() * THREADS) {
        f32 slope = static_cast<f32>(p.of_images[2 * (i / p.values) + 1]);
        p.gradient[i] = (p.map[i] - p.target[i]) * slope;
    }
}
