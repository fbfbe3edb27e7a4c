//! Builds an SVG file from elements in drawing order. Every text is escaped.

use std::fmt::{Arguments, Write};

use swinq_eval::report::escape;

/// The style sheet: a light background.
const STYLE: &str = "text { font: 12px system-ui, sans-serif; fill: #222 } .title { font-size: 15px; font-weight: 600 } \
                     .soft { fill: #666 } .grid { stroke: #ddd } .axis { stroke: #888 }";

/// The point of a text that its position refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Its start.
    Start,
    /// Its middle.
    Middle,
    /// Its end.
    End,
}

/// A picture under construction. Coordinates are pixels; y points down.
#[derive(Default)]
pub struct Svg {
    body: String,
}

impl Svg {
    /// A line of text.
    pub fn text(&mut self, class: &str, [x, y]: [f64; 2], anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        self.push(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n"
        ));
    }

    /// A straight line.
    pub fn line(&mut self, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
        self.push(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n"
        ));
    }

    /// Connected lines through `points`, with a dot and a tooltip at each point.
    pub fn series(&mut self, look: Look, points: &[([f64; 2], String)]) {
        let Look { color, dash } = look;
        let list: Vec<String> = points.iter().map(|([x, y], _)| format!("{x:.1},{y:.1}")).collect();
        let list = list.join(" ");
        self.push(format_args!(
            "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\" \
             points=\"{list}\"/>\n"
        ));
        for ([x, y], tip) in points {
            let tip = escape(tip);
            self.push(format_args!(
                "<circle fill=\"{color}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>{tip}</title></circle>\n"
            ));
        }
    }

    /// A filled rectangle with a tooltip.
    pub fn rect(&mut self, look: Look, [x, y, width, height]: [f64; 4], tip: &str) {
        let (color, tip, width) = (look.color, escape(tip), width.max(0.0));
        self.push(format_args!(
            "<rect fill=\"{color}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\">\
             <title>{tip}</title></rect>\n"
        ));
    }

    /// The file.
    pub fn finish(self, width: f64, height: f64) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\">\n<style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             {}</svg>\n",
            self.body
        )
    }

    fn push(&mut self, arguments: Arguments<'_>) {
        self.body.write_fmt(arguments).expect("a String takes all text");
    }
}

/// Colour and dashes of a rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Colour of lines, dots and bars.
    pub color: &'static str,
    /// Lengths of dashes and gaps; 0 for a solid line.
    pub dash: &'static str,
}

/// The look of the rung called `name`, number `index` of its family. Each family has its own hue, and a rung
/// its shade.
pub fn look(name: &str, index: usize) -> Look {
    let (colors, dash): (&[&'static str], _) = match name.split([' ', ',']).next() {
        Some("CPU") => (&["#6b6b6b", "#9a9a9a", "#3f3f3f"], "2 3"),
        Some("CUDA") => (&["#8fbbe6", "#5b9bd5", "#2f6fb0", "#173f73"], "0"),
        Some("ours") => (&["#1f8a4c", "#6cc04a", "#0d4f38"], "0"),
        _ => (&["#e0a100", "#d1642b", "#8c4a1f", "#d6467f", "#8e2a8b", "#5a3fb5"], "7 3"),
    };
    Look { color: colors[index % colors.len()], dash }
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
    fn text_leaves_no_markup() {
        let mut svg = Svg::default();
        svg.text("soft", [1.0, 2.0], Anchor::Middle, "a<b & \"c\"\n");
        let file = svg.finish(10.0, 10.0);
        assert!(file.contains("a&lt;b &amp; &quot;c&quot;\u{fffd}</text>"), "{file}");
        assert_ne!(look("CPU f32", 0), look("ours FP16", 0));
    }
}
