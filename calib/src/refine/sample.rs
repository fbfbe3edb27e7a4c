//! Samples of a calibration: rows of layer inputs, windows of attention, and the range of every channel.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use rayon::prelude::*;
use swinq_float::{Attention, FloatError, LinearWeights, Sites};
use swinq_model::site::BlockId;
use swinq_model::{Draws, Linear, Site};

use super::layer::every;
use crate::observe::{Observe, with_host_values};

/// Number of sampled rows of each layer, about.
const ROWS: usize = 1152;
/// Number of sampled windows of each block, about.
const WINDOWS: usize = 48;
/// One part in this many is held out: transforms are fitted to the others and judged on it.
const PARTS: usize = 3;

/// Rows of one tensor, and the range of each of its channels.
#[derive(Clone, Debug)]
pub struct Rows {
    /// Channels.
    pub width: usize,
    /// Rows to fit transforms to, `[rows, width]`.
    pub fit: Vec<f32>,
    /// Rows to judge them on, `[rows, width]`.
    pub held: Vec<f32>,
    /// The least value of each channel, over all values of the calibration.
    pub low: Vec<f32>,
    /// The largest value of each channel, over all values of the calibration.
    pub high: Vec<f32>,
}

impl Rows {
    /// The largest magnitude over all values of the calibration.
    pub fn max(&self) -> f32 {
        self.low.iter().zip(&self.high).fold(0.0, |max, (low, high)| max.max(-low).max(*high))
    }

    /// Every `step`-th row to fit, and no held-out rows. The ranges stay those of all values.
    pub fn thin(&self, step: usize) -> Rows {
        let fit = every(step, &self.fit, self.width);
        Rows { width: self.width, fit, held: Vec::new(), low: self.low.clone(), high: self.high.clone() }
    }

    /// The rows after `x' = (x - shift) / factor` in every channel.
    pub fn mapped(&self, map: &ChannelMap) -> Rows {
        let apply = |values: &[f32]| {
            let mut values = values.to_vec();
            values.par_chunks_mut(self.width).for_each(|row| map.apply(row));
            values
        };
        let range = |values: &[f32]| {
            let mut values = values.to_vec();
            map.apply(&mut values);
            values
        };
        Rows {
            width: self.width,
            fit: apply(&self.fit),
            held: apply(&self.held),
            low: range(&self.low),
            high: range(&self.high),
        }
    }
}

/// `x' = (x - shift) / factor` in every channel, with positive factors.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelMap {
    /// The subtrahend.
    pub shift: Vec<f32>,
    /// The divisor of the difference.
    pub factor: Vec<f32>,
}

impl ChannelMap {
    /// Maps one value of each channel.
    pub fn apply(&self, row: &mut [f32]) {
        for ((x, shift), factor) in row.iter_mut().zip(&self.shift).zip(&self.factor) {
            *x = (*x - shift) / factor;
        }
    }

    /// The largest magnitude that each channel of `rows` has after the shift.
    pub fn magnitudes(rows: &Rows, shift: &[f32]) -> Vec<f32> {
        let ends = rows.low.iter().zip(&rows.high).zip(shift);
        ends.map(|((low, high), shift)| (low - shift).abs().max((high - shift).abs())).collect()
    }
}

/// Windows of one block.
#[derive(Clone, Debug)]
pub struct Windows {
    /// Heads.
    pub heads: usize,
    /// Tokens of a window.
    pub tokens: usize,
    /// Factor of `q k^T` for each head.
    pub scales: Vec<f32>,
    /// Queries, keys and values at their sites, each `[windows * tokens, channels]`.
    pub qkv: [Rows; 3],
    /// The addend of the scaled products of each window: bias and mask, `[windows, heads, tokens, tokens]`,
    /// first of the windows to fit, then of those held out.
    pub addend: Vec<f32>,
}

/// The samples of one site.
#[derive(Default)]
pub(super) struct Pieces {
    /// Sampled rows by position of their image in the data set.
    pub(super) rows: BTreeMap<usize, Vec<f32>>,
    pub(super) low: Vec<f32>,
    pub(super) high: Vec<f32>,
}

impl Pieces {
    /// Adds the sample of other images at the same site.
    fn merge(&mut self, other: Pieces) {
        if self.low.is_empty() {
            (self.low, self.high) = (other.low, other.high);
        } else if !other.low.is_empty() {
            self.low = pairwise(&self.low, &other.low, f32::min);
            self.high = pairwise(&self.high, &other.high, f32::max);
        }
        self.rows.extend(other.rows);
    }

    fn observe(&mut self, values: &[f32], width: usize) {
        self.low.resize(width, f32::INFINITY);
        self.high.resize(width, f32::NEG_INFINITY);
        let chunk = width * values.len().div_ceil(width * 4 * rayon::current_num_threads()).max(1);
        let ends = values.par_chunks(chunk).map(|values| {
            let (mut low, mut high) = nothing(width);
            for row in values.chunks_exact(width) {
                for ((low, high), &x) in low.iter_mut().zip(&mut high).zip(row) {
                    *low = low.min(x);
                    *high = high.max(x);
                }
            }
            (low, high)
        });
        let (low, high) = ends.reduce(
            || nothing(width),
            |a, b| (pairwise(&a.0, &b.0, f32::min), pairwise(&a.1, &b.1, f32::max)),
        );
        self.low = pairwise(&self.low, &low, f32::min);
        self.high = pairwise(&self.high, &high, f32::max);
    }

    /// The rows; those of every third image are held out; with fewer images than three, every third
    /// row.
    fn into_rows(self) -> Rows {
        // Which of the zeros 0 and -0 is the least depends on the order of the values, so that all become 0.
        let ends = |ends: Vec<f32>| ends.into_iter().map(|end| end + 0.0).collect::<Vec<f32>>();
        let (low, high) = (ends(self.low), ends(self.high));
        let width = low.len();
        let (mut fit, mut held) = (Vec::new(), Vec::new());
        if self.rows.len() >= PARTS {
            for (index, rows) in self.rows.into_values().enumerate() {
                let part = if index % PARTS == PARTS - 1 { &mut held } else { &mut fit };
                part.extend(rows);
            }
        } else {
            let all: Vec<f32> = self.rows.into_values().flatten().collect();
            for (index, row) in all.chunks_exact(width.max(1)).enumerate() {
                let part = if index % PARTS == PARTS - 1 { &mut held } else { &mut fit };
                part.extend_from_slice(row);
            }
        }
        Rows { width, fit, held, low, high }
    }
}

/// The ranges of no value.
fn nothing(width: usize) -> (Vec<f32>, Vec<f32>) {
    (vec![f32::INFINITY; width], vec![f32::NEG_INFINITY; width])
}

pub(super) fn pairwise(a: &[f32], b: &[f32], choose: fn(f32, f32) -> f32) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| choose(*a, *b)).collect()
}

/// Observes sites and takes samples during a forward, without changing the values.
///
/// The sample depends on the set of images only: the rows of an image are drawn by its position in the data
/// set and the site, and the samples are ordered by that position.
pub struct Sampler {
    /// The histograms.
    pub observe: Observe,
    pub(super) inputs: BTreeMap<Linear, Pieces>,
    pub(super) attentions: BTreeMap<BlockId, WindowPieces>,
    /// Number of images of the calibration.
    total: usize,
    /// The images of the current forward, by position in the data set.
    current: Vec<usize>,
}

#[derive(Default)]
pub(super) struct WindowPieces {
    pub(super) heads: usize,
    pub(super) tokens: usize,
    pub(super) scales: Vec<f32>,
    /// Queries, keys and values.
    pub(super) parts: [Pieces; 3],
    /// The addends of the sampled windows by image.
    pub(super) addend: BTreeMap<usize, Vec<f32>>,
}

impl WindowPieces {
    fn merge(&mut self, other: WindowPieces) {
        if self.heads == 0 {
            (self.heads, self.tokens, self.scales) = (other.heads, other.tokens, other.scales);
        }
        self.parts.iter_mut().zip(other.parts).for_each(|(own, other)| own.merge(other));
        self.addend.extend(other.addend);
    }
}

/// The samples of a calibration.
pub struct Samples {
    /// The inputs of layers.
    pub inputs: BTreeMap<Linear, Rows>,
    /// The attention of blocks; empty for fewer than three images.
    pub attentions: BTreeMap<BlockId, Windows>,
}

impl Sampler {
    /// Samples the inputs of `layers` and the attention of `blocks` on `total` images.
    pub fn new(observe: Observe, layers: Vec<Linear>, blocks: Vec<BlockId>, total: usize) -> Sampler {
        Sampler {
            observe,
            inputs: layers.into_iter().map(|layer| (layer, Pieces::default())).collect(),
            attentions: blocks.into_iter().map(|block| (block, WindowPieces::default())).collect(),
            total: total.max(1),
            current: Vec::new(),
        }
    }

    /// Observes and samples the same, and has seen nothing.
    pub(crate) fn anew(&self) -> Sampler {
        let (layers, blocks) =
            (self.inputs.keys().copied().collect(), self.attentions.keys().copied().collect());
        Sampler::new(self.observe.anew(), layers, blocks, self.total)
    }

    /// Adds the observations and samples of `other`, of other images and the same sites, layers and blocks.
    pub(crate) fn merge(&mut self, other: Sampler) {
        self.observe.merge(&other.observe);
        for (layer, pieces) in other.inputs {
            self.inputs.entry(layer).or_default().merge(pieces);
        }
        for (block, pieces) in other.attentions {
            self.attentions.entry(block).or_default().merge(pieces);
        }
    }

    /// Names the images of the next forward by their positions in the data set.
    pub fn next_images(&mut self, ids: &[usize]) {
        self.current = ids.to_vec();
    }

    /// The samples, and the histograms.
    pub fn into_samples(self) -> (Samples, Observe) {
        let inputs = self.inputs.into_iter().map(|(layer, pieces)| (layer, pieces.into_rows())).collect();
        let enough = |pieces: &WindowPieces| pieces.addend.len() >= PARTS;
        let attentions = self.attentions.into_iter().filter(|(_, pieces)| enough(pieces));
        let attentions = attentions.map(|(block, pieces)| {
            let windows = Windows {
                heads: pieces.heads,
                tokens: pieces.tokens,
                scales: pieces.scales,
                qkv: pieces.parts.map(Pieces::into_rows),
                addend: split(pieces.addend),
            };
            (block, windows)
        });
        (Samples { inputs, attentions: attentions.collect() }, self.observe)
    }

    /// Which of `count` rows or windows of image `id` belong to the sample of about `wanted` from all images.
    fn drawn(&self, key: u64, id: usize, count: usize, wanted: usize) -> Vec<usize> {
        let mut draws = Draws::keyed(&[key, id as u64]);
        let share = wanted as f64 / self.total as f64;
        if share < 1.0 && draws.unit() >= share {
            return Vec::new();
        }
        let quota = (share.ceil() as usize).clamp(1, count);
        // One from each of `quota` equal parts.
        (0..quota).map(|i| ((i as f64 + draws.unit()) * count as f64 / quota as f64) as usize).collect()
    }

    fn sample_input(&mut self, layer: Linear, x: &Tensor) -> Result<(), FloatError> {
        if !self.inputs.contains_key(&layer) {
            return Ok(());
        }
        let (count, width) = x.dims2()?;
        let per_image = count / self.current.len().max(1);
        let key = key(&layer.to_string());
        with_host_values(x, |values| {
            let mut taken = Vec::new();
            for (index, &id) in self.current.iter().enumerate() {
                for row in self.drawn(key, id, per_image, ROWS) {
                    let at = (index * per_image + row) * width;
                    taken.push((id, &values[at..at + width]));
                }
            }
            let pieces = self.inputs.get_mut(&layer).expect("tested above");
            pieces.observe(values, width);
            taken.into_iter().for_each(|(id, row)| pieces.rows.entry(id).or_default().extend(row));
        })
    }

    fn sample_windows(&mut self, attention: &Attention<'_>) -> Result<(), FloatError> {
        let block = attention.block;
        if !self.attentions.contains_key(&block) {
            return Ok(());
        }
        let (heads, n, _) = attention.bias.dims3()?;
        let (rows, width) = attention.qkv.dims2()?;
        let (channels, per_image) = (width / 3, rows / n / self.current.len().max(1));
        let bias = host_values(&attention.bias)?;
        let mask = attention.mask.map(host_values).transpose()?;
        let key = key(&block.to_string());
        let mut taken = Vec::new();
        for (index, &id) in self.current.iter().enumerate() {
            taken.extend(self.drawn(key, id, per_image, WINDOWS).into_iter().map(|w| (id, index, w)));
        }
        let pieces = self.attentions.get_mut(&block).expect("tested above");
        (pieces.heads, pieces.tokens, pieces.scales) = (heads, n, attention.scales()?.into_owned());
        for (pieces, part) in pieces.parts.iter_mut().zip(&attention.split()?) {
            let columns = host_values(&attention.merge(part)?)?;
            pieces.observe(&columns, channels);
            for &(id, index, window) in &taken {
                let at = (index * per_image + window) * n * channels;
                pieces.rows.entry(id).or_default().extend(&columns[at..][..n * channels]);
            }
        }
        for &(id, _, window) in &taken {
            let addend = pieces.addend.entry(id).or_default();
            for (at, &bias) in bias.iter().enumerate() {
                let mask = mask.as_ref().map_or(0.0, |mask| mask[window * n * n + at % (n * n)]);
                addend.push(bias + mask);
            }
        }
        Ok(())
    }
}

/// The parts of every image in the order of the images: those to fit, then those held out, as
/// [`Pieces::into_rows`] divides them.
fn split(pieces: BTreeMap<usize, Vec<f32>>) -> Vec<f32> {
    let (mut fit, mut held) = (Vec::new(), Vec::new());
    for (index, values) in pieces.into_values().enumerate() {
        if index % PARTS == PARTS - 1 { held.extend(values) } else { fit.extend(values) }
    }
    fit.extend(held);
    fit
}

/// A number for a name, equal on every machine.
fn key(name: &str) -> u64 {
    let words: Vec<u64> = name.bytes().map(u64::from).collect();
    Draws::keyed(&words).next()
}

fn host_values(x: &Tensor) -> Result<Vec<f32>, FloatError> {
    Ok(x.flatten_all()?.to_device(&Device::Cpu)?.to_vec1::<f32>()?)
}

impl Sites for Sampler {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        if let Site::Input(layer) = site {
            self.sample_input(layer, &x)?;
        }
        self.observe.activation(site, x)
    }

    fn watches(&self, site: Site) -> bool {
        self.observe.watches(site)
    }

    fn residual(&mut self, after: Linear, x: &Tensor) -> Result<(), FloatError> {
        self.observe.residual(after, x)
    }

    fn linear(&mut self, layer: &LinearWeights, x: &Tensor) -> Result<Tensor, FloatError> {
        self.observe.linear(layer, x)
    }

    fn attention(&mut self, attention: &Attention<'_>) -> Result<Tensor, FloatError> {
        self.sample_windows(attention)?;
        self.observe.attention(attention)
    }
}
