//! The source texts of the kernels, embedded in the binary.

use std::sync::LazyLock;

use super::contract::contract_header;

macro_rules! table {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../sources/", $name)))),*]
    };
}

/// Every file of `kernels/cuda/sources`, as name and text. To add a file, add its name.
pub const SOURCES: &[(&str, &str)] = table![
    "attention.cuh",
    "attention_f16.cu",
    "attention_i8.cu",
    "attention_tiled.cu",
    "cosine.cuh",
    "dequant.cu",
    "device.cuh",
    "epilogue.cuh",
    "gemm.cu",
    "gemm_roles.cu",
    "gemm_sm90.cu",
    "gemm_sm90.cuh",
    "head.cu",
    "heads.cu",
    "ladder_elementwise.cu",
    "ladder_gemm.cu",
    "ladder_softmax.cu",
    "ladder_tiled.cu",
    "mbarrier.cuh",
    "mlp_sm90.cu",
    "moments.cuh",
    "norm.cu",
    "output.cu",
    "patch.cu",
    "patch.cuh",
    "patch_half.cu",
    "prelude.cuh",
    "report.cu",
    "rows.cu",
    "rows.cuh",
    "softmax.cuh",
    "train.cuh",
    "train_attention.cuh",
    "train_attention_backward.cu",
    "train_attention_forward.cu",
    "train_columns.cu",
    "train_controls.cuh",
    "train_fake.cu",
    "train_images.cu",
    "train_loss.cu",
    "train_maps.cu",
    "train_norm.cu",
    "train_pointwise.cu",
    "train_rows.cu",
    "train_scales.cu",
    "train_table.cu",
    "train_update.cu",
    "wgmma.cuh",
    "window.cuh",
    "window_block.cu",
    "window_heads.cuh",
];

/// The text of a file.
pub fn source(name: &str) -> Option<&'static str> {
    SOURCES.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
}

/// The files that others include, as name and text. `contract.cuh`, generated from the reference's constants,
/// is one of them.
pub fn headers() -> impl Iterator<Item = (&'static str, &'static str)> {
    static CONTRACT: LazyLock<String> = LazyLock::new(contract_header);
    let files = SOURCES.iter().copied().filter(|(name, _)| name.ends_with(".cuh"));
    files.chain(std::iter::once(("contract.cuh", CONTRACT.as_str())))
}
