// The common parts of the patch embeddings: parameters, and the pixels of a patch. OPERAND is the type of the
// lookup table and the weights.
//
// Defines: INPUT (INPUT_U8, INPUT_F32, INPUT_F16, INPUT_BF16), the type of the pixels. Bytes become operands
// by a table; other pixels are normalised values, which become operands by the quantizer of their site:
// QUANTIZE (QUANTIZE_NONE, QUANTIZE_CODES, QUANTIZE_FAKE). CHANNELS_FIRST: the order of an image is
// `[CHANNELS, height, width]`.
#pragma once

#include "prelude.cuh"

#define INPUT_U8 0
#define INPUT_F32 1
#define INPUT_F16 2
#define INPUT_BF16 3

#define QUANTIZE_NONE 0
#define QUANTIZE_CODES 1
#define QUANTIZE_FAKE 2

#if INPUT == INPUT_U8
typedef u8 Value;
#elif INPUT == INPUT_F32
typedef f32 Value;
#else
typedef u16 Value;
#endif

struct Params {
    // `[images, height, width, CHANNELS]`, or in the order of CHANNELS_FIRST.
    const Value* pixels;
    // Value of each byte of each channel, `[CHANNELS][256]`; null for other pixels than bytes.
    const OPERAND* lookup;
    const OPERAND* weight;
    // Per column; `scale` as in `epilogue.cuh`.
    const f32* bias;
    const f32* scale;
    const f32* gamma;
    const f32* beta;
    // `[tokens of an image, columns]`.
    const f32* position;
    // The residual `[images * tokens, columns]`.
    void* out;
    // Set to 1 if a pixel is not finite.
    u32* raised;
    // Pixels of an image. Patches at its right and lower edges may extend beyond it; their values there are
    // zeros.
    s32 height, width;
    // Patches in a row of patches, and tokens of an image and of all images.
    s32 grid_width, tokens, total_tokens;
    s32 columns;
    f32 output_scale, epsilon;
    // Reciprocal of the scale of the pixels' site, and the scale itself; for other pixels than bytes.
    f32 input_recip, input_scale;
};

// Values of a patch.
constexpr int K = CHANNELS * PATCH * PATCH;
// Elements of the table of bytes.
constexpr int LOOKUP = INPUT == INPUT_U8 ? 256 * CHANNELS : 0;

// Whether no patch extends beyond its image, and rows of patches of bytes begin at a multiple of four bytes.
INLINE bool fills_images(const Params& p) {
    bool aligned = sizeof(Value) > 1 || reinterpret_cast<u64>(p.pixels) % 4 == 0;
    return aligned && p.height % PATCH == 0 && p.width % PATCH == 0;
}

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

    // The place of channel `channel` of the pixel that is `right` pixels to the right.
    INLINE const Value* at(const Params& p, s32 channel, s32 right) const {
#if CHANNELS_FIRST
        return p.pixels + ((static_cast<u64>(image) * CHANNELS + channel) * p.height + y) * p.width + x + right;
#else
        return p.pixels + ((static_cast<u64>(image) * p.height + y) * p.width + x + right) * CHANNELS + channel;
#endif
    }
};

#if INPUT == INPUT_U8

// The operand of a byte of channel `channel`.
INLINE OPERAND operand(const Params& p, const OPERAND* lookup, s32 channel, u8 byte) {
    return lookup[256 * channel + byte];
}

#else

INLINE f32 to_float(f32 x) { return x; }
INLINE f32 to_float(u16 x) { return INPUT == INPUT_F16 ? half_to_f32(x) : from_bits(static_cast<u32>(x) << 16); }
INLINE void to_operand(f32& to, f32 x) { to = x; }
INLINE void to_operand(u16& to, f32 x) { to = f32_to_half(x); }

// The operand of a normalised value.
INLINE OPERAND operand(const Params& p, const OPERAND*, s32, Value value) {
    f32 x = to_float(value);
    if (!finite(x)) raise_flag(p.raised);
#if QUANTIZE == QUANTIZE_CODES
    x = code_f32(x * p.input_recip);
#elif QUANTIZE == QUANTIZE_FAKE
    x = fake(x, p.input_recip, p.input_scale);
#endif
    OPERAND y;
    to_operand(y, x);
    return y;
}

#endif
