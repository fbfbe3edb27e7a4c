// LayerNorm statistics of one row as the reference defines them (`reference::RowNorm`); four lanes hold the
// sums of a row.
#pragma once

#include "prelude.cuh"

// Four elements of a row.
INLINE f32x4 values4(const f32* x) { return *reinterpret_cast<const f32x4*>(x); }
INLINE f32x4 values4(const u16* x) {
    u32x2 v = *reinterpret_cast<const u32x2*>(x);
    return f32x4{half_to_f32(static_cast<u16>(v.x)), half_to_f32(static_cast<u16>(v.x >> 16)),
                 half_to_f32(static_cast<u16>(v.y)), half_to_f32(static_cast<u16>(v.y >> 16))};
}

// Padded to four words, so that one 16-byte load from shared memory reads it.
struct alignas(16) RowNorm {
    f32 mean, inverse, shift;
};

INLINE f32 apply(const RowNorm& norm, f32 x, f32 gamma, f32 beta) {
    return fma_f32(fma_f32(x - norm.mean, norm.inverse, norm.shift), gamma, beta);
}

// Sixteen partial sums of a row, by the index mod 16; each of four neighbouring lanes holds four.
struct Sum16 {
    f32 sums[4];

    INLINE void clear() {
#pragma unroll
        for (int i = 0; i < 4; i++) sums[i] = 0.0f;
    }

    // Adds the lane's next four elements: indexes 16 i + 4 (lane % 4) to 16 i + 4 (lane % 4) + 3.
    INLINE void add(const f32x4& x) {
        sums[0] = sums[0] + x.x, sums[1] = sums[1] + x.y, sums[2] = sums[2] + x.z, sums[3] = sums[3] + x.w;
    }

    // The same with the squares of the elements.
    INLINE void add_squares(const f32x4& x) {
        sums[0] = fma_f32(x.x, x.x, sums[0]), sums[1] = fma_f32(x.y, x.y, sums[1]);
        sums[2] = fma_f32(x.z, x.z, sums[2]), sums[3] = fma_f32(x.w, x.w, sums[3]);
    }

    // Adds the upper half of the partial sums to the lower half until one is left: lanes 2, 3 to lanes 0, 1,
    // then lane 1 to lane 0, then within the lane. Addition commutes, so every lane gets the same sum.
    INLINE f32 fold() const {
        f32 x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = sums[i] + shuffle_xor(sums[i], 2);
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = x[i] + shuffle_xor(x[i], 1);
        return (x[0] + x[2]) + (x[1] + x[3]);
    }
};

// The statistics of a row of `count` elements, for each of the four lanes. A lane has `pieces` of four
// elements; `values(i)` is those with the indexes 16 i + 4 (lane % 4) to 16 i + 4 (lane % 4) + 3. MOST: no
// lane has more pieces, so that loops are unrolled and values can be registers; 0 if that is not known.
template <s32 MOST = 0, typename Values>
INLINE RowNorm row_norm(s32 count, s32 pieces, f32 epsilon, const Values& values) {
    Sum16 sum, squares;
    sum.clear();
#pragma unroll
    for (s32 i = 0; i < (MOST > 0 ? MOST : pieces); i++) {
        if (MOST == 0 || i < pieces) sum.add(values(i));
    }
    f32 n = to_f32(count), mean = div_f32(sum.fold(), n);
    sum.clear(), squares.clear();
#pragma unroll
    for (s32 i = 0; i < (MOST > 0 ? MOST : pieces); i++) {
        if (MOST > 0 && i >= pieces) continue;
        f32x4 x = values(i), d = {x.x - mean, x.y - mean, x.z - mean, x.w - mean};
        sum.add(d), squares.add_squares(d);
    }
    f32 inverse = rsqrt_f32(div_f32(squares.fold(), n) + epsilon);
    return RowNorm{mean, inverse, -(div_f32(sum.fold(), n) * inverse)};
}

// Pieces of the lane in a row of `count` elements.
INLINE s32 pieces_of(s32 count, s32 lane) { return (count - 4 * lane + 15) / 16; }
