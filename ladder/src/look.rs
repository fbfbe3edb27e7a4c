//! The looks of a plot: the colours of rungs, and logarithmic axes.

use std::fmt::Write;

/// The style of texts, lines and marks. A mark has the colour of its class.
const STYLE: &str = "text { font: 12px system-ui, sans-serif; fill: #222 } .title { font-size: 15px; font-weight: 600 } \
                     .soft { fill: #666 } .grid { stroke: #ddd } .axis { stroke: #888 } \
                     polyline { fill: none; stroke: currentColor; stroke-width: 2 } circle, rect { fill: currentColor }";

/// The families of rungs: the first word of their names, the dashes of their lines, and a shade for each
/// rung. The last is the family of all other names.
const FAMILIES: [(&str, &str, &[&str]); 4] = [
    ("CPU", "2 3", &["#6b6b6b", "#9a9a9a", "#3f3f3f"]),
    ("CUDA", "0", &["#8fbbe6", "#5b9bd5", "#2f6fb0", "#173f73"]),
    ("ours", "0", &["#1f8a4c", "#6cc04a", "#0d4f38"]),
    ("other", "7 3", &["#e0a100", "#d1642b", "#8c4a1f", "#d6467f", "#8e2a8b", "#5a3fb5"]),
];

/// The class of the rung called `name`, number `index` of its family.
pub fn class(name: &str, index: usize) -> String {
    let first = name.split([' ', ',']).next();
    let family = FAMILIES.iter().find(|family| Some(family.0) == first).unwrap_or(&FAMILIES[3]);
    format!("{}{}", family.0, index % family.2.len())
}

/// The style sheet of a plot.
pub fn style() -> String {
    let mut style = STYLE.to_owned();
    for (family, dash, colors) in FAMILIES {
        for (index, color) in colors.iter().enumerate() {
            write!(style, " .{family}{index} {{ color: {color}; stroke-dasharray: {dash} }}")
                .expect("a String takes all text");
        }
    }
    style
}

/// A logarithmic axis from `low` at pixel `from` to `high` at pixel `to`.
#[derive(Clone, Copy, Debug)]
pub struct LogAxis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl LogAxis {
    /// An axis that covers `values`. Its ends are powers of `base`.
    pub fn around(values: impl Iterator<Item = f64>, base: f64, [from, to]: [f64; 2]) -> LogAxis {
        let (low, high) = values.fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low <= high && low > 0.0 { (low, high) } else { (1.0, base) };
        let low = base.powf((low.log(base) + 1e-9).floor());
        let high = base.powf((high.log(base) - 1e-9).ceil());
        LogAxis { low, high: if high > low { high } else { low * base }, from, to }
    }

    /// The pixel of `value`.
    pub fn at(&self, value: f64) -> f64 {
        self.from + (value / self.low).ln() / (self.high / self.low).ln() * (self.to - self.from)
    }

    /// The powers of `base` on the axis.
    pub fn ticks(&self, base: f64) -> Vec<f64> {
        let count = (self.high / self.low).log(base).round() as i32;
        (0..=count).map(|i| self.low * base.powi(i)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_cover_their_values() {
        let axis = LogAxis::around([3e9, 4.5e11].into_iter(), 10.0, [100.0, 400.0]);
        assert_eq!(axis.ticks(10.0).len(), 4);
        assert!((axis.at(1e9) - 100.0).abs() < 1e-6 && (axis.at(1e12) - 400.0).abs() < 1e-6);
        assert!((axis.at(1e10) - 200.0).abs() < 1e-6);
        for values in [vec![], vec![5.0], vec![1e3, 1e3]] {
            let axis = LogAxis::around(values.iter().copied(), 10.0, [0.0, 10.0]);
            assert!(values.iter().all(|v| (-0.1..10.1).contains(&axis.at(*v))), "{values:?}");
            assert!(axis.ticks(10.0).len() >= 2);
        }
    }

    #[test]
    fn every_class_has_a_colour() {
        let style = style();
        for (name, index) in [("CPU f32", 4), ("ours FP16", 0), ("cuBLASLt, INT8", 5), ("CUDA one", 9)] {
            assert!(style.contains(&format!(".{} {{ color: #", class(name, index))), "{name}");
        }
        assert_ne!(class("CPU f32", 0), class("ours FP16", 0));
    }
}
