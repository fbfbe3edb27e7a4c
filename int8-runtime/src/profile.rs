//! The time of each launch.

use std::time::Duration;

/// The time of one launch in a profile.
#[derive(Clone, Debug)]
pub struct LaunchProfile {
    /// Module path of the launch.
    pub name: String,
    /// The kernel chosen for the launch, if there is a choice. On a CPU, `fused` marks a launch that runs as
    /// part of a fused block; its time is then its share of the block's time.
    pub detail: String,
    /// Time per run.
    pub time: Duration,
    /// Multiply-accumulates per run.
    pub macs: u64,
    /// Bytes that a run must move, to memory or between caches: inputs, outputs and weights once, a residual
    /// stream twice.
    pub bytes: u64,
}
