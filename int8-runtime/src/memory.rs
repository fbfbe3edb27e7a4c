//! The memory that a process may still take, and the images that fit into that of a batch.

use std::fs::read_to_string;

use swinq_model::Size;

/// The most images of `size` at a time, for a network of images of the size `own` that runs up to `max_batch` of these. A batch of
/// larger images takes no more memory.
pub(crate) fn images_at_a_time(max_batch: usize, own: Size, size: Size) -> usize {
    (max_batch.saturating_mul(own.area()) / size.area()).clamp(1, max_batch)
}

/// Bytes of memory that this process could take now: what the system reports as available, or less if a control group limits
/// the process. `None` where neither is known.
pub(crate) fn available_memory() -> Option<usize> {
    let system = read_to_string("/proc/meminfo").ok().and_then(|text| line(&text, "MemAvailable:"));
    let left = group("memory.max").zip(group("memory.current")).map(|(max, used)| max.saturating_sub(used));
    system.into_iter().chain(left).min()
}

/// Bytes of the machine's memory, or of what a control group permits this process. `None` where neither is known.
pub(crate) fn machine_memory() -> Option<usize> {
    let system = read_to_string("/proc/meminfo").ok().and_then(|text| line(&text, "MemTotal:"));
    system.into_iter().chain(group("memory.max")).min()
}

/// The number in a file of this process's control group.
fn group(file: &str) -> Option<usize> {
    read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse().ok()
}

/// The bytes in the line `name` of `/proc/meminfo`, which has KiB.
fn line(text: &str, name: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_kib() {
        let text = "MemTotal:       24 kB\nMemAvailable:   12 kB\n";
        assert_eq!(line(text, "MemAvailable:"), Some(12 << 10));
        assert_eq!(line(text, "MemTotal:"), Some(24 << 10));
        assert_eq!(line(text, "MemFree:"), None);
    }
}
