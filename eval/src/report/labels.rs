//! Labels of points: each is placed where it covers no point, no error bar and no other label.

use super::svg::{Anchor, Svg};

/// Height of a line of text, and estimated width of a character, in pixels.
const HEIGHT: f64 = 14.0;
const CHARACTER: f64 = 6.4;
/// Distances between a point and its label that are tried, in pixels.
const DISTANCES: [f64; 5] = [9.0, 20.0, 34.0, 52.0, 74.0];

/// A rectangle: left, top, right, bottom.
pub type Box4 = [f64; 4];

/// The labels of a chart.
pub struct Labels {
    /// The area in which labels may lie.
    area: Box4,
    /// Rectangles that labels must not cover.
    taken: Vec<Box4>,
}

impl Labels {
    /// Labels within `area` that do not cover `taken`.
    pub fn new(area: Box4, taken: Vec<Box4>) -> Labels {
        Labels { area, taken }
    }

    /// Draws `text` near the point `at`, with a line to the point if it is not beside it. Labels that are
    /// drawn first get the best places.
    pub fn draw(&mut self, svg: &mut Svg, at: [f64; 2], text: &str) {
        let width = CHARACTER * text.chars().count() as f64;
        let candidates = DISTANCES.iter().flat_map(|&distance| around(at, distance, width));
        let cost = |place: &Box4| {
            let outside = width * HEIGHT - overlap(*place, self.area);
            outside + self.taken.iter().map(|&other| overlap(*place, other)).sum::<f64>()
        };
        // `min_by` returns the first of equal places, which is the nearest.
        let Some(place) = candidates.min_by(|a, b| cost(a).total_cmp(&cost(b))) else { return };
        self.taken.push(place);
        let near = nearest(at, place);
        if (near[0] - at[0]).hypot(near[1] - at[1]) > 14.0 {
            svg.line("leader", at, near);
        }
        svg.text("name", [place[0], place[3] - 3.5], Anchor::Start, text);
    }
}

/// The eight places of a label of `width` at `distance` around a point: right and left first.
fn around([x, y]: [f64; 2], distance: f64, width: f64) -> [Box4; 8] {
    let half = HEIGHT / 2.0;
    let place = |left: f64, middle: f64| [left, middle - half, left + width, middle + half];
    let (right, left, slant) = (x + distance, x - distance - width, 0.8 * distance + half);
    [
        place(right, y),
        place(left, y),
        place(right, y - slant),
        place(right, y + slant),
        place(left, y - slant),
        place(left, y + slant),
        place(x - width / 2.0, y - distance - half),
        place(x - width / 2.0, y + distance + half),
    ]
}

/// Area that two rectangles share.
fn overlap(a: Box4, b: Box4) -> f64 {
    let width = a[2].min(b[2]) - a[0].max(b[0]);
    let height = a[3].min(b[3]) - a[1].max(b[1]);
    width.max(0.0) * height.max(0.0)
}

/// The point of a rectangle that is nearest to `at`.
fn nearest(at: [f64; 2], place: Box4) -> [f64; 2] {
    [at[0].clamp(place[0], place[2]), at[1].clamp(place[1], place[3])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cover_neither_points_nor_each_other() {
        let points: Vec<[f64; 2]> =
            (0..6).map(|i| [100.0 + 3.0 * f64::from(i), 100.0 + 2.0 * f64::from(i)]).collect();
        let taken: Vec<Box4> = points.iter().map(|[x, y]| [x - 6.0, y - 6.0, x + 6.0, y + 6.0]).collect();
        let mut labels = Labels::new([0.0, 0.0, 500.0, 300.0], taken);
        let mut svg = Svg::default();
        for (i, &at) in points.iter().enumerate() {
            labels.draw(&mut svg, at, &format!("model number {i}"));
        }
        assert_eq!(labels.taken.len(), 12);
        for (i, a) in labels.taken.iter().enumerate().skip(6) {
            assert!(overlap(*a, labels.area) > 0.99 * (a[2] - a[0]) * HEIGHT, "label {i} is inside");
            for b in labels.taken.iter().take(i) {
                assert_eq!(overlap(*a, *b), 0.0, "{a:?} {b:?}");
            }
        }
        assert!(svg.finish(1.0, 1.0, "").contains("class=\"leader\""));
    }
}
