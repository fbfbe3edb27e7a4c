// The loss of a batch's logits in f64, and its gradient: cross-entropy with the labels, and the divergence
// from a teacher. `qat/src/loss.rs` has the definition.
//
// Entry points: `loss_of_images`, `loss_of_batch`. Defines: THREADS.
#include "train.cuh"
#include "train_controls.cuh"

struct Params {
    // `[images, classes]`.
    const f32* logits;
    // The teacher's logits, or null.
    const f32* teacher;
    // The class of each image, or null.
    const u32* labels;
    // The class of the image that is mixed into each, or null.
    const u32* partners;
    const Controls* controls;
    // The gradient of the logits, times the factor of the loss.
    f32* gradient;
    // Of each image the cross-entropy, the divergence, and whether it is classified correctly, `[images, 3]`.
    f64* of_images;
    Outcome* outcome;
    // The weights of cross-entropy and divergence.
    f64 weight_labels, weight_kl;
    // The share of each label that all classes get, and the temperature of the divergence.
    f64 smoothing, temperature;
    // Factor of an image's loss: the share of the batch over the number of its images.
    f64 factor;
    u32 images, classes;
    // Whether the batch is the iteration's first: its loss is stored, and that of others added.
    u32 first;
};

// `log(sum exp(x / temperature))`.
INLINE f64 log_total(const f32* x, u32 classes, f64 temperature, f64* shared) {
    f64 most = x[0] / temperature, total = 0.0;
    for (u32 i = thread_index(); i < classes; i += THREADS) most = max_f64(most, x[i] / temperature);
    most = over_block<true>(most, shared);
    for (u32 i = thread_index(); i < classes; i += THREADS) total = total + exp_f64(x[i] / temperature - most);
    return most + log_f64(over_block<false>(total, shared));
}

// Block x computes the loss of image x.
KERNEL(loss_of_images)(const Params p) {
    f64* shared = reinterpret_cast<f64*>(shared_memory());
    u64 start = static_cast<u64>(block_x()) * p.classes;
    const f32* logits = p.logits + start;
    const f32* teacher = p.teacher == nullptr || p.weight_kl == 0.0 ? nullptr : p.teacher + start;
    bool labelled = p.labels != nullptr;
    u32 own = labelled ? p.labels[block_x()] : 0;
    u32 partner = p.partners == nullptr ? own : p.partners[block_x()];
    f64 share = p.partners == nullptr ? 1.0 : p.controls->partner_share;
    u32 main = share >= 0.5 ? own : partner;
    // A label that is no class counts as wrong.
    bool counted = labelled && main < p.classes;
    f64 t = p.temperature, spread = p.smoothing / p.classes;
    f64 log_labels = log_total(logits, p.classes, 1.0, shared);
    f64 log_p = teacher == nullptr ? 0.0 : log_total(logits, p.classes, t, shared);
    f64 log_q = teacher == nullptr ? 0.0 : log_total(teacher, p.classes, t, shared);
    f64 labels = 0.0, kl = 0.0, above = 0.0;
    for (u32 i = thread_index(); i < p.classes; i += THREADS) {
        f64 slope = 0.0;
        if (counted) {
            above = above + (logits[i] > logits[main] || (logits[i] == logits[main] && i < main) ? 1.0 : 0.0);
        }
        if (labelled && p.weight_labels > 0.0) {
            f64 part = (i == own ? share : 0.0) + (i == partner ? 1.0 - share : 0.0);
            f64 target = spread + (1.0 - p.smoothing) * part;
            f64 log = logits[i] - log_labels;
            labels = labels - target * log;
            slope = slope + p.weight_labels * (exp_f64(log) - target);
        }
        if (teacher != nullptr) {
            f64 log_student = logits[i] / t - log_p, log_teacher = teacher[i] / t - log_q;
            f64 q = exp_f64(log_teacher);
            kl = kl + q * (log_teacher - log_student);
            slope = slope + p.weight_kl * t * (exp_f64(log_student) - q);
        }
        // Rounded to f32 before the factor of the loss, as on the host.
        f32 gradient = static_cast<f32>(slope * p.factor);
        p.gradient[start + i] = static_cast<f32>(gradient * p.controls->loss_scale);
    }
    labels = over_block<false>(labels, shared);
    kl = over_block<false>(kl, shared);
    above = over_block<false>(above, shared);
    if (thread_index() != 0) return;
    f64* to = p.of_images + 3 * static_cast<u64>(block_x());
    to[0] = labels;
    to[1] = t * t * kl;
    to[2] = counted && above == 0.0 ? 1.0 : 0.0;
}

// Adds the losses of the images in their order.
KERNEL(loss_of_batch)(const Params p) {
    if (thread_index() != 0) return;
    f64 labels = 0.0, kl = 0.0, correct = 0.0;
    for (u32 i = 0; i < p.images; i++) {
        labels = labels + p.factor * p.of_images[3 * i];
        kl = kl + p.factor * p.of_images[3 * i + 1];
        correct = correct + p.of_images[3 * i + 2];
    }
    f64 total = p.weight_labels * labels + p.weight_kl * kl;
    Outcome* o = p.outcome;
    o->labels = p.first ? labels : o->labels + labels;
    o->kl = p.first ? kl : o->kl + kl;
    o->outputs = 0.0;
    o->total = p.first ? total : o->total + total;
    o->correct = p.first ? correct : o->correct + correct;
}
