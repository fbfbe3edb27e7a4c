// Collectives of a warp for `host.cuh`: each lane passes its operands, and the results are computed once all
// lanes have arrived.
#pragma once

INLINE void warp_sync() {
    static const host::Collective collective = {"warp_sync", 0, [](void* const(&)[host::LANES]) {}};
    host::join(collective, nullptr);
}

INLINE bool any_lane(u32 x) {
    auto run = [](void* const(&lanes)[host::LANES]) {
        u32 any = 0;
        for (void* lane : lanes) any |= *static_cast<u32*>(lane);
        for (void* lane : lanes) *static_cast<u32*>(lane) = any;
    };
    static const host::Collective collective = {"any_lane", 0, run};
    host::join(collective, &x);
    return x != 0;
}

template <class T>
INLINE T host_shuffle_xor(T value, u32 mask) {
    struct Lane {
        T value, result;
        u32 mask;
    };
    auto run = [](void* const(&lanes)[host::LANES]) {
        for (u32 i = 0; i < host::LANES; i++) {
            Lane* lane = static_cast<Lane*>(lanes[i]);
            lane->result = static_cast<Lane*>(lanes[i ^ lane->mask])->value;
        }
    };
    if (mask >= host::LANES) host::fail("shuffle_xor: mask %u", mask);
    const host::Collective collective = {"shuffle_xor", mask, run};
    Lane lane = {value, {}, mask};
    host::join(collective, &lane);
    return lane.result;
}
INLINE f32 shuffle_xor(f32 v, u32 mask) { return host_shuffle_xor(v, mask); }
INLINE u32 shuffle_xor(u32 v, u32 mask) { return host_shuffle_xor(v, mask); }

// The row is read at once. If another lane writes it without a `warp_sync` in between, one of the two lane
// orders reads it too early, and the runs differ.
INLINE void host_load_matrix(const host::Collective& collective, u32 (&out)[4], const void* row) {
    host::expect_shared(row, 16, collective.name);
    host::MatrixLane lane;
    __builtin_memcpy(lane.row, row, sizeof lane.row);
    host::join(collective, &lane);
    __builtin_memcpy(out, lane.out, sizeof lane.out);
}
INLINE void load_matrix_x4(u32 (&out)[4], const void* row) {
    static const host::Collective collective = {"load_matrix_x4", 0, host::load_matrix};
    host_load_matrix(collective, out, row);
}
INLINE void load_matrix_x4_transposed(u32 (&out)[4], const void* row) {
    static const host::Collective collective = {"load_matrix_x4_transposed", 0, host::load_matrix_transposed};
    host_load_matrix(collective, out, row);
}

template <class Sum>
INLINE void host_multiply(const host::Collective& collective, Sum (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    host::ProductLane<Sum> lane;
    __builtin_memcpy(lane.a, a, sizeof lane.a);
    __builtin_memcpy(lane.b, b, sizeof lane.b);
    __builtin_memcpy(lane.c, c, sizeof lane.c);
    host::join(collective, &lane);
    __builtin_memcpy(c, lane.c, sizeof lane.c);
}
INLINE void mma_s8(s32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    static const host::Collective collective = {"mma_s8", 0, host::multiply_s8};
    host_multiply(collective, c, a, b);
}
INLINE void mma_u8s8(s32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    static const host::Collective collective = {"mma_u8s8", 0, host::multiply_u8s8};
    host_multiply(collective, c, a, b);
}
INLINE void mma_f16(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    static const host::Collective collective = {"mma_f16", 0, host::multiply_f16};
    host_multiply(collective, c, a, b);
}
