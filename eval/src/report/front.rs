//! The chart of accuracy against latency.

use super::labels::{Box4, Labels};
use super::names::shorten;
use super::svg::{Anchor, Axis, Svg, grid};
use crate::results::{ModelResult, Results};

/// Number of colours for models in the style sheet.
const COLORS: usize = 6;
/// Radius of a point in pixels.
const RADIUS: f64 = 5.5;

/// CSS class of the colour of model `index`.
pub fn series(index: usize) -> String {
    format!("s{}", index % COLORS)
}

/// A candidate in the chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// CSS class of its colour.
    pub class: String,
    /// Its name.
    pub name: String,
    /// Median latency in milliseconds, and the limits of its 95 % interval.
    pub ms: f64,
    pub ms_interval: [f64; 2],
    /// Top-1 in percent, and the limits of its error bar.
    pub top1: f64,
    pub top1_interval: [f64; 2],
}

/// The candidates of `results` that have an accuracy and a latency at the reference batch size.
///
/// The error bar of a model's accuracy is the paired 95 % interval of its difference from the baseline, at
/// the baseline's accuracy. The baseline has none.
pub fn points(results: &Results, names: &[String]) -> Option<(usize, Vec<Point>)> {
    let batch = results.reference_batch()?;
    let base = results.models.first()?.top1_percent();
    let point = |(index, model): (usize, &ModelResult)| {
        let (top1, stats) = (model.top1_percent()?, model.latency_ms.get(&batch)?);
        let bar =
            base.zip(model.top1_difference).map(|(base, d)| [base + 100.0 * d.low, base + 100.0 * d.high]);
        Some(Point {
            class: series(index),
            name: names[index].clone(),
            ms: stats.median,
            ms_interval: stats.median_interval.unwrap_or([stats.median; 2]),
            top1,
            top1_interval: bar.unwrap_or([top1; 2]),
        })
    };
    let points: Vec<Point> = results.models.iter().enumerate().filter_map(point).collect();
    (!points.is_empty()).then_some((batch, points))
}

/// The texts of a chart, and the limit of its vertical axis.
pub struct Chart {
    /// Title of the horizontal axis.
    pub x: &'static str,
    /// Title of the vertical axis.
    pub y: &'static str,
    /// Where the vertical axis ends at the latest.
    pub highest: f64,
    /// Text alternative.
    pub label: &'static str,
}

impl Chart {
    /// The chart of accuracy against latency.
    pub const ACCURACY: Chart = Chart {
        x: "median latency, ms (left is faster)",
        y: "top-1, %",
        highest: 100.0,
        label: "Top-1 accuracy against median latency, one point per model",
    };
}

/// The chart: latency to the right, accuracy upwards, error bars, and the Pareto front as a dashed line. The
/// axes begin near the data. `labelled` says which points get their name.
pub fn chart(
    points: &[Point],
    [width, height]: [f64; 2],
    text: &Chart,
    labelled: impl Fn(usize) -> bool,
) -> String {
    let frame = [50.0, 14.0, width - 12.0, height - 40.0];
    let [left, top, right, bottom] = frame;
    let x = Axis::around(points.iter().flat_map(|p| [p.ms, p.ms_interval[0], p.ms_interval[1]]), left, right)
        .within(0.0, f64::INFINITY);
    let y = Axis::around(
        points.iter().flat_map(|p| [p.top1, p.top1_interval[0], p.top1_interval[1]]),
        bottom,
        top,
    )
    .within(0.0, text.highest);
    let mut svg = Svg::default();
    let counts = [(width / 110.0) as usize, (height / 60.0) as usize];
    grid(&mut svg, &x, &y, counts, frame);
    svg.text("label", [(left + right) / 2.0, height - 6.0], Anchor::Middle, text.x);
    svg.vertical_text("label", [12.0, (top + bottom) / 2.0], Anchor::Middle, text.y);
    let front = front(&points.iter().map(|p| [p.ms, p.top1]).collect::<Vec<_>>());
    svg.polyline("front", &front.iter().map(|&[ms, top1]| [x.at(ms), y.at(top1)]).collect::<Vec<_>>());
    let mut taken: Vec<Box4> = Vec::new();
    for point in points {
        taken.extend(draw(&mut svg, point, &x, &y));
    }
    let mut labels = Labels::new([left, top, width, bottom], taken);
    for (_, point) in points.iter().enumerate().filter(|(i, _)| labelled(*i)) {
        labels.draw(&mut svg, [x.at(point.ms), y.at(point.top1)], &shorten(&point.name, 26));
    }
    svg.finish(width, height, text.label)
}

/// Draws a point with its error bars, and returns the rectangles that they cover.
fn draw(svg: &mut Svg, point: &Point, x: &Axis, y: &Axis) -> [Box4; 3] {
    let at = [x.at(point.ms), y.at(point.top1)];
    let [x0, x1] = point.ms_interval.map(|ms| x.at(ms));
    let [y0, y1] = point.top1_interval.map(|top1| y.at(top1));
    let class = format!("{} error", point.class);
    if x1 - x0 > 1.0 {
        svg.line(&class, [x0, at[1]], [x1, at[1]]);
    }
    if y0 - y1 > 1.0 {
        svg.line(&class, [at[0], y0], [at[0], y1]);
        for end in [y0, y1] {
            svg.line(&class, [at[0] - 4.0, end], [at[0] + 4.0, end]);
        }
    }
    svg.circle(&point.class, at, RADIUS);
    let r = RADIUS + 1.0;
    [
        [at[0] - r, at[1] - r, at[0] + r, at[1] + r],
        [x0, at[1] - 2.0, x1, at[1] + 2.0],
        [at[0] - 4.0, y1, at[0] + 4.0, y0],
    ]
}

/// The Pareto front of latencies and accuracies, by ascending latency: the points for which no other point is
/// at least as fast and as accurate.
pub fn front(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let dominated = |p: &[f64; 2]| points.iter().any(|q| q[0] <= p[0] && q[1] >= p[1] && q != p);
    let mut front: Vec<[f64; 2]> = points.iter().filter(|p| !dominated(p)).copied().collect();
    front.sort_by(|a, b| a[0].total_cmp(&b[0]));
    front.dedup();
    front
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_has_the_points_that_no_other_dominates() {
        let points = [[9.0, 9.0], [8.0, 8.0], [8.0, 7.0], [7.0, 8.0], [9.5, 9.0], [4.0, 1.0], [4.0, 1.0]];
        assert_eq!(front(&points), [[4.0, 1.0], [7.0, 8.0], [9.0, 9.0]]);
    }
}
