//! `bench --profile`: the time of each launch, and how far it is from what the machine allows.

use comfy_table::{CellAlignment, Table, presets};
use swinq_int8_runtime::LaunchProfile;

use crate::backend::Runnable;
use crate::out::say;
use crate::roofline::{Arithmetic, Roofline};
use crate::runner::{self, Subject};

/// Runs per launch on a CPU.
const RUNS: usize = 20;

/// Prints the profile of `subject` at one batch size.
pub fn print(subject: &mut Subject, batch_size: usize) -> anyhow::Result<()> {
    let label = subject.result.label();
    match &mut subject.classifier {
        Runnable::Cpu(engine) => {
            let batch = runner::noise(subject.config.image_size, batch_size);
            engine.profile(&batch.pixels, 3)?;
            let launches = engine.profile(&batch.pixels, RUNS)?;
            let images = batch_size.min(engine.max_batch());
            say!("\n{label}, batch {images}: {}", cpu_table(&launches));
        }
        Runnable::Cuda(engine) => {
            let launches = engine.profile(batch_size)?;
            let roofline = Roofline::of(engine.device());
            say!("\n{label}, batch {batch_size}: {}", cuda_table(&launches, &roofline));
        }
        Runnable::Other(_) => {}
    }
    Ok(())
}

fn total_seconds(launches: &[LaunchProfile]) -> f64 {
    launches.iter().map(|l| l.time.as_secs_f64()).sum()
}

fn cpu_table(launches: &[LaunchProfile]) -> String {
    let total = total_seconds(launches);
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(["launch", "us", "share", "GMAC/s"]);
    for launch in launches {
        let seconds = launch.time.as_secs_f64();
        let rate = launch.macs as f64 / seconds / 1e9;
        table.add_row([
            launch.name.clone(),
            format!("{:.1}", seconds * 1e6),
            format!("{:.1} %", 100.0 * seconds / total),
            if launch.macs == 0 { String::new() } else { format!("{rate:.0}") },
        ]);
    }
    format!("{:.3} ms in launches\n{table}", total * 1e3)
}

/// The least seconds that `launch` can take.
fn least_seconds(roofline: &Roofline, launch: &LaunchProfile) -> f64 {
    roofline.seconds(Arithmetic::Int8, 2.0 * launch.macs as f64, launch.bytes as f64)
}

fn cuda_table(launches: &[LaunchProfile], roofline: &Roofline) -> String {
    let total = total_seconds(launches);
    let least: f64 = launches.iter().map(|l| least_seconds(roofline, l)).sum();
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["launch", "us", "share", "GB/s", "TOPS", "roofline", "kernel"]);
    for column in table.column_iter_mut().skip(1).take(5) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for launch in launches {
        let seconds = launch.time.as_secs_f64();
        let tops = 2.0 * launch.macs as f64 / seconds / 1e12;
        table.add_row([
            launch.name.clone(),
            format!("{:.1}", seconds * 1e6),
            format!("{:.1} %", 100.0 * seconds / total),
            format!("{:.0}", launch.bytes as f64 / seconds / 1e9),
            if launch.macs == 0 { String::new() } else { format!("{tops:.0}") },
            format!("{:.0} %", 100.0 * least_seconds(roofline, launch) / seconds),
            launch.detail.clone(),
        ]);
    }
    format!("{:.3} ms in launches, roofline {:.3} ms\n{table}", total * 1e3, least * 1e3)
}
