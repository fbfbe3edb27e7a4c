// The parameters and the sums of all products of activations and weights.
//
// Defines: those of `epilogue.cuh`.
#pragma once

#include "epilogue.cuh"

struct Params {
    // `[m, lda]` and `[n padded to 32, ldw]`; the strides are in bytes and multiples of 16.
    const u8* a;
    const u8* w;
    s32 m;
    // Number of rows of `w`.
    s32 n_packed;
    // Number of bytes of k.
    s32 k_bytes;
    s32 lda, ldw;
    // Number of tiles along n, and in total.
    s32 tiles_n, tiles;
    Epilogue epilogue;
};

#if INTEGER
typedef s32 Sum;
INLINE f32 sum_f32(Sum x) { return to_f32(x); }
#else
typedef f32 Sum;
INLINE f32 sum_f32(Sum x) { return x; }
#endif
