//! Figures of macOS, by `sysctl`. It needs none of the system's frameworks, so that programs can be linked on
//! other systems.

use std::str::FromStr;

use sysctl::{Ctl, Sysctl};

use super::CpuTime;

fn value<T: FromStr>(name: &str) -> Option<T> {
    Ctl::new(name).ok()?.value_string().ok()?.trim().parse().ok()
}

pub(super) fn memory() -> Option<u64> {
    value("hw.memsize")
}

/// The system states the share that is available in percent.
pub(super) fn available_memory() -> Option<u64> {
    let percent = value::<u64>("kern.memorystatus_level").filter(|percent| (1..=100).contains(percent))?;
    Some(memory()? / 100 * percent)
}

pub(super) fn group_limit() -> Option<u64> {
    None
}

pub(super) fn group_left() -> Option<u64> {
    None
}

pub(super) fn peak_memory() -> Option<u64> {
    None
}

pub(super) fn processor() -> Option<String> {
    value("machdep.cpu.brand_string")
}

pub(super) fn host() -> Option<String> {
    value("kern.hostname")
}

pub(super) fn load_average() -> Option<f64> {
    None
}

pub(super) fn cpu_time() -> Option<CpuTime> {
    None
}
