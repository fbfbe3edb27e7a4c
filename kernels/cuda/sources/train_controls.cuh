// The values that an iteration of a training on the device takes from the host, and its results.
#pragma once

#include "prelude.cuh"

// Numbers that differ from iteration to iteration.
struct Controls {
    // Factor of the loss in the backward pass.
    f64 loss_scale;
    // The share of an image's own label, if images are mixed.
    f64 partner_share;
    // The highest loss with which parameters are updated.
    f64 most_loss;
    // Learning rates of weights and of scales with the bias correction of the first moment, and the factor of
    // weights that decay.
    f64 rate_weights, rate_scales, keep;
    // The bias correction of the second moment.
    f64 unbias;
};

// The result of an iteration.
struct Outcome {
    // The loss: cross-entropy, divergence, relative error of feature maps and their weighted sum; and the
    // number of images that are classified correctly.
    f64 labels, kl, outputs, total, correct;
    // Norm of the gradient without the factor of the loss.
    f64 norm;
    // Whether the parameters were updated, and the number of blocks that found one that was not finite.
    f64 updated, unusable;
};
