//! Charts that compare models: accuracy against speed, and latency.

use std::collections::BTreeMap;

use super::svg::{Anchor, Axis, Svg};
use crate::results::{ModelResult, Results};

/// Number of colours for models in the style sheet.
const COLORS: usize = 6;

/// CSS class of the colour of model `index`.
pub fn series(index: usize) -> String {
    format!("s{}", index % COLORS)
}

/// The batch size for which most models have a throughput; of several such sizes, the largest.
fn pareto_batch(models: &[&ModelResult]) -> Option<usize> {
    let mut owners: BTreeMap<usize, usize> = BTreeMap::new();
    for batch in models.iter().flat_map(|model| model.throughput_ips.keys()) {
        *owners.entry(*batch).or_default() += 1;
    }
    owners.into_iter().max_by_key(|&(batch, count)| (count, batch)).map(|(batch, _)| batch)
}

/// A chart of top-1 accuracy (percent) against images per second, with a dot per model and the Pareto front, and
/// its batch size. `None` if no model has both figures.
pub fn pareto(results: &Results) -> Option<(usize, String)> {
    let with_top1: Vec<&ModelResult> = results.models.iter().filter(|m| m.top1_percent().is_some()).collect();
    let batch = pareto_batch(&with_top1)?;
    let point = |(index, model): (usize, &ModelResult)| {
        let speed = model.throughput_ips.get(&batch).filter(|ips| ips.is_finite())?;
        Some((index, model.label(), *speed, model.top1_percent()?))
    };
    let points: Vec<_> = results.models.iter().enumerate().filter_map(point).collect();
    if points.is_empty() {
        return None;
    }
    let (width, height) = (980.0, 380.0);
    let x = Axis::around(points.iter().map(|p| p.2), 64.0, width - 24.0);
    let y = Axis::around(points.iter().map(|p| p.3), height - 48.0, 20.0);
    let mut svg = Svg::default();
    grid(&mut svg, &x, &y, [64.0, 20.0, width - 24.0, height - 48.0]);
    svg.text("label", [width / 2.0, height - 8.0], Anchor::Middle, &format!("images/s at batch {batch}"));
    svg.vertical_text("label", [14.0, height / 2.0], Anchor::Middle, "top-1, %");
    let front = front(&points.iter().map(|p| [p.2, p.3]).collect::<Vec<_>>());
    let pixels: Vec<[f64; 2]> = front.iter().map(|&[speed, top1]| [x.at(speed), y.at(top1)]).collect();
    svg.polyline("front", &pixels);
    let mut labels = Labels::default();
    for (index, name, speed, top1) in &points {
        let at = [x.at(*speed), y.at(*top1)];
        let tip = format!("{name}: {top1:.3} % at {speed:.1} images/s");
        svg.circle(&series(*index), at, 6.0, &tip);
        labels.push(at, name);
    }
    labels.draw(&mut svg, width / 2.0);
    Some((batch, svg.finish(width, height, "Top-1 accuracy against images per second, one dot per model")))
}

/// Grid lines and tick labels of both axes.
fn grid(svg: &mut Svg, x: &Axis, y: &Axis, [left, top, right, bottom]: [f64; 4]) {
    for (value, text) in x.ticks(6) {
        svg.line("grid", [x.at(value), top], [x.at(value), bottom]);
        svg.text("tick", [x.at(value), bottom + 16.0], Anchor::Middle, &text);
    }
    for (value, text) in y.ticks(5) {
        svg.line("grid", [left, y.at(value)], [right, y.at(value)]);
        svg.text("tick", [left - 8.0, y.at(value) + 4.0], Anchor::End, &text);
    }
}

/// The Pareto front, by ascending first coordinate: the points for which no other point is at least as large in both
/// coordinates.
fn front(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let dominated = |p: &[f64; 2]| points.iter().any(|q| q[0] >= p[0] && q[1] >= p[1] && q != p);
    let mut front: Vec<[f64; 2]> = points.iter().filter(|p| !dominated(p)).copied().collect();
    front.sort_by(|a, b| a[0].total_cmp(&b[0]));
    front.dedup();
    front
}

/// Names beside dots, moved apart vertically so that they do not overlap.
#[derive(Default)]
struct Labels(Vec<([f64; 2], String)>);

impl Labels {
    fn push(&mut self, at: [f64; 2], name: &str) {
        self.0.push((at, shorten(name, 44)));
    }

    fn draw(mut self, svg: &mut Svg, middle: f64) {
        self.0.sort_by(|a, b| a.0[1].total_cmp(&b.0[1]));
        let mut last = [f64::NEG_INFINITY; 2];
        for ([x, y], name) in self.0 {
            let right = x > middle;
            let side = &mut last[usize::from(right)];
            let at = (y - 11.0).max(*side + 15.0);
            *side = at;
            let (x, anchor) = if right { (x + 6.0, Anchor::End) } else { (x - 6.0, Anchor::Start) };
            svg.text("name", [x, at], anchor, &name);
        }
    }
}

/// Shortens `text` to at most `length` characters by replacing its middle with an ellipsis.
pub fn shorten(text: &str, length: usize) -> String {
    let count = text.chars().count();
    if count <= length {
        return text.to_owned();
    }
    let (head, tail) = (length / 2, length - length / 2 - 1);
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(count - tail).collect();
    format!("{start}…{end}")
}

/// A chart per batch size with bars of the median latency and marks at the 90th, 95th and 99th percentile. Each
/// chart has its own axis from zero.
pub fn latency(results: &Results) -> Vec<(usize, String)> {
    results.batch_sizes().into_iter().map(|batch| (batch, latency_at(results, batch))).collect()
}

fn latency_at(results: &Results, batch: usize) -> String {
    let measured: Vec<_> = results
        .models
        .iter()
        .enumerate()
        .filter_map(|(index, model)| Some((index, model.label(), model.latency_ms.get(&batch)?)))
        .collect();
    let (width, left, right, row) = (980.0, 290.0, 800.0, 30.0);
    let height = 12.0 + row * measured.len() as f64 + 24.0;
    let longest = measured.iter().map(|(_, _, stats)| stats.p99).fold(0.0, f64::max);
    let x = Axis::from_zero(longest, left, right);
    let mut svg = Svg::default();
    for (value, text) in x.ticks(5) {
        svg.line("grid", [x.at(value), 6.0], [x.at(value), height - 22.0]);
        svg.text("tick", [x.at(value), height - 6.0], Anchor::Middle, &text);
    }
    for (place, (index, name, stats)) in measured.iter().enumerate() {
        let y = 8.0 + row * place as f64;
        let tip = format!(
            "{name}, batch {batch}: median {:.3} ms, p90 {:.3}, p95 {:.3}, p99 {:.3}, min {:.3}, max {:.3}, {} runs",
            stats.median, stats.p90, stats.p95, stats.p99, stats.min, stats.max, stats.runs
        );
        svg.text("name", [left - 10.0, y + 15.0], Anchor::End, &shorten(name, 38));
        svg.rect(&series(*index), [left, y + 2.0, x.at(stats.median) - left, row - 12.0], &tip);
        svg.line("whisker", [x.at(stats.median), y + 11.0], [x.at(stats.p99), y + 11.0]);
        for mark in [stats.p90, stats.p95, stats.p99] {
            svg.line("whisker", [x.at(mark), y + 6.0], [x.at(mark), y + 16.0]);
        }
        let figures = format!("{:.2} ms (p99 {:.2})", stats.median, stats.p99);
        svg.text("value", [right + 12.0, y + 15.0], Anchor::Start, &figures);
    }
    svg.finish(width, height, &format!("Median latency and percentiles at batch {batch}, in milliseconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_has_the_points_that_no_other_dominates() {
        let points = [[1.0, 9.0], [2.0, 8.0], [2.0, 7.0], [3.0, 8.0], [0.5, 9.0], [4.0, 1.0], [4.0, 1.0]];
        assert_eq!(front(&points), [[1.0, 9.0], [3.0, 8.0], [4.0, 1.0]]);
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shorten("abcdefghij", 5), "ab…ij");
        assert_eq!(shorten("äöüß", 4), "äöüß");
    }
}
