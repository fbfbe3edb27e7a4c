//! The section about a whole program: its time in float and in INT8, a metric, and the noise of its outputs.

use super::svg::bar;
use super::training::figure;
use crate::results::{GainMetric, ProgramGain, ProgramTimes};
use crate::text::{counted, decibels};

/// The section about a program.
pub struct ProgramSection {
    /// Time and metric, in sentences.
    pub summary: Vec<String>,
    /// How the figures were measured.
    pub conditions: String,
    /// In float, and in INT8.
    pub times: Vec<TimeRow>,
    /// Each output, and how the two agree in it.
    pub outputs: Vec<[String; 2]>,
}

/// The times of a call.
pub struct TimeRow {
    pub name: &'static str,
    /// The Swin and the rest, relative to the slower of the two programs.
    pub bar: String,
    pub program: String,
    pub swin: String,
    pub rest: String,
    pub share: String,
}

impl ProgramSection {
    /// The section about `gain`.
    pub fn new(gain: &ProgramGain) -> ProgramSection {
        let (float, int8) = (gain.times.float, gain.times.int8);
        let slowest = float.program_ms.max(int8.program_ms);
        ProgramSection {
            summary: [time(&gain.program, float, int8)]
                .into_iter()
                .chain(gain.metric.as_ref().map(metric))
                .collect(),
            conditions: conditions(gain),
            times: vec![row("float", float, None, slowest), row("INT8", int8, Some(float), slowest)],
            outputs: outputs(gain),
        }
    }
}

fn time(program: &str, float: ProgramTimes, int8: ProgramTimes) -> String {
    let name = if program.is_empty() { String::new() } else { format!(" ({program})") };
    format!(
        "With its Swin in INT8 a call of the program{name} takes {:.2}x of its time in float. The Swin takes {:.0} % of the time in float \
         and {:.0} % in INT8.",
        int8.program_ms / float.program_ms,
        100.0 * float.share,
        100.0 * int8.share
    )
}

fn metric(metric: &GainMetric) -> String {
    let GainMetric { name, float, int8 } = metric;
    let difference = int8 - float;
    let sign = if difference < 0.0 { "-" } else { "+" };
    format!(
        "{name}: {} in float and {} in INT8 ({sign}{}).",
        figure(*float),
        figure(*int8),
        figure(difference.abs())
    )
}

fn conditions(gain: &ProgramGain) -> String {
    let environment = &gain.environment;
    let load = environment.other_cores.map_or(String::new(), |cores| {
        format!(" Other processes used {cores:.1} cores meanwhile, so that the times are disturbed.")
    });
    format!(
        "Medians of {} on {}, in turn, without torch.compile. PyTorch {} with {}.{load}",
        counted(gain.batches, "batch").replace("batchs", "batches"),
        environment.device,
        environment.torch,
        counted(environment.torch_threads, "thread")
    )
}

/// The row of `times`; behind each time stands its ratio to that of `base`.
fn row(name: &'static str, times: ProgramTimes, base: Option<ProgramTimes>, slowest: f64) -> TimeRow {
    let cell = |of: fn(&ProgramTimes) -> f64| {
        let base = base.as_ref().map(of).filter(|&base| base > 0.0);
        let ratio = base.map_or(String::new(), |base| format!(" ({:.2}x)", of(&times) / base));
        figure(of(&times)) + &ratio
    };
    let rest = |times: &ProgramTimes| times.program_ms - times.swin_ms;
    TimeRow {
        name,
        bar: bar(&[(times.swin_ms / slowest, "k0"), (rest(&times) / slowest, "off")], None),
        program: cell(|times| times.program_ms),
        swin: cell(|times| times.swin_ms),
        rest: cell(rest),
        share: format!("{:.0} %", 100.0 * times.share),
    }
}

fn outputs(gain: &ProgramGain) -> Vec<[String; 2]> {
    let ratios = gain.outputs.iter().map(|(name, ratio)| [name.clone(), decibels(*ratio)]);
    let equal = |share: f64| format!("{:.2} % of the values are equal", 100.0 * share);
    let equal = gain.equal.iter().map(|(name, share)| [name.clone(), equal(*share)]);
    let others = gain.incomparable.iter().map(|(name, reason)| [name.clone(), reason.clone()]);
    ratios.chain(equal).chain(others).collect()
}
