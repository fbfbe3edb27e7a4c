//! Inline SVG charts. Every text is escaped. Colours come from the page's style sheet, by class.

use std::fmt::{Display, Write};

/// Escapes text for HTML and SVG content and quoted attributes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// The part of a text that is placed at the text's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// An SVG picture under construction. Coordinates are in CSS pixels; y points down.
#[derive(Clone, Debug, Default)]
pub struct Svg {
    body: String,
}

impl Svg {
    /// Adds a filled rectangle with a tooltip (none if `tip` is empty).
    pub fn rect(&mut self, class: &str, [x, y, width, height]: [f64; 4], tip: &str) {
        let (width, height) = (width.max(0.0), height.max(0.0));
        self.element(
            format_args!(
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\""
            ),
            "rect",
            tip,
        );
    }

    /// Adds a circle with a tooltip.
    pub fn circle(&mut self, class: &str, [x, y]: [f64; 2], radius: f64, tip: &str) {
        self.element(
            format_args!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\""),
            "circle",
            tip,
        );
    }

    /// Adds a straight line.
    pub fn line(&mut self, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
        self.element(
            format_args!(
                "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\""
            ),
            "line",
            "",
        );
    }

    /// Adds connected lines through `points`.
    pub fn polyline(&mut self, class: &str, points: &[[f64; 2]]) {
        let mut list = String::new();
        for [x, y] in points {
            push(&mut list, format_args!("{x:.1},{y:.1} "));
        }
        self.element(
            format_args!("<polyline class=\"{class}\" points=\"{}\"", list.trim_end()),
            "polyline",
            "",
        );
    }

    /// Adds a line of text.
    pub fn text(&mut self, class: &str, [x, y]: [f64; 2], anchor: Anchor, text: &str) {
        push(
            &mut self.body,
            format_args!(
                "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{}\">{}</text>\n",
                anchor.name(),
                escape(text)
            ),
        );
    }

    /// Adds a line of text that is rotated by 90 degrees counter-clockwise around its anchor.
    pub fn vertical_text(&mut self, class: &str, [x, y]: [f64; 2], anchor: Anchor, text: &str) {
        push(
            &mut self.body,
            format_args!(
                "<text class=\"{class}\" transform=\"translate({x:.1} {y:.1}) rotate(-90)\" \
                 text-anchor=\"{}\">{}</text>\n",
                anchor.name(),
                escape(text)
            ),
        );
    }

    /// Closes the element that `open` begins, with `tip` as its title if there is one.
    fn element(&mut self, open: impl Display, name: &str, tip: &str) {
        if tip.is_empty() {
            push(&mut self.body, format_args!("{open}/>\n"));
        } else {
            push(&mut self.body, format_args!("{open}><title>{}</title></{name}>\n", escape(tip)));
        }
    }

    /// The SVG element of the given size, which a narrower page scales down. `label` is its text alternative.
    pub fn finish(self, width: f64, height: f64, label: &str) -> String {
        format!(
            "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\">\n{}</svg>\n",
            escape(label),
            self.body
        )
    }
}

fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("writing to a String cannot fail");
}

/// A linear axis that maps values `low..=high` to pixels `from..=to`. `from` may be greater than `to`.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis that covers the values with a margin of 8 % of their range on both sides. The margin is 10 % of
    /// the value if all values are equal.
    pub fn around(values: impl IntoIterator<Item = f64>, from: f64, to: f64) -> Axis {
        let (low, high) = values
            .into_iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        let margin = if high > low { 0.08 * (high - low) } else { (0.1 * high.abs()).max(1e-9) };
        Axis { low: low - margin, high: high + margin, from, to }
    }

    /// An axis from 0 to `high` (to 1 if `high` is 0).
    pub fn from_zero(high: f64, from: f64, to: f64) -> Axis {
        Axis { low: 0.0, high: if high > 0.0 { high } else { 1.0 }, from, to }
    }

    /// The pixel of `value`.
    pub fn at(&self, value: f64) -> f64 {
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// About `count` round values within the axis, and their texts with as many decimals as they need.
    pub fn ticks(&self, count: usize) -> Vec<(f64, String)> {
        let rough = (self.high - self.low) / count.max(1) as f64;
        let magnitude = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude);
        let step = steps.into_iter().find(|&step| step >= rough * 0.999).unwrap_or(steps[3]);
        let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
        let (first, last) = ((self.low / step).ceil() as i64, (self.high / step).floor() as i64);
        (first..=last).map(|i| i as f64 * step).map(|v| (v, format!("{v:.decimals$}"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaping_leaves_no_markup() {
        assert_eq!(escape("<a href='x'>\"&\u{1}"), "&lt;a href=&#39;x&#39;&gt;&quot;&amp;\u{fffd}");
    }

    #[test]
    fn axes_cover_their_values_with_round_ticks() {
        let axis = Axis::around([80.1, 81.3], 0.0, 100.0);
        assert!(axis.at(80.1) > 0.0 && axis.at(81.3) < 100.0);
        let labels: Vec<String> = axis.ticks(5).into_iter().map(|tick| tick.1).collect();
        assert_eq!(labels, ["80.5", "81.0"]);
        let flipped = Axis::from_zero(10.0, 100.0, 0.0);
        assert_eq!((flipped.at(0.0), flipped.at(10.0)), (100.0, 0.0));
        for values in [vec![], vec![5.0], vec![0.0], vec![-3.0, -3.0]] {
            let axis = Axis::around(values.clone(), 0.0, 10.0);
            let found = axis.ticks(4);
            assert!(found.len() < 12 && found.iter().all(|t| axis.at(t.0).is_finite()), "{values:?}");
            assert!(values.iter().all(|&v| (axis.at(v) - 5.0).abs() < 1e-6), "{values:?}");
        }
    }
}
