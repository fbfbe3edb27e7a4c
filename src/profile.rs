//! `bench --profile`: the time of each launch, and how far it is from what the machine allows.

use comfy_table::{CellAlignment, Table, presets};
use swinq_int8_runtime::LaunchProfile;
use swinq_kernels::cuda::Device;

use crate::backend::Runnable;
use crate::out::say;
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

/// What a GPU allows.
struct Roofline {
    bytes_per_second: f64,
    int8_per_second: f64,
}

impl Roofline {
    /// From the clocks and units of `device`: dense INT8 operations (two for each multiply-accumulate) of its tensor
    /// cores, and the transfers of its memory. Half precision has half the operations.
    fn of(device: &Device) -> Roofline {
        let arch = device.arch();
        let per_clock = match (arch.major, arch.minor) {
            (9.., _) => 8192.0,
            (8, 0) => 4096.0,
            _ => 2048.0,
        };
        let units = f64::from(device.multiprocessors()) * f64::from(device.clock_khz()) * 1e3;
        let transfers = 2.0 * f64::from(device.memory_clock_khz()) * 1e3;
        Roofline {
            bytes_per_second: transfers * f64::from(device.bus_width_bits()) / 8.0,
            int8_per_second: units * per_clock,
        }
    }

    /// The least seconds that `launch` can take.
    fn seconds(&self, launch: &LaunchProfile) -> f64 {
        let operations = 2.0 * launch.macs as f64 / self.int8_per_second;
        operations.max(launch.bytes as f64 / self.bytes_per_second)
    }
}

fn cuda_table(launches: &[LaunchProfile], roofline: &Roofline) -> String {
    let total = total_seconds(launches);
    let least: f64 = launches.iter().map(|l| roofline.seconds(l)).sum();
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
            format!("{:.0} %", 100.0 * roofline.seconds(launch) / seconds),
            launch.detail.clone(),
        ]);
    }
    format!("{:.3} ms in launches, roofline {:.3} ms\n{table}", total * 1e3, least * 1e3)
}
