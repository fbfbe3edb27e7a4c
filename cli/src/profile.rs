//! `bench --profile`: the time of each launch and, on a GPU, the share of the roofline that it reaches.

use comfy_table::Table;
use swinq::int8_runtime::LaunchProfile;
use swinq::{Candidate, CandidateRunner};
use swinq_ladder::roofline::{Arithmetic, Roofline};

use crate::out::say;
use crate::tables;

/// Number of inferences that are timed on a CPU.
const RUNS: usize = 20;

/// Prints the profile of `candidate` at one batch size, for images of the size that it is timed on.
pub fn print(candidate: &Candidate, batch_size: usize) -> anyhow::Result<()> {
    let label = candidate.result.label();
    let CandidateRunner::Engine(engine) = &candidate.runner else { return Ok(()) };
    let images = batch_size.min(engine.max_batch());
    let batch = candidate.noise(images)?;
    engine.profile(batch.size, &batch.pixels, 3)?;
    let launches = engine.profile(batch.size, &batch.pixels, RUNS)?;
    let table = match engine.device() {
        None => cpu_table(&launches),
        Some(device) => cuda_table(&launches, &Roofline::of(device)),
    };
    say!("\n{label}, batch {images}, {}: {table}", batch.size);
    Ok(())
}

fn total_seconds(launches: &[LaunchProfile]) -> f64 {
    launches.iter().map(|l| l.time.as_secs_f64()).sum()
}

/// The part of the network that a launch belongs to: `patch_embed` (with the position embedding), `layers.0`
/// and so on, or the part after the last stage.
fn part(name: &str) -> String {
    let mut words = name.split('.');
    match (words.next(), words.next()) {
        (Some("layers"), Some(stage)) => format!("layers.{stage}"),
        (Some("patch_embed" | "absolute_pos_embed"), _) => "patch_embed".to_owned(),
        _ => "head".to_owned(),
    }
}

/// Adds up the launches of each part, in the order of the network.
fn by_part(launches: &[LaunchProfile]) -> Vec<LaunchProfile> {
    let mut parts: Vec<LaunchProfile> = Vec::new();
    for launch in launches {
        let name = part(&launch.name);
        match parts.last_mut().filter(|last| last.name == name) {
            Some(last) => {
                last.time += launch.time;
                last.macs += launch.macs;
                last.bytes += launch.bytes;
            }
            None => parts.push(LaunchProfile { name, detail: String::new(), ..launch.clone() }),
        }
    }
    parts
}

fn cpu_table(launches: &[LaunchProfile]) -> String {
    let total = total_seconds(launches);
    let (parts, each) = (cpu_rows("part", &by_part(launches), total), cpu_rows("launch", launches, total));
    format!("{:.3} ms in launches\n{parts}\n\n{each}", total * 1e3)
}

/// A table with one row for each of `rows`. Shares are fractions of `total` seconds.
fn cpu_rows(what: &str, rows: &[LaunchProfile], total: f64) -> Table {
    let mut table = tables::markdown([what, "us", "share", "GMAC/s", "GB/s", ""]);
    tables::align_numbers(&mut table, 4);
    for row in rows {
        let seconds = row.time.as_secs_f64();
        let rate = row.macs as f64 / seconds / 1e9;
        table.add_row([
            row.name.clone(),
            format!("{:.1}", seconds * 1e6),
            format!("{:.1} %", 100.0 * seconds / total),
            if row.macs == 0 { String::new() } else { format!("{rate:.0}") },
            format!("{:.1}", row.bytes as f64 / seconds / 1e9),
            row.detail.clone(),
        ]);
    }
    table
}

/// The roofline of `launch`: the shortest time in seconds that it can take.
fn least_seconds(roofline: &Roofline, launch: &LaunchProfile) -> f64 {
    roofline.seconds(Arithmetic::Int8, 2.0 * launch.macs as f64, launch.bytes as f64)
}

fn cuda_table(launches: &[LaunchProfile], roofline: &Roofline) -> String {
    let total = total_seconds(launches);
    let least: f64 = launches.iter().map(|l| least_seconds(roofline, l)).sum();
    let mut table = tables::markdown(["launch", "us", "share", "GB/s", "TOPS", "roofline", "kernel"]);
    tables::align_numbers(&mut table, 5);
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

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn launches_belong_to_parts_in_the_order_of_the_network() {
        assert_eq!(part("patch_embed.proj"), "patch_embed");
        assert_eq!(part("absolute_pos_embed"), "patch_embed");
        assert_eq!(part("layers.1.blocks.0.mlp.fc1"), "layers.1");
        assert_eq!(part("layers.1.downsample.norm"), "layers.1");
        assert_eq!([part("norm"), part("head")], ["head", "head"]);
    }
}
