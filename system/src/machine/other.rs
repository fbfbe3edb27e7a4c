//! Figures of Windows and macOS.

use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use super::CpuTime;

/// The figures of memory. 0 stands for a figure that the system does not state.
fn of_memory(figure: impl Fn(&System) -> u64) -> Option<u64> {
    let kind = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    Some(figure(&System::new_with_specifics(kind))).filter(|&bytes| bytes > 0)
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
    let system = System::new_with_specifics(kind);
    let name = system.cpus().first()?.brand().trim().to_owned();
    Some(name).filter(|name| !name.is_empty())
}

pub(super) fn host() -> Option<String> {
    System::host_name()
}

pub(super) fn load_average() -> Option<f64> {
    (!cfg!(windows)).then(|| System::load_average().one)
}

pub(super) fn cpu_time() -> Option<CpuTime> {
    None
}
