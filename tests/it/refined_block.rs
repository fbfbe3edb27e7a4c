//! Refinement and reconstruction of a real block of a pretrained Swin-B (stage 2, block 2: 256 channels, 8
//! heads, shifted windows), on token maps with outlier channels.
//!
//! The block has no images, so a model around it makes its input: a patch embedding with seeded random
//! weights turns noise into a 28 x 28 map of tokens, and a first block whose branches are zero passes it on.
//! The channels of the tokens are normally distributed, with log-normal deviations; a few outlier channels
//! are `ratio` times as large, with means of that size. What is compared are the outputs of the two branches,
//! without the shortcut.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::common;
use candle_core::{Device, Tensor};
use safetensors::SafeTensors;
use swinq::Rule;
use swinq_calib::{CalibrateOptions, calibrate};
use swinq_eval::Distortion;
use swinq_float::{Attention, FakeQuant, Float, FloatError, LinearWeights, Sites, Swin};
use swinq_model::params::parameters;
use swinq_model::quantized::{FloatModel, QuantizedModel, Source};
use swinq_model::{
    Batch, BatchSource, BlockId, BoxError, Branch, Draws, HostTensor, Linear, Operand, Ptq, Recipe, Site,
    Size, StateDict, SwinConfig, Transform,
};

/// Least gains in dB over `mode1`, and over `default` without refinement.
const OVER_MODE1_DB: f64 = 3.0;
const OVER_DEFAULT_DB: f64 = 1.5;
/// Least part of the squared error of rounding to the nearest 4-bit codes that reconstruction removes, and
/// least part of its mean error.
const SQUARED_ERROR_REMOVED: f64 = 0.3;
const MEAN_ERROR_REMOVED: f64 = 0.9;
/// Outlier channels.
const OUTLIERS: usize = 6;

fn config() -> SwinConfig {
    SwinConfig {
        name: "block of Swin-B".to_owned(),
        image_size: Size::square(448),
        patch_size: 16,
        num_classes: 2,
        embed_dim: 256,
        depths: vec![2],
        num_heads: vec![8],
        window_size: Size::square(7).into(),
        patch_norm: false,
        ..SwinConfig::default()
    }
}

/// A normal number of mean 0 and variance 1, as a sum of uniform ones.
fn normal(draws: &mut Draws) -> f64 {
    (0..12).map(|_| draws.unit()).sum::<f64>() - 6.0
}

/// The model around the block of `file`, whose input has outliers of `ratio`.
fn model(file: &SafeTensors, ratio: f64) -> FloatModel {
    let config = config();
    config.validate().unwrap();
    let mut draws = Draws::new(ratio as u64);
    let mut tensors = StateDict::new();
    for (name, shape) in parameters(&config) {
        let count: usize = shape.iter().product();
        let data = match name.strip_prefix("layers.0.blocks.1") {
            Some(rest) => {
                let view = file.tensor(&format!("layers.1.blocks.1{rest}")).unwrap();
                assert_eq!(view.shape(), shape, "{name}");
                view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
            }
            None if name.ends_with("norm.weight") || name.contains(".norm") => vec![1.0; count],
            None => vec![0.0; count],
        };
        tensors.insert(name, HostTensor::new(shape, data));
    }
    let (mut means, mut rows) = (Vec::new(), Vec::new());
    for channel in 0..config.embed_dim {
        let outlier = if channel % (config.embed_dim / OUTLIERS) == 7 { ratio } else { 1.0 };
        let deviation = outlier * (0.4 * normal(&mut draws)).exp();
        means.push((outlier * 0.3 * normal(&mut draws)) as f32);
        // Normalised pixels of noise have a variance of about 1.6.
        rows.extend((0..768).map(|_| (deviation * normal(&mut draws) / (768.0f64 * 1.6).sqrt()) as f32));
    }
    tensors.get_mut("patch_embed.proj.weight").unwrap().data = rows;
    tensors.get_mut("patch_embed.proj.bias").unwrap().data = means;
    let transform = Transform::microsoft(config.image_size, 3, false);
    FloatModel { config, transform, labels: None, labels_from: None, tensors, source: Source::default() }
}

/// Images of noise.
struct Noise {
    first: usize,
    count: usize,
}

impl BatchSource for Noise {
    fn batches(&self) -> usize {
        self.count
    }

    fn images(&self) -> usize {
        self.count
    }

    fn batch(&mut self, _: u64, index: usize) -> Result<Batch, BoxError> {
        let mut draws = Draws::keyed(&[(self.first + index) as u64]);
        let pixels = (0..448 * 448 * 3).map(|_| draws.next() as u8).collect();
        Ok(Batch { pixels, ids: vec![index], ..Batch::empty(Size::square(448), 3) })
    }
}

/// Keeps the outputs of the block's branches.
struct Branches<S> {
    inner: S,
    found: BTreeMap<Branch, Vec<f32>>,
}

impl<S: Sites> Sites for Branches<S> {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        if let Site::Add(BlockId { block: 1, .. }, branch, Operand::Branch) = site {
            self.found.entry(branch).or_default().extend(x.flatten_all()?.to_vec1::<f32>()?);
        }
        self.inner.activation(site, x)
    }

    fn linear(&mut self, layer: &LinearWeights, x: &Tensor) -> Result<Tensor, FloatError> {
        self.inner.linear(layer, x)
    }

    fn attention(&mut self, attention: &Attention<'_>) -> Result<Tensor, FloatError> {
        self.inner.attention(attention)
    }
}

fn branches(swin: &Swin, transform: &Transform, sites: impl Sites) -> BTreeMap<Branch, Vec<f32>> {
    let mut sites = Branches { inner: sites, found: BTreeMap::new() };
    let mut images = Noise { first: 1000, count: 4 };
    for index in 0..images.count {
        let batch = images.batch(0, index).unwrap();
        swin.forward(&swin.images(&batch, transform).unwrap(), &mut sites).unwrap();
    }
    sites.found
}

/// SQNR in dB of both branches together against `exact`, and of each.
fn sqnr(exact: &BTreeMap<Branch, Vec<f32>>, model: &FloatModel, int8: &QuantizedModel) -> (f64, Vec<f64>) {
    let swin = Swin::new(&int8.config, &int8.float_tensors(), &Device::Cpu).unwrap();
    let found = branches(&swin, &model.transform, FakeQuant::new(int8, &Device::Cpu).unwrap());
    let mut each = Vec::new();
    let mut total = 0.0;
    for (branch, exact) in exact {
        let mut distortion = Distortion::default();
        distortion.update(exact, &found[branch]).unwrap();
        each.push(distortion.sqnr_db());
        total += 10f64.powf(-distortion.sqnr_db() / 10.0);
    }
    (-10.0 * (total / each.len() as f64).log10(), each)
}

fn calibrated(model: &FloatModel, recipe: &str, bits: u8, ptq: Ptq, images: usize) -> QuantizedModel {
    let rule = Rule { pattern: "**.weight".to_owned(), bits: Some(bits), ptq: Some(ptq), ..Rule::default() };
    // The first block only passes its input on.
    let off = Rule { pattern: "layers.0.blocks.0.**".to_owned(), enable: Some(false), ..Rule::default() };
    let recipe = Recipe::shipped(recipe).unwrap().with_rule(rule).with_rule(off);
    let mut progress = |_| ControlFlow::Continue(());
    let options = CalibrateOptions { imported: None, device: &Device::Cpu, progress: &mut progress };
    calibrate(model, &recipe, &mut Noise { first: 0, count: images }, options).unwrap().model
}

/// Keeps what the block's layers compute: the queries and keys of `attn.qkv` (refinement rewrites the values,
/// whose error reaches `attn.proj`), the products and biases of `mlp.fc1`, and the residual stream with the
/// outputs of `attn.proj` and `mlp.fc2`, which make up for the errors of the shortcut that they are added to.
struct Results<S> {
    inner: S,
    branch: Vec<f32>,
    found: BTreeMap<String, Vec<f32>>,
}

fn host(x: &Tensor) -> Result<Vec<f32>, FloatError> {
    Ok(x.flatten_all()?.to_vec1::<f32>()?)
}

impl<S: Sites> Sites for Results<S> {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        let x = self.inner.activation(site, x)?;
        match site {
            Site::Add(BlockId { block: 1, .. }, _, Operand::Branch) => self.branch = host(&x)?,
            Site::Add(BlockId { block: 1, .. }, branch, Operand::Shortcut) => {
                let layer = if branch == Branch::Attn { "attn.proj" } else { "mlp.fc2" };
                let sums = host(&x)?.into_iter().zip(&self.branch).map(|(x, branch)| x + branch);
                self.found.entry(layer.to_owned()).or_default().extend(sums);
            }
            _ => {}
        }
        Ok(x)
    }

    fn linear(&mut self, layer: &LinearWeights, x: &Tensor) -> Result<Tensor, FloatError> {
        if let Linear::Qkv(BlockId { block: 1, .. }) | Linear::Fc1(BlockId { block: 1, .. }) = layer.linear {
            let weight = self.inner.weight(Site::Weight(layer.linear), &layer.weight)?;
            let bias = layer.bias.as_ref().expect("the layers of the block have biases");
            let y = layer.before_bias(x, &weight)?.broadcast_add(bias)?;
            let (name, y) = match layer.linear {
                Linear::Qkv(_) => ("attn.qkv", y.narrow(1, 0, 512)?),
                _ => ("mlp.fc1", y),
            };
            self.found.entry(name.to_owned()).or_default().extend(host(&y)?);
        }
        self.inner.linear(layer, x)
    }

    fn attention(&mut self, attention: &Attention<'_>) -> Result<Tensor, FloatError> {
        self.inner.attention(attention)
    }
}

fn results(model: &FloatModel, tensors: &StateDict, sites: impl Sites) -> BTreeMap<String, Vec<f32>> {
    let swin = Swin::new(&model.config, tensors, &Device::Cpu).unwrap();
    let mut sites = Results { inner: sites, branch: Vec::new(), found: BTreeMap::new() };
    let mut images = Noise { first: 1000, count: 6 };
    for index in 0..images.count {
        let batch = images.batch(0, index).unwrap();
        swin.forward(&swin.images(&batch, &model.transform).unwrap(), &mut sites).unwrap();
    }
    sites.found
}

/// Of each layer: the mean squared error of its result against `exact`, and the root of the sum over channels
/// of the squared mean error.
fn errors(
    exact: &BTreeMap<String, Vec<f32>>,
    model: &FloatModel,
    int8: &QuantizedModel,
) -> BTreeMap<String, [f64; 2]> {
    let found = results(model, &int8.float_tensors(), FakeQuant::new(int8, &Device::Cpu).unwrap());
    let error = |(name, exact): (&String, &Vec<f32>)| {
        let width = match name.as_str() {
            "attn.qkv" => 512,
            "mlp.fc1" => 1024,
            _ => 256,
        };
        let errors: Vec<f64> = exact.iter().zip(&found[name]).map(|(a, b)| f64::from(b - a)).collect();
        let mut means = vec![0.0; width];
        for row in errors.chunks_exact(width) {
            means.iter_mut().zip(row).for_each(|(sum, error)| *sum += error);
        }
        let rows = (errors.len() / width) as f64;
        let square = errors.iter().map(|error| error * error).sum::<f64>() / errors.len() as f64;
        (name.clone(), [square, means.iter().map(|sum| (sum / rows).powi(2)).sum::<f64>().sqrt()])
    };
    exact.iter().map(error).collect()
}

#[test]
fn reconstruction_removes_the_errors_of_4_bit_weights_of_a_real_block() {
    let test = "reconstruction_removes_the_errors_of_4_bit_weights_of_a_real_block";
    let Some(data) = common::large_data(test) else { return };
    let bytes = std::fs::read(data.join("models/swin_b_block/block.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    for ratio in [8.0, 32.0] {
        let model = model(&file, ratio);
        let exact = results(&model, &model.tensors, Float);
        let of = |ptq| errors(&exact, &model, &calibrated(&model, "default", 4, ptq, 10));
        let [basic, refined, reconstructed] = [Ptq::Basic, Ptq::Refined, Ptq::Reconstruct].map(of);
        for (layer, [square, mean]) in reconstructed {
            let removed = |before: f64, after: f64| 1.0 - after / before;
            let (squares, means) = (removed(basic[&layer][0], square), removed(basic[&layer][1], mean));
            let over_refined = removed(refined[&layer][0], square);
            eprintln!(
                "outliers x{ratio}, {layer}: squared error -{:.0} % (of refined's: -{:.0} %), mean error -{:.0} %",
                100.0 * squares,
                100.0 * over_refined,
                100.0 * means
            );
            assert!(
                squares.min(over_refined) >= SQUARED_ERROR_REMOVED,
                "x{ratio} {layer}: {squares}, {over_refined}"
            );
            assert!(means >= MEAN_ERROR_REMOVED, "x{ratio} {layer}: {means}");
        }
    }
}

#[test]
fn refinement_gains_on_a_real_block_with_outliers() {
    let Some(data) = common::large_data("refinement_gains_on_a_real_block_with_outliers") else { return };
    let bytes = std::fs::read(data.join("models/swin_b_block/block.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    for ratio in [8.0, 32.0] {
        let model = model(&file, ratio);
        let float = Swin::new(&model.config, &model.tensors, &Device::Cpu).unwrap();
        let exact = branches(&float, &model.transform, Float);
        let of = |recipe, ptq| sqnr(&exact, &model, &calibrated(&model, recipe, 8, ptq, 12));
        let (mode1, default) = (of("mode1", Ptq::Basic), of("default", Ptq::Basic));
        let refined = of("default", Ptq::Refined);
        eprintln!("outliers x{ratio}: mode1 {mode1:.2?}, default {default:.2?}, refined {refined:.2?} dB");
        assert!(refined.0 >= mode1.0 + OVER_MODE1_DB, "x{ratio}: {refined:?} dB, mode1 {mode1:?} dB");
        assert!(refined.0 >= default.0 + OVER_DEFAULT_DB, "x{ratio}: {refined:?} dB, default {default:?} dB");
    }
}
