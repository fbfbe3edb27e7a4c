//! Figures of Linux, in the text files of `/proc` and of control groups.

use std::fs::read_to_string;

use super::CpuTime;

pub(super) fn memory() -> Option<u64> {
    kibibytes(&read("/proc/meminfo")?, "MemTotal")
}

pub(super) fn available_memory() -> Option<u64> {
    kibibytes(&read("/proc/meminfo")?, "MemAvailable")
}

/// The memory that this process's control group may take, in bytes.
pub(super) fn group_limit() -> Option<u64> {
    group("memory.max")
}

/// The memory that this process's control group may still take, in bytes.
pub(super) fn group_left() -> Option<u64> {
    Some(group("memory.max")?.saturating_sub(group("memory.current")?))
}

pub(super) fn peak_memory() -> Option<u64> {
    kibibytes(&read("/proc/self/status")?, "VmHWM")
}

pub(super) fn processor() -> Option<String> {
    field(&read("/proc/cpuinfo")?, "model name").map(str::to_owned)
}

pub(super) fn host() -> Option<String> {
    read("/proc/sys/kernel/hostname")
}

pub(super) fn load_average() -> Option<f64> {
    read("/proc/loadavg")?.split_whitespace().next()?.parse().ok()
}

pub(super) fn cpu_time() -> Option<CpuTime> {
    let own = own_ticks(&read("/proc/self/stat")?)?;
    let real = 100.0 * read("/proc/uptime")?.split_whitespace().next()?.parse::<f64>().ok()?;
    Some(CpuTime { busy: busy_ticks(&read("/proc/stat")?)?, own, real })
}

fn read(path: &str) -> Option<String> {
    read_to_string(path).ok()
}

/// The number in a file of this process's control group.
fn group(file: &str) -> Option<u64> {
    read(&format!("/sys/fs/cgroup/{file}"))?.trim().parse().ok()
}

/// Ticks of user, nice, system, irq, softirq and steal time in the first line of `/proc/stat`.
fn busy_ticks(stat: &str) -> Option<f64> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let ticks: Vec<f64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
    let at = |index: usize| ticks.get(index).copied();
    Some(at(0)? + at(1)? + at(2)? + at(5)? + at(6)? + at(7)?)
}

/// User and system ticks of a process in its `stat` file. The fields follow the name, which is in
/// parentheses.
fn own_ticks(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<f64>().ok()? + fields.next()?.parse::<f64>().ok()?)
}

/// The value of the first line `key : value`; `None` if it is missing or empty.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    let mut values = pairs.filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim());
    values.next().filter(|value| !value.is_empty())
}

/// The value of a line `key: N kB`, in bytes.
fn kibibytes(text: &str, key: &str) -> Option<u64> {
    field(text, key)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_files_are_parsed() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2:1\nmodel name\t: Other\nVmHWM:\t  12 kB\nVmPeak: x kB\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 2:1"));
        assert_eq!(kibibytes(text, "VmHWM"), Some(12 * 1024));
        assert_eq!(kibibytes(text, "VmPeak"), None);
        assert_eq!(kibibytes(text, "VmRSS"), None);
        assert_eq!(
            kibibytes("MemTotal:       24 kB\nMemAvailable:   12 kB\n", "MemAvailable"),
            Some(12 << 10)
        );
    }

    #[test]
    fn processor_times_are_parsed() {
        assert_eq!(busy_ticks("cpu  10 2 30 400 50 6 7 8 0 0\ncpu0 1\n"), Some(63.0));
        assert_eq!(busy_ticks("intr 3"), None);
        let stat = "12 (a) b) S 1 2 3 4 5 6 7 8 9 10 1100 22 5 5 20";
        assert_eq!(own_ticks(stat), Some(1122.0));
    }

    #[test]
    fn the_peak_counts_what_was_used() {
        let block = vec![1u8; 8 << 20];
        assert!(peak_memory().unwrap() > std::hint::black_box(&block).len() as u64);
    }
}
