// The parameters of the rungs of the GEMM ladder.
#pragma once

#include "prelude.cuh"

struct Params {
    // `[m, k]`, `[n, k]` and `[m, n]`, contiguous.
    const f32* a;
    const f32* w;
    f32* out;
    s32 m, n, k;
};
