// What the patch embeddings share: parameters, and the pixels of a patch. OPERAND is the type of the lookup table and
// the weights.
#pragma once

#include "prelude.cuh"

struct Params {
    // u8 `[images, height, width, CHANNELS]`.
    const u8* pixels;
    // Value of each byte of each channel, `[CHANNELS][256]`.
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
    // Pixels of an image. Patches at its right and lower edges may extend beyond it; their values there are zeros.
    s32 height, width;
    // Patches in a row of patches, and tokens of an image and of all images.
    s32 grid_width, tokens, total_tokens;
    s32 columns;
    f32 output_scale, epsilon;
};

// Values of a patch.
constexpr int K = CHANNELS * PATCH * PATCH;

// Whether no patch extends beyond its image.
INLINE bool fills_images(const Params& p) { return p.height % PATCH == 0 && p.width % PATCH == 0; }

// A pixel of a patch, which may lie beyond the image.
struct Pixel {
    s32 image, y, x;

    // The pixel in row `row` and column `column` of the patch of token `token` of all images.
    INLINE Pixel(const Params& p, s32 token, s32 row, s32 column) {
        image = token / p.tokens;
        s32 at = token - image * p.tokens;
        y = at / p.grid_width * PATCH + row, x = at % p.grid_width * PATCH + column;
    }

    // Pixels of the image from this one on to the right; WHOLE: patches do not extend beyond the image.
    template <bool WHOLE>
    INLINE s32 inside(const Params& p) const {
        return WHOLE ? PATCH : y < p.height ? p.width - x : 0;
    }

    INLINE const u8* bytes(const Params& p) const {
        return p.pixels + ((static_cast<u64>(image) * p.height + y) * p.width + x) * CHANNELS;
    }
};
