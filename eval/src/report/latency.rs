//! Latency by batch size, with percentiles and the load of the machine.

use super::front::series;
use super::svg::bar;
use crate::results::Results;

/// Spread of the runs from which a latency is called noisy: its 90th percentile above 1.15 of its median.
const NOISY: f64 = 1.15;

/// The latencies of one batch size.
pub struct LatencyPanel {
    pub batch: usize,
    pub rows: Vec<LatencyRow>,
    /// The load of the machine during the measurement.
    pub load: Option<String>,
}

/// The latency of one model.
pub struct LatencyRow {
    pub name: String,
    pub bar: String,
    pub median: String,
    pub interval: String,
    pub p90: String,
    pub p99: String,
    pub runs: usize,
    pub noisy: bool,
}

/// A panel for every batch size.
pub fn panels(results: &Results, names: &[String]) -> Vec<LatencyPanel> {
    results.batch_sizes().into_iter().map(|batch| panel(results, names, batch)).collect()
}

fn panel(results: &Results, names: &[String], batch: usize) -> LatencyPanel {
    let measured = || {
        let all = results.models.iter().enumerate();
        all.filter_map(|(i, model)| Some((i, model.latency_ms.get(&batch)?)))
    };
    let longest = measured().map(|(_, stats)| stats.p99).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let row = |(i, stats): (usize, &crate::results::Stats)| LatencyRow {
        name: names[i].clone(),
        bar: bar(
            &[(stats.median / longest, &series(i))],
            Some([stats.median / longest, stats.p99 / longest]),
        ),
        median: format!("{:.3}", stats.median),
        interval: stats.median_interval.map_or(String::new(), |[low, high]| format!("{low:.3} to {high:.3}")),
        p90: format!("{:.3}", stats.p90),
        p99: format!("{:.3}", stats.p99),
        runs: stats.runs,
        noisy: stats.p90 > NOISY * stats.median,
    };
    LatencyPanel { batch, rows: measured().map(row).collect(), load: load(results, batch) }
}

/// The load while `batch` was measured, in one sentence.
fn load(results: &Results, batch: usize) -> Option<String> {
    let load = results.load.get(&batch)?;
    let cores = results.environment.cores.map_or(String::new(), |cores| format!(" of {cores}"));
    let other = load.other_cores.map(|other| format!("other processes used {other:.2}{cores} cores"));
    let average =
        load.average.map(|average| format!("load average {average:.2}, with the measurement itself"));
    let parts: Vec<String> = [other, average].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}
