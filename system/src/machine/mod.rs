//! The system's reports about this machine. Values that it does not report are absent.

#[cfg(not(any(target_os = "linux", windows)))]
mod bsd;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(windows)]
mod windows;

#[cfg(not(any(target_os = "linux", windows)))]
use bsd as system;
#[cfg(target_os = "linux")]
use linux as system;
#[cfg(windows)]
use windows as system;

/// Processor time since the system started, in clock ticks (100 per second on Linux).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuTime {
    /// Of all processes and the kernel, on all cores.
    pub busy: f64,
    /// Of this process.
    pub own: f64,
    /// Real time.
    pub real: f64,
}

/// Bytes of main memory.
pub fn memory() -> Option<u64> {
    system::memory()
}

/// Bytes of main memory, or of what a control group of Linux permits this process.
pub fn permitted_memory() -> Option<u64> {
    system::memory().into_iter().chain(system::group_limit()).min()
}

/// Bytes that this process could take now: what the system reports as available, or less if a control group
/// of Linux limits the process.
pub fn available_memory() -> Option<u64> {
    system::available_memory().into_iter().chain(system::group_left()).min()
}

/// The most resident memory that this process has had, in bytes; Linux only.
pub fn peak_memory() -> Option<u64> {
    system::peak_memory()
}

/// Model of the processor.
pub fn processor() -> Option<String> {
    system::processor()
}

/// Name of the machine in its network.
pub fn host() -> Option<String> {
    system::host().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Load average of the last minute: the mean number of threads that ran or waited; Linux only.
pub fn load_average() -> Option<f64> {
    system::load_average()
}

/// Processor times now; Linux only.
pub fn cpu_time() -> Option<CpuTime> {
    system::cpu_time()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let (all, permitted) = (memory().unwrap(), permitted_memory().unwrap());
        assert!(all > 1 << 28, "{all} bytes");
        assert!(permitted <= all);
        assert!(available_memory().unwrap() <= permitted);
        assert!(host().is_some());
        let of_linux = [load_average().is_some(), peak_memory().is_some(), cpu_time().is_some()];
        assert_eq!(of_linux, [cfg!(target_os = "linux"); 3]);
    }
}
