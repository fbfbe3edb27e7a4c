//! Description of the machine and software of a run.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use swinq_system::machine::{self, CpuTime};

/// The GPU of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Product name, as the driver reports it.
    pub name: String,
    /// Compute capability, such as `sm_90`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// Driver version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Device memory in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// The machine and the software of a run. Values that the system does not report are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of swinq.
    pub swinq: String,
    /// Operating system, such as `linux`.
    pub os: String,
    /// Processor architecture, such as `x86_64`.
    pub arch: String,
    /// Processor model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Instruction set of the CPU kernels, such as `avx512_vnni`; absent if no CPU kernel ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isa: Option<String>,
    /// Number of logical cores that this process may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<usize>,
    /// Number of worker threads.
    pub threads: usize,
    /// Main memory in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Load average of the last minute at the start of the run: the mean number of threads that ran or
    /// waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_average: Option<f64>,
    /// Start of the run, UTC, ISO 8601.
    pub time: String,
    /// The GPU, if the run used one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// Versions of libraries that the figures depend on, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub libraries: BTreeMap<String, String>,
}

impl Environment {
    /// Describes this machine at this time. `isa` is the instruction set of the CPU kernels (`None` if none
    /// ran), `threads` the number of worker threads, and `libraries` the versions by name.
    pub fn detect(isa: Option<&str>, threads: usize, libraries: BTreeMap<String, String>) -> Environment {
        Environment {
            swinq: env!("CARGO_PKG_VERSION").to_owned(),
            os: std::env::consts::OS.to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            cpu: machine::processor(),
            isa: isa.map(str::to_owned),
            cores: std::thread::available_parallelism().ok().map(usize::from),
            threads,
            memory_bytes: machine::memory(),
            load_average: machine::load_average(),
            time: iso_utc(SystemTime::now()),
            gpu: None,
            libraries,
        }
    }
}

/// The load of the machine during a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Load average of the last minute at the end of the measurement. It includes the measurement itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub average: Option<f64>,
    /// Mean number of cores that other processes kept busy during the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_cores: Option<f64>,
}

/// Share of the cores that other processes may use before a latency counts as disturbed.
const DISTURBED: f64 = 0.1;

impl Load {
    /// The cores that other processes kept busy, if they were more than a tenth of the machine's `cores`: a
    /// latency that was measured meanwhile is disturbed.
    pub fn disturbance(&self, cores: usize) -> Option<f64> {
        self.other_cores.filter(|&other| other > DISTURBED * cores as f64)
    }
}

/// The load during several measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadSum {
    average: Option<f64>,
    seconds: f64,
    /// Seconds of cores that other processes used.
    busy: f64,
}

impl LoadSum {
    /// Adds the load during a measurement of `seconds`.
    pub fn add(&mut self, load: &Load, seconds: f64) {
        self.average = load.average.or(self.average);
        if let Some(other) = load.other_cores {
            self.seconds += seconds;
            self.busy += other * seconds;
        }
    }

    /// The last load average, and the mean of the other processes' cores over the time of all measurements.
    pub fn load(&self) -> Load {
        let other_cores = (self.seconds > 0.0).then(|| self.busy / self.seconds);
        Load { average: self.average, other_cores }
    }
}

/// The warning that other processes used `busy` of `cores` cores while `models`, which have their verb, were
/// measured.
pub(crate) fn disturbed(busy: f64, cores: usize, models: &str) -> String {
    format!(
        "Latency is disturbed: other processes used up to {busy:.1} of {cores} cores while {models} measured."
    )
}

/// Measures the load between two points in time. Values that the system does not report are absent.
#[derive(Clone, Copy, Debug)]
pub struct LoadMeter {
    start: Option<CpuTime>,
}

impl LoadMeter {
    /// Starts a measurement.
    pub fn start() -> LoadMeter {
        LoadMeter { start: machine::cpu_time() }
    }

    /// The load since the start.
    pub fn finish(self) -> Load {
        let other = self.start.zip(machine::cpu_time()).and_then(|(start, end)| other_cores(start, end));
        Load { average: machine::load_average(), other_cores: other }
    }
}

/// Mean number of cores that other processes kept busy between two points in time; `None` if no time passed.
fn other_cores(start: CpuTime, end: CpuTime) -> Option<f64> {
    let real = end.real - start.real;
    let other = (end.busy - start.busy) - (end.own - start.own);
    (real > 0.0).then(|| (other / real).max(0.0))
}

/// Peak resident memory of this process in bytes: `VmHWM` on Linux, `None` on other systems.
pub fn peak_memory_bytes() -> Option<u64> {
    machine::peak_memory()
}

/// `time` in UTC as ISO 8601, to the second.
pub fn iso_utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day (Gregorian calendar) of the day that is `days` after 1970-01-01.
fn civil_date(mut days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_iso_8601() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(iso_utc(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn the_own_work_is_not_the_load_of_others() {
        let start = CpuTime { busy: 1000.0, own: 200.0, real: 500.0 };
        let end = CpuTime { busy: 1350.0, own: 400.0, real: 600.0 };
        assert_eq!(other_cores(start, end), Some(1.5));
        assert_eq!(other_cores(start, CpuTime { busy: 1100.0, ..end }), Some(0.0), "not negative");
        assert_eq!(other_cores(start, start), None, "no time has passed");
        let load = LoadMeter::start().finish();
        assert_eq!(load.average.is_some(), cfg!(target_os = "linux"));
    }

    #[test]
    fn a_short_burst_of_load_does_not_disturb_a_long_measurement() {
        let load = |other| Load { average: Some(other), other_cores: Some(other) };
        assert_eq!((load(0.2).disturbance(2), load(0.21).disturbance(2)), (None, Some(0.21)));
        assert_eq!(Load::default().disturbance(1), None);
        let mut sum = LoadSum::default();
        sum.add(&load(0.0), 9.0);
        sum.add(&load(1.0), 1.0);
        assert_eq!(sum.load(), Load { average: Some(1.0), other_cores: Some(0.1) });
        sum.add(&Load::default(), 100.0);
        assert_eq!(sum.load().other_cores, Some(0.1), "a load that the system does not report is not 0");
        assert_eq!(LoadSum::default().load(), Load::default());
    }

    #[test]
    fn this_machine_is_described() {
        let libraries = BTreeMap::from([("cublaslt".to_owned(), "12.8".to_owned())]);
        let environment = Environment::detect(Some("avx2"), 3, libraries);
        assert_eq!((environment.threads, environment.isa.as_deref()), (3, Some("avx2")));
        assert_eq!(environment.swinq, env!("CARGO_PKG_VERSION"));
        assert_eq!(environment.libraries["cublaslt"], "12.8");
        assert!(environment.memory_bytes.unwrap() > 1 << 20);
    }
}
