//! Figures of Windows.

use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use super::CpuTime;

/// A figure of the memory. 0 stands for one that the system does not state.
fn of_memory(figure: impl Fn(&System) -> u64) -> Option<u64> {
    let kind = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    Some(figure(&System::new_with_specifics(kind).ok()?)).filter(|&bytes| bytes > 0)
}

pub(super) fn memory() -> Option<u64> {
    of_memory(System::total_memory)
}

pub(super) fn available_memory() -> Option<u64> {
    of_memory(System::available_memory)
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
    let kind = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
    let system = System::new_with_specifics(kind).ok()?;
    let name = system.cpus().first()?.brand().trim().to_owned();
    Some(name).filter(|name| !name.is_empty())
}

pub(super) fn host() -> Option<String> {
    System::host_name().ok()
}

pub(super) fn load_average() -> Option<f64> {
    None
}

pub(super) fn cpu_time() -> Option<CpuTime> {
    None
}
