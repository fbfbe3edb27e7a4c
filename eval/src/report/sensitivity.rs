//! The section about sensitivity: which layers and sites cost accuracy.

use super::svg::{Anchor, Axis, Svg, bar};
use crate::results::OutputResult;
use crate::results::sensitivity::{
    BlockError, Effect, Element, RangeStatistics, Sensitivity, few_images, ranking,
};
use crate::text::{counted, decibels, thousands};

/// Number of layers and of sites that are shown at first.
const SHOWN: usize = 15;

/// The section about sensitivity.
pub struct SensitivitySection {
    pub summary: String,
    /// The warning that there were few images.
    pub warning: Option<String>,
    /// The most sensitive layers, and all others.
    pub layers: Vec<ElementRow>,
    pub other_layers: Vec<ElementRow>,
    /// All sites, the most sensitive first.
    pub sites: Vec<ElementRow>,
    /// The error of the residual stream along the network.
    pub blocks: Option<String>,
    pub ranges: Vec<[String; 8]>,
}

/// A layer or a site.
pub struct ElementRow {
    pub name: String,
    /// A bar of the noise that it adds alone, relative to the noisiest.
    pub bar: String,
    pub sqnr: String,
    pub kl: String,
    pub changes: String,
    /// The gain of leaving it in float, with everything else quantized.
    pub gain: String,
    pub share: String,
}

impl SensitivitySection {
    /// The section about `found`.
    pub fn new(found: &Sensitivity) -> SensitivitySection {
        let total: u64 = found.layers.iter().map(|layer| layer.macs).sum();
        let mut layers = rows(&found.layers, &found.whole, total);
        let other_layers = layers.split_off(layers.len().min(SHOWN));
        SensitivitySection {
            summary: summary(found),
            warning: few_images(found.images),
            layers,
            other_layers,
            sites: rows(&found.sites, &found.site_whole, total),
            blocks: blocks(found),
            ranges: found.ranges.iter().map(range).collect(),
        }
    }
}

fn summary(found: &Sensitivity) -> String {
    let Effect { sqnr_db, kl, top1_changes, outputs, .. } = &found.whole;
    let (recipe, images) = (&found.recipe.name, counted(found.images, "image"));
    match (kl, top1_changes) {
        (Some(kl), Some(changes)) => format!(
            "With the whole recipe {recipe} the logits have {} of SQNR and a divergence of {kl:.2e} nats, and {} of {images} \
             change their class.",
            decibels(*sqnr_db),
            thousands(*changes)
        ),
        _ => {
            let of_output = |output: &OutputResult| format!("{} {}", output.name, decibels(output.sqnr_db));
            let outputs: Vec<String> = outputs.iter().map(of_output).collect();
            format!(
                "With the whole recipe {recipe} the outputs have an SQNR of {} on {images}. The SQNR of a layer is \
                 that of the worst of these outputs.",
                outputs.join(", ")
            )
        }
    }
}

/// Noise power relative to the signal.
fn noise(effect: &Effect) -> f64 {
    10f64.powf(-effect.sqnr_db / 10.0)
}

/// A ratio in dB with half of its 95 % interval.
fn with_spread(db: f64, spread: Option<f64>) -> String {
    spread.map_or_else(|| decibels(db), |spread| format!("{db:.2} ± {spread:.2} dB"))
}

/// The rows of `elements`, the one that loses most first.
fn rows(elements: &[Element], whole: &Effect, macs: u64) -> Vec<ElementRow> {
    let order = ranking(elements);
    let loudest = order.first().map_or(1.0, |first| noise(&first.alone)).max(f64::MIN_POSITIVE);
    let row = |element: &Element| {
        let part = noise(&element.alone) / loudest;
        let gain = element.gain_db(whole);
        ElementRow {
            name: element.name.clone(),
            bar: bar(&[(if part.is_finite() { part } else { 1.0 }, "noisy")], None),
            sqnr: with_spread(element.alone.sqnr_db, element.alone_spread_db),
            kl: element.alone.kl.map_or(String::new(), |kl| format!("{kl:.2e}")),
            changes: element.alone.top1_changes.map_or(String::new(), |changes| changes.to_string()),
            gain: if gain.is_finite() { element.gain_in_words(whole) } else { String::new() },
            share: match (element.macs, macs) {
                (0, _) | (_, 0) => String::new(),
                (own, all) => format!("{:.1} %", 100.0 * own as f64 / all as f64),
            },
        }
    };
    order.into_iter().map(row).collect()
}

/// The SQNR of the residual stream after each block; `None` if no place has a finite one.
fn blocks(found: &Sensitivity) -> Option<String> {
    let finite =
        |(i, block): (usize, &BlockError)| block.sqnr_db.is_finite().then_some([i as f64, block.sqnr_db]);
    let points: Vec<[f64; 2]> = found.blocks.iter().enumerate().filter_map(finite).collect();
    if points.is_empty() {
        return None;
    }
    let (width, height, left, top, bottom) = (880.0, 230.0, 44.0, 12.0, 150.0);
    let x = Axis::from_zero((found.blocks.len().max(2) - 1) as f64, left + 8.0, width - 14.0);
    let y = Axis::around(points.iter().map(|point| point[1]), bottom, top);
    let mut svg = Svg::default();
    for (value, text) in y.ticks(4) {
        svg.line("grid", [left, y.at(value)], [width, y.at(value)]);
        svg.text("tick", [left - 6.0, y.at(value) + 4.0], Anchor::End, &text);
    }
    for (i, block) in found.blocks.iter().enumerate() {
        let name = block.name.replace("layers.", "").replace("blocks.", "").replace("downsample", "merge");
        svg.vertical_text("tick", [x.at(i as f64) + 4.0, bottom + 8.0], Anchor::End, &name);
    }
    let pixels: Vec<[f64; 2]> = points.iter().map(|&[i, db]| [x.at(i), y.at(db)]).collect();
    svg.polyline("curve", &pixels);
    for (point, &[px, py]) in points.iter().zip(&pixels) {
        svg.circle("dot", [px, py], 3.0);
        svg.text("name", [px, py - 7.0], Anchor::Middle, &format!("{:.0}", point[1]));
    }
    Some(svg.finish(width, height, "Signal to noise of the residual stream after each block"))
}

fn range(range: &RangeStatistics) -> [String; 8] {
    let percent = |fraction: f64| format!("{:.3} %", 100.0 * fraction);
    let percentiles = range.percentiles.iter().map(|p| format!("{} %: {:.3}", p.percent, p.value));
    [
        range.site.clone(),
        range.calibrator.clone(),
        format!("{:.3}", range.max),
        range.amax.map_or(String::new(), |amax| format!("{amax:.3}")),
        percentiles.collect::<Vec<_>>().join(", "),
        percent(range.clipped),
        percent(range.zeroed),
        range.spread.and_then(|spread| spread.ratio()).map_or(String::new(), |ratio| format!("{ratio:.1}")),
    ]
}
