//! Histograms of the magnitudes that calibration observed, with the chosen range.

use super::names::shorten;
use super::svg::{Anchor, Axis, Svg};
use crate::results::{ModelResult, RangeHistogram, SiteResult};

/// Number of histograms that are shown at first: those of the noisiest sites.
const SHOWN: usize = 12;
/// Maximum number of columns of a histogram; a column combines several bins if there are more.
const COLUMNS: usize = 64;

/// The histograms of one model.
pub struct Ranges {
    pub name: String,
    /// Histograms of the noisiest sites, noisiest first.
    pub shown: Vec<String>,
    /// The other histograms, in forward order.
    pub others: Vec<String>,
}

impl Ranges {
    /// The histograms of `model`, which is called `name`; `None` if it has none.
    pub fn new(name: &str, model: &ModelResult) -> Option<Ranges> {
        let mut sites: Vec<(&SiteResult, &RangeHistogram)> =
            model.sites.iter().filter_map(|site| Some((site, site.histogram.as_ref()?))).collect();
        let db = |site: &SiteResult| site.sqnr_db.unwrap_or(f64::INFINITY);
        let mut order: Vec<usize> = (0..sites.len()).collect();
        order.sort_by(|&a, &b| db(sites[a].0).total_cmp(&db(sites[b].0)));
        order.truncate(SHOWN);
        let picture = |(site, histogram): (&SiteResult, &RangeHistogram)| self::picture(site, histogram);
        let shown: Vec<String> = order.iter().map(|&i| picture(sites[i])).collect();
        order.sort_unstable();
        for i in order.into_iter().rev() {
            sites.remove(i);
        }
        let others = sites.into_iter().map(picture).collect();
        (!shown.is_empty()).then(|| Ranges { name: name.to_owned(), shown, others })
    }
}

/// A histogram of magnitudes with heights on a logarithmic scale. The range is drawn as a line, and the
/// columns beyond it are marked as clipped.
fn picture(site: &SiteResult, data: &RangeHistogram) -> String {
    let per_column = data.counts.len().div_ceil(COLUMNS).max(1);
    let sum = |bins: &[u64]| bins.iter().fold(0u64, |sum, &n| sum.saturating_add(n));
    let counts: Vec<u64> = data.counts.chunks(per_column).map(sum).collect();
    let (width, height, left, right, bottom) = (280.0, 122.0, 4.0, 276.0, 84.0);
    let end = data.bin_width * data.counts.len() as f64;
    let amax = site.amax();
    let x = Axis::from_zero(amax.map_or(end, |amax| end.max(1.02 * amax)), left, right);
    let tallest = counts.iter().copied().max().unwrap_or(0);
    let y = Axis::from_zero((tallest as f64).ln_1p(), bottom, 22.0);
    let tops: Vec<f64> = counts.iter().map(|&count| y.at((count as f64).ln_1p())).collect();
    let step = x.at(data.bin_width * per_column as f64) - x.at(0.0);
    // Columns that begin at or beyond the range are clipped.
    let column = data.bin_width * per_column as f64;
    let inside =
        amax.map_or(tops.len(), |amax| (0..tops.len()).filter(|&i| column * (i as f64) < amax).count());
    let mut svg = Svg::default();
    svg.text("name", [left, 14.0], Anchor::Start, &shorten(&site.site, 44));
    svg.columns("int8", left, step, bottom, &tops[..inside]);
    svg.columns("noisy", left + step * inside as f64, step, bottom, &tops[inside..]);
    svg.line("axis", [left, bottom], [right, bottom]);
    for (value, text) in x.ticks(4) {
        svg.text("tick", [x.at(value), bottom + 13.0], Anchor::Middle, &text);
    }
    if let Some(amax) = amax {
        svg.line("clip", [x.at(amax), 20.0], [x.at(amax), bottom]);
    }
    svg.text("tick", [left, bottom + 30.0], Anchor::Start, &caption(site, data));
    svg.finish(width, height, &format!("Histogram of magnitudes at {}", site.site))
}

/// The figures below a histogram.
fn caption(site: &SiteResult, data: &RangeHistogram) -> String {
    let mut parts = Vec::new();
    if let Some(amax) = site.amax() {
        parts.push(format!("range {amax:.3}, max {:.3}", data.max));
    }
    if site.granularity.is_some() {
        parts.push(format!("a range per channel, max {:.3}", data.max));
    }
    if let Some(clipped) = data.clipped.filter(|_| data.total() > 0) {
        parts.push(format!("clipped {}", parts_of(clipped, data.total())));
    }
    if let Some(db) = site.sqnr_db.filter(|db| db.is_finite()) {
        parts.push(format!("{db:.1} dB"));
    }
    parts.join(", ")
}

/// A share in percent with two significant digits, or `0`.
fn parts_of(part: u64, whole: u64) -> String {
    match 100.0 * part as f64 / whole as f64 {
        0.0 => "0".to_owned(),
        share if share < 0.0001 => "< 0.0001 %".to_owned(),
        share => {
            let decimals = (1.0 - share.log10().floor()).clamp(0.0, 5.0) as usize;
            format!("{share:.decimals$} %")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swinq_model::Kind;

    #[test]
    fn extreme_counts_give_a_valid_histogram() {
        let cases = [
            (0.5, vec![], None),
            (0.5, vec![0, 0], Some(0.2)),
            (0.01, vec![u64::MAX; 1000], Some(0.005)),
            (0.0, vec![3], None),
        ];
        for (bin_width, counts, amax) in cases {
            let site = SiteResult::new("a.b", true, Kind::S8);
            let site = SiteResult { scale: amax.map(|amax: f32| amax / 127.0), ..site };
            let picture = picture(&site, &RangeHistogram { bin_width, counts, ..RangeHistogram::default() });
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        }
    }

    #[test]
    fn shares_have_two_significant_digits() {
        assert_eq!(parts_of(0, 7), "0");
        assert_eq!(parts_of(1, 10_000_000), "< 0.0001 %");
        assert_eq!(parts_of(123, 1_000_000), "0.012 %");
        assert_eq!(parts_of(1, 1), "100 %");
    }
}
