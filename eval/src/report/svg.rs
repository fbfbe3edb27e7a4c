//! SVG pictures, inline or as files. Every text is escaped. Colours come from a style sheet, by class.

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
    /// Its start.
    Start,
    /// Its middle.
    Middle,
    /// Its end.
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
    /// Adds a filled rectangle.
    pub fn rect(&mut self, class: &str, [x, y, width, height]: [f64; 4]) {
        let (width, height) = (width.max(0.0), height.max(0.0));
        self.push(format_args!(
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n",
            short(x),
            short(y),
            short(width),
            short(height)
        ));
    }

    /// Adds a circle.
    pub fn circle(&mut self, class: &str, [x, y]: [f64; 2], radius: f64) {
        self.push(format_args!(
            "<circle class=\"{class}\" cx=\"{}\" cy=\"{}\" r=\"{}\"/>\n",
            short(x),
            short(y),
            short(radius)
        ));
    }

    /// Adds a straight line.
    pub fn line(&mut self, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
        self.push(format_args!(
            "<line class=\"{class}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n",
            short(x1),
            short(y1),
            short(x2),
            short(y2)
        ));
    }

    /// Adds connected lines through `points`; nothing if there are none.
    pub fn polyline(&mut self, class: &str, points: &[[f64; 2]]) {
        if points.is_empty() {
            return;
        }
        let list: Vec<String> = points.iter().map(|&[x, y]| format!("{},{}", short(x), short(y))).collect();
        self.push(format_args!("<polyline class=\"{class}\" points=\"{}\"/>\n", list.join(" ")));
    }

    /// Adds columns of equal width `step` that stand on `bottom`, the first at `left`; `tops` are their upper
    /// ends. All are one element.
    pub fn columns(&mut self, class: &str, left: f64, step: f64, bottom: f64, tops: &[f64]) {
        let mut path = String::new();
        for (i, &top) in tops.iter().enumerate().filter(|(_, top)| **top < bottom) {
            let x = left + step * i as f64;
            let (width, height) = (short((0.9 * step).max(0.4)), short(bottom - top));
            path.push_str(&format!("M{} {}h{width}v-{height}h-{width}z", short(x), short(bottom)));
        }
        if !path.is_empty() {
            self.push(format_args!("<path class=\"{class}\" d=\"{path}\"/>\n"));
        }
    }

    /// Adds a line of text.
    pub fn text(&mut self, class: &str, [x, y]: [f64; 2], anchor: Anchor, text: &str) {
        self.push(format_args!(
            "<text class=\"{class}\" x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n",
            short(x),
            short(y),
            anchor.name(),
            escape(text)
        ));
    }

    /// Adds a line of text that is rotated by 90 degrees counter-clockwise around its anchor.
    pub fn vertical_text(&mut self, class: &str, [x, y]: [f64; 2], anchor: Anchor, text: &str) {
        self.push(format_args!(
            "<text class=\"{class}\" transform=\"translate({} {}) rotate(-90)\" text-anchor=\"{}\">{}</text>\n",
            short(x),
            short(y),
            anchor.name(),
            escape(text)
        ));
    }

    /// Adds `elements`, which share a tooltip.
    pub fn with_tip(&mut self, tip: &str, elements: impl FnOnce(&mut Svg)) {
        self.push(format_args!("<g><title>{}</title>\n", escape(tip)));
        elements(self);
        self.push(format_args!("</g>\n"));
    }

    /// The picture as a file of its own, on white, with the style sheet `style`.
    pub fn into_file(self, width: f64, height: f64, style: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\">\n<style>{style}</style>\n<rect width=\"100%\" height=\"100%\" style=\"fill: #fff\"/>\n\
             {}</svg>\n",
            self.body
        )
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

    fn push(&mut self, arguments: std::fmt::Arguments<'_>) {
        self.body.write_fmt(arguments).expect("writing to a String cannot fail");
    }
}

/// A coordinate with at most one decimal; 0 if it is not finite.
fn short(value: f64) -> impl Display {
    let rounded = if value.is_finite() { (10.0 * value).round() / 10.0 } else { 0.0 };
    // Adding 0 turns -0 into 0.
    rounded + 0.0
}

/// A horizontal bar for a table cell: it is stretched to the cell. `parts` are the lengths of its parts and
/// their classes, as fractions of the cell; `whisker` is drawn as a line between two fractions.
pub fn bar(parts: &[(f64, &str)], whisker: Option<[f64; 2]>) -> String {
    let mut svg = Svg::default();
    let mut x = 0.0;
    for &(length, class) in parts {
        svg.rect(class, [x, 1.0, 1000.0 * length, 8.0]);
        x += 1000.0 * length;
    }
    if let Some([low, high]) = whisker {
        svg.line("whisker", [1000.0 * low, 5.0], [1000.0 * high, 5.0]);
        for end in [low, high] {
            svg.line("whisker", [1000.0 * end, 2.5], [1000.0 * end, 7.5]);
        }
    }
    format!(
        "<svg class=\"bar\" aria-hidden=\"true\" viewBox=\"0 0 1000 10\" preserveAspectRatio=\"none\">{}</svg>",
        svg.body.replace('\n', "")
    )
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
    /// An axis that covers the values with a margin of 8 % of their range on both sides. The margin is 10 %
    /// of the value if all values are equal. Values that are not finite are ignored.
    pub fn around(values: impl IntoIterator<Item = f64>, from: f64, to: f64) -> Axis {
        let (low, high) = values
            .into_iter()
            .filter(|value| value.is_finite())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        let margin = if high > low { 0.08 * (high - low) } else { (0.1 * high.abs()).max(1e-9) };
        Axis { low: low - margin, high: high + margin, from, to }
    }

    /// An axis from 0 to `high` (to 1 if `high` is 0 or not finite).
    pub fn from_zero(high: f64, from: f64, to: f64) -> Axis {
        Axis { low: 0.0, high: if high > 0.0 && high.is_finite() { high } else { 1.0 }, from, to }
    }

    /// The same axis, cut off at `low` and `high` where they lie within it.
    pub fn within(self, low: f64, high: f64) -> Axis {
        let (low, high) = (self.low.max(low), self.high.min(high));
        if low < high { Axis { low, high, ..self } } else { self }
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

/// Grid lines and tick labels of both axes, inside the box `[left, top, right, bottom]`.
pub fn grid(svg: &mut Svg, x: &Axis, y: &Axis, counts: [usize; 2], [left, top, right, bottom]: [f64; 4]) {
    for (value, text) in x.ticks(counts[0]) {
        svg.line("grid", [x.at(value), top], [x.at(value), bottom]);
        svg.text("tick", [x.at(value), bottom + 15.0], Anchor::Middle, &text);
    }
    for (value, text) in y.ticks(counts[1]) {
        svg.line("grid", [left, y.at(value)], [right, y.at(value)]);
        svg.text("tick", [left - 7.0, y.at(value) + 4.0], Anchor::End, &text);
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
        let axis = Axis::around([80.1, 81.3, f64::NAN], 0.0, 100.0);
        assert!(axis.at(80.1) > 0.0 && axis.at(81.3) < 100.0);
        let labels: Vec<String> = axis.ticks(5).into_iter().map(|tick| tick.1).collect();
        assert_eq!(labels, ["80.5", "81.0"]);
        let flipped = Axis::from_zero(10.0, 100.0, 0.0);
        assert_eq!((flipped.at(0.0), flipped.at(10.0)), (100.0, 0.0));
        let cut = Axis::around([99.0, 100.0], 0.0, 10.0).within(0.0, 100.0);
        assert_eq!(cut.at(100.0), 10.0);
        for values in [vec![], vec![5.0], vec![0.0], vec![-3.0, -3.0]] {
            let axis = Axis::around(values.clone(), 0.0, 10.0);
            let found = axis.ticks(4);
            assert!(found.len() < 12 && found.iter().all(|t| axis.at(t.0).is_finite()), "{values:?}");
            assert!(values.iter().all(|&v| (axis.at(v) - 5.0).abs() < 1e-6), "{values:?}");
        }
    }

    #[test]
    fn coordinates_are_short_and_finite() {
        let texts = [1.0, 1.04, -0.04, f64::NAN, 12.35].map(|v| short(v).to_string());
        assert_eq!(texts, ["1", "1", "0", "0", "12.4"]);
        let mut svg = Svg::default();
        svg.columns("a", 0.0, 2.0, 10.0, &[10.0, 4.0]);
        svg.columns("b", 0.0, 2.0, 10.0, &[10.0]);
        svg.polyline("c", &[]);
        assert_eq!(svg.body, "<path class=\"a\" d=\"M2 10h1.8v-6h-1.8z\"/>\n");
    }
}
