//! The time of each launch of an engine.

use serde::{Deserialize, Serialize};

/// The launches of an inference, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Images of the inference.
    pub batch: usize,
    /// The launches.
    pub launches: Vec<LaunchResult>,
}

/// One launch of an engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LaunchResult {
    /// Path of the module, such as `layers.0.blocks.0.mlp.fc1`.
    pub name: String,
    /// The kernel; on a CPU `fused` marks a launch whose time is its share of a fused block.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Milliseconds.
    pub ms: f64,
    /// Multiply-accumulates.
    pub macs: u64,
}

impl Profile {
    /// Milliseconds of all launches.
    pub fn total_ms(&self) -> f64 {
        self.launches.iter().map(|launch| launch.ms).sum()
    }
}
