//! The kernels' parameter structs, with the same fields in the same order.

use crate::{Params, TensorMap};

/// `Epilogue` of epilogue.cuh.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct EpilogueParams {
    pub(super) scale: u64,
    pub(super) bias: u64,
    pub(super) recip: u64,
    pub(super) zero_point: u64,
    pub(super) step: u64,
    pub(super) correction: u64,
    pub(super) two_codes: u64,
    pub(super) map: u64,
    pub(super) out: u64,
    pub(super) n: i32,
    pub(super) stride: i32,
    pub(super) map_rows: i32,
    pub(super) map_tokens: i32,
    pub(super) heads: i32,
    pub(super) output_scale: f32,
    pub(super) fake_recip: f32,
    pub(super) fake_scale: f32,
}

/// `Params` of gemm.cu.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct GemmParams {
    pub(super) a: u64,
    pub(super) w: u64,
    pub(super) m: i32,
    pub(super) n_packed: i32,
    pub(super) k_bytes: i32,
    pub(super) lda: i32,
    pub(super) ldw: i32,
    pub(super) tiles_n: i32,
    pub(super) tiles: i32,
    pub(super) epilogue: EpilogueParams,
}

// SAFETY: `repr(C)`, with the fields of `Params` in gemm.cu in the same order.
unsafe impl Params for GemmParams {}

/// `RolesParams` of gemm_roles.cu.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RolesParams {
    pub(super) gemm: GemmParams,
    pub(super) a: TensorMap,
    pub(super) w: TensorMap,
}

// SAFETY: `repr(C)`, with the fields of `RolesParams` in gemm_roles.cu in the same order; `TensorMap` has the same
// size and alignment on both sides.
unsafe impl Params for RolesParams {}

/// `Params` of dequant.cu.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DequantParams {
    pub(super) sums: u64,
    pub(super) m: i32,
    pub(super) ld: i32,
    pub(super) epilogue: EpilogueParams,
}

// SAFETY: `repr(C)`, with the fields of `Params` in dequant.cu in the same order.
unsafe impl Params for DequantParams {}
