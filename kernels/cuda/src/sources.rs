//! The source texts of the kernels, embedded in the binary.

use std::sync::LazyLock;

use super::contract::contract_header;

/// Every file of `kernels/cuda/sources`, as name and text.
pub const SOURCES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sources.rs"));

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
