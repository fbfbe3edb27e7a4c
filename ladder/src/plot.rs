//! The plot: a line per rung over the sizes of a sweep, or a bar per rung at one size.

use swinq_eval::report::{Anchor, Svg};

use crate::look::{LogAxis, class, style};
use crate::row::{Outcome, Row, prefixed, time};

/// Size of the line plot, and its margins: left, top, right, bottom.
const SIZE: [f64; 2] = [1040.0, 560.0];
const MARGINS: [f64; 4] = [96.0, 48.0, 300.0, 56.0];
/// Width of the names, width of the bars and height of a bar.
const NAMES: f64 = 250.0;
const BARS: f64 = 480.0;
const BAR: f64 = 24.0;

/// Draws the plot as an SVG file.
pub fn draw(title: &str, rows: &[Row]) -> String {
    let first = rows.first().map_or(0, size_of);
    if rows.iter().any(|row| size_of(row) != first) { lines(title, rows) } else { bars(title, rows) }
}

/// The first size of a row.
fn size_of(row: &Row) -> usize {
    row.shape.first().map_or(0, |(_, size)| *size)
}

/// Names of the rungs in order, with their classes. Each family of rungs counts its shades from 0.
fn rungs(rows: &[Row]) -> Vec<(&str, String)> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.rung.as_str()) {
            names.push(&row.rung);
        }
    }
    let family = |name: &str| name.split([' ', ',']).next().map(str::to_owned);
    let place = |i: usize| names[..i].iter().filter(|name| family(name) == family(names[i])).count();
    (0..names.len()).map(|i| (names[i], class(names[i], place(i)))).collect()
}

/// The unit of the rates, in words.
fn unit_name(rows: &[Row]) -> &'static str {
    match rows.first().map(|row| row.work.operations > 0.0) {
        Some(false) => "bytes of memory per second",
        _ => "operations per second",
    }
}

/// A power of ten with a prefix.
fn short(rate: f64) -> String {
    let text = prefixed(rate, "");
    let (number, prefix) = text.split_once(' ').unwrap_or((&text, ""));
    let number =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number} {prefix}")
}

fn lines(title: &str, rows: &[Row]) -> String {
    let [width, height] = SIZE;
    let [left, top, right, bottom] = MARGINS;
    let sizes = rows.iter().map(|row| size_of(row) as f64);
    let x = LogAxis::around(sizes, 2.0, [left, width - right]);
    let y = LogAxis::around(rows.iter().filter_map(Row::rate), 10.0, [height - bottom, top]);
    let mut svg = Svg::default();
    svg.text("title", [left, 26.0], Anchor::Start, &format!("{title}: {}", unit_name(rows)));
    grid(&mut svg, &x, &y);
    for (index, (name, class)) in rungs(rows).into_iter().enumerate() {
        let of_rung = rows.iter().filter(|row| row.rung == name);
        let timed = of_rung.filter_map(|row| Some((row, row.rate()?)));
        let points: Vec<_> =
            timed.map(|(row, rate)| ([x.at(size_of(row) as f64), y.at(rate)], tip(row))).collect();
        series(&mut svg, &class, &points);
        let at = [width - right + 24.0, top + 10.0 + 24.0 * index as f64];
        series(&mut svg, &class, &[(at, name.to_owned()), ([at[0] + 28.0, at[1]], name.to_owned())]);
        let none = if points.is_empty() { " (not run)" } else { "" };
        svg.text("", [at[0] + 40.0, at[1] + 4.0], Anchor::Start, &format!("{name}{none}"));
    }
    svg.into_file(width, height, &style())
}

/// Connected lines through `points`, with a dot and a tooltip at each point.
fn series(svg: &mut Svg, class: &str, points: &[([f64; 2], String)]) {
    svg.polyline(class, &points.iter().map(|(at, _)| *at).collect::<Vec<_>>());
    for (at, tip) in points {
        svg.with_tip(tip, |svg| svg.circle(class, *at, 3.5));
    }
}

/// The axes of the line plot.
fn grid(svg: &mut Svg, x: &LogAxis, y: &LogAxis) {
    let [width, height] = SIZE;
    let [left, top, right, bottom] = MARGINS;
    for tick in y.ticks(10.0) {
        svg.line("grid", [left, y.at(tick)], [width - right, y.at(tick)]);
        svg.text("soft", [left - 8.0, y.at(tick) + 4.0], Anchor::End, &short(tick));
    }
    for tick in x.ticks(2.0) {
        svg.line("grid", [x.at(tick), top], [x.at(tick), height - bottom]);
        svg.text("soft", [x.at(tick), height - bottom + 18.0], Anchor::Middle, &format!("{tick:.0}"));
    }
    svg.line("axis", [left, height - bottom], [width - right, height - bottom]);
    let middle = (left + width - right) / 2.0;
    svg.text("soft", [middle, height - 14.0], Anchor::Middle, "m = n = k");
}

fn bars(title: &str, rows: &[Row]) -> String {
    let (left, top) = (NAMES + 16.0, 76.0);
    let height = top + BAR * rows.len() as f64 + 24.0;
    let x = LogAxis::around(rows.iter().filter_map(Row::rate), 10.0, [left, left + BARS]);
    let mut svg = Svg::default();
    let sizes = rows.first().map_or(Vec::new(), |row| row.shape.clone());
    let sizes: Vec<String> = sizes.iter().map(|(name, size)| format!("{name} {size}")).collect();
    svg.text("title", [16.0, 26.0], Anchor::Start, &format!("{title}: {}", sizes.join(", ")));
    svg.text("soft", [left, 48.0], Anchor::Start, unit_name(rows));
    for tick in x.ticks(10.0) {
        svg.line("grid", [x.at(tick), top - 6.0], [x.at(tick), height - 20.0]);
        svg.text("soft", [x.at(tick), top - 10.0], Anchor::Middle, &short(tick));
    }
    let names = rungs(rows);
    for (index, row) in rows.iter().enumerate() {
        let y = top + BAR * index as f64;
        svg.text("", [left - 8.0, y + 16.0], Anchor::End, &row.rung);
        let Some(rate) = row.rate() else {
            svg.text("soft", [left + 6.0, y + 16.0], Anchor::Start, &why(row));
            continue;
        };
        let (_, class) =
            &names[names.iter().position(|(name, _)| *name == row.rung).expect("every rung is there")];
        let end = x.at(rate);
        svg.with_tip(&tip(row), |svg| svg.rect(class, [left, y + 3.0, end - left, BAR - 6.0]));
        svg.text("", [end + 6.0, y + 16.0], Anchor::Start, &prefixed(rate, row.work.unit()));
    }
    svg.into_file(left + BARS + 260.0, height, &style())
}

/// A short reason why a row has no bar.
fn why(row: &Row) -> String {
    let (state, why) = match &row.outcome {
        Outcome::Skipped(why) => ("skipped", why),
        Outcome::Failed(why, _) => ("FAIL", why),
        Outcome::Right { .. } => return String::new(),
    };
    let short: String = why.chars().take(72).collect();
    let dots = if short.len() < why.len() { "..." } else { "" };
    format!("{state}: {short}{dots}")
}

fn tip(row: &Row) -> String {
    let rate = row.rate().map_or(String::new(), |rate| prefixed(rate, row.work.unit()));
    format!("{}: {rate}, {}", row.label(), row.median().map_or(String::new(), time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::measured;

    #[test]
    fn a_sweep_has_a_line_for_each_rung() {
        let mut rows: Vec<Row> = [128, 256, 512].map(|size| measured("CPU one", size, 3.0)).into();
        rows.extend([128, 256, 512].map(|size| measured("ours & two", size, 0.5)));
        let skipped = Outcome::Skipped("not here".into());
        rows.push(Row { outcome: skipped, ..measured("cuBLASLt three", 128, 1.0) });
        let svg = draw("Products", &rows);
        for word in ["CPU one", "ours &amp; two", "cuBLASLt three (not run)", ">256<", ">1 T<"] {
            assert!(svg.contains(word), "`{word}` is not in\n{svg}");
        }
        // Each rung that ran has a line, and each has a sample in the legend.
        assert_eq!(svg.matches("<polyline").count(), 5);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn one_size_has_bars_and_reasons() {
        let why =
            "takes <too> long, which is said in so many words that nobody would read all of them here".into();
        let rows = [measured("a", 64, 1.0), Row { outcome: Outcome::Skipped(why), ..measured("b", 64, 1.0) }];
        let svg = draw("Products", &rows);
        assert!(
            svg.contains(">a<") && svg.contains(">b<") && svg.contains("skipped: takes &lt;too&gt; long")
        );
        assert!(svg.contains("...") && svg.contains("m 64, n 64, k 64"));
        assert!(draw("Nothing", &[]).ends_with("</svg>\n"));
    }
}
