// Parameters of the patch embeddings. OPERAND is the type of the lookup table and the weights.
#pragma once

#include "prelude.cuh"

struct Params {
    // u8 `[images, size, size, 3]`.
    const u8* pixels;
    // Value of each byte of each channel, `[3][256]`.
    const OPERAND* lookup;
    const OPERAND* weight;
    // Per column; `scale` as in `epilogue.cuh`.
    const f32* bias;
    const f32* scale;
    const f32* gamma;
    const f32* beta;
    // `[tokens of an image, columns]`.
    const f32* position;
    // The stream `[images * tokens, columns]`.
    void* out;
    s32 size;
    // Tokens of all images.
    s32 total_tokens;
    s32 columns;
    f32 output_scale, epsilon;
};
