// Results of the collectives of a warp, as `device.cuh` defines them.
#include "host.cuh"

namespace host {

template <class Element>
static void distribute(void* const (&lanes)[LANES], Element element) {
    for (u32 i = 0; i < LANES; i++) {
        for (u32 matrix = 0; matrix < 4; matrix++) {
            u32 row = i / 4, column = 2 * (i % 4);
            u32 low = element(matrix, row, column), high = element(matrix, row, column + 1);
            static_cast<MatrixLane*>(lanes[i])->out[matrix] = low | high << 16;
        }
    }
}

void load_matrix(void* const (&lanes)[LANES]) {
    distribute(lanes, [&](u32 matrix, u32 row, u32 column) -> u32 {
        return static_cast<MatrixLane*>(lanes[8 * matrix + row])->row[column];
    });
}

void load_matrix_transposed(void* const (&lanes)[LANES]) {
    distribute(lanes, [&](u32 matrix, u32 row, u32 column) -> u32 {
        return static_cast<MatrixLane*>(lanes[8 * matrix + column])->row[row];
    });
}

// `c += a b`, summed in the type `Wide`. 32 bytes hold `K` elements; `a_of(word, i)` and `b_of(word, i)`
// extract element i of a word.
template <class Sum, class Wide, u32 K, class A, class B>
static void multiply(void* const (&lanes)[LANES], A a_of, B b_of) {
    constexpr u32 PER_WORD = K / 8;
    Wide a[16][K], b[8][K];
    for (u32 i = 0; i < LANES; i++) {
        const auto* lane = static_cast<const ProductLane<Sum>*>(lanes[i]);
        for (u32 k = 0; k < 2 * PER_WORD; k++) {
            u32 half = k / PER_WORD, element = k % PER_WORD, at = (4 * half + i % 4) * PER_WORD + element;
            a[i / 4][at] = a_of(lane->a[2 * half], element);
            a[i / 4 + 8][at] = a_of(lane->a[2 * half + 1], element);
            b[i / 4][at] = b_of(lane->b[half], element);
        }
    }
    for (u32 i = 0; i < LANES; i++) {
        auto* lane = static_cast<ProductLane<Sum>*>(lanes[i]);
        for (u32 element = 0; element < 4; element++) {
            u32 row = i / 4 + element / 2 * 8, column = 2 * (i % 4) + element % 2;
            Wide sum = static_cast<Wide>(lane->c[element]);
            for (u32 k = 0; k < K; k++) sum += a[row][k] * b[column][k];
            lane->c[element] = static_cast<Sum>(sum);
        }
    }
}

// Sums of bytes are exact in `Wide`. Only the final conversion to s32 may overflow, and it wraps.
static s64 signed_byte(u32 word, u32 i) { return static_cast<s8>(word >> 8 * i); }
static s64 unsigned_byte(u32 word, u32 i) { return static_cast<u8>(word >> 8 * i); }
static f64 half(u32 word, u32 i) { return half_to_f32(static_cast<u16>(word >> 16 * i)); }

void multiply_s8(void* const (&lanes)[LANES]) { multiply<s32, s64, 32>(lanes, signed_byte, signed_byte); }
void multiply_u8s8(void* const (&lanes)[LANES]) { multiply<s32, s64, 32>(lanes, unsigned_byte, signed_byte); }
// Products of halves are exact in f64; the sum is rounded to f32 once.
void multiply_f16(void* const (&lanes)[LANES]) { multiply<f32, f64, 16>(lanes, half, half); }

}  // namespace host
