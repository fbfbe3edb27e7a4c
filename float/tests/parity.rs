//! The float forward against PyTorch, on small models whose parameters are all random
//! (`tests/parity/make_fixtures.py`).

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use safetensors::SafeTensors;
use swinq_float::ops::Compute;
use swinq_float::{Attention, Float, FloatError, Sites, Swin, attention_in_parts};
use swinq_model::params::parameters;
use swinq_model::{
    HostTensor, LoadOptions, LoadedConfig, Site, StateDict, SwinConfig, all_sites, load_config, load_float,
};

const TOLERANCE: f64 = 1e-5;

const FIXTURES: [&str; 4] = ["swin_plain", "swin_padded", "swinv2_plain", "swinv2_padded"];

struct Fixture {
    config: SwinConfig,
    parameters: StateDict,
    input: Tensor,
    logits: HostTensor,
    tensors_of_sites: BTreeMap<Site, HostTensor>,
}

fn fixture(name: &str) -> Fixture {
    let path = format!("{}/tests/fixtures/{name}.safetensors", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let config = serde_json::from_str(&metadata.metadata().as_ref().unwrap()["config"]).unwrap();
    let mut all: StateDict = file.iter().map(|(name, view)| (name.to_owned(), host(&view))).collect();
    let tensors_of_sites =
        all.iter().filter_map(|(n, t)| Some((n.strip_prefix("rung.")?.parse().unwrap(), t.clone())));
    let tensors_of_sites = tensors_of_sites.collect();
    all.retain(|name, _| !name.starts_with("rung."));
    let input = all.remove("input").unwrap();
    let input = Tensor::from_vec(input.data, input.shape, &Device::Cpu).unwrap();
    Fixture { config, logits: all.remove("logits").unwrap(), parameters: all, input, tensors_of_sites }
}

fn host(view: &safetensors::tensor::TensorView) -> HostTensor {
    let values = view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    HostTensor::new(view.shape().to_vec(), values.collect())
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Relative L2 distance of `got` from `want`, and the index of the largest difference.
fn distance(got: &[f32], want: &[f32]) -> (f64, usize) {
    assert_eq!(got.len(), want.len());
    let error = |i: usize| (f64::from(got[i]) - f64::from(want[i])).abs();
    let square = |x: f64| x * x;
    let norm: f64 = want.iter().map(|&w| square(f64::from(w))).sum();
    let worst = (0..got.len()).max_by(|&a, &b| error(a).total_cmp(&error(b))).unwrap();
    (((0..got.len()).map(|i| square(error(i))).sum::<f64>() / norm).sqrt(), worst)
}

/// Records the tensor of every site, in the order of visits.
#[derive(Default)]
struct Recorder {
    visited: Vec<(Site, Vec<f32>)>,
}

impl Sites for Recorder {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        self.visited.push((site, values(&x)));
        Ok(x)
    }

    fn weight(&mut self, site: Site, w: &Tensor) -> Result<Tensor, FloatError> {
        self.visited.push((site, values(w)));
        Ok(w.clone())
    }

    fn attend(&mut self, attention: &Attention<'_>, logits: Tensor, v: Tensor) -> Result<Tensor, FloatError> {
        self.visited.push((Site::Probs(attention.block), values(&logits)));
        attention.attend(&logits, &v)
    }
}

/// Compares every recorded tensor with PyTorch's, then the logits; the first difference fails.
fn compare(name: &str) {
    let fixture = fixture(name);
    let swin = Swin::new(&fixture.config, &fixture.parameters, &Device::Cpu).unwrap();
    let mut recorder = Recorder::default();
    let logits = swin.forward(&fixture.input, &mut recorder).unwrap();
    let visited: Vec<Site> = recorder.visited.iter().map(|(site, _)| *site).collect();
    assert_eq!(visited, all_sites(&fixture.config), "sites are visited once each, in forward order");
    let mut compared = 0;
    for (site, got) in &recorder.visited {
        let Some(want) = fixture.tensors_of_sites.get(site) else { continue };
        // The fixture has the tensors of the second of two images.
        check(&site.to_string(), &got[got.len() / 2..], want);
        compared += 1;
    }
    assert_eq!(compared, fixture.tensors_of_sites.len());
    check("logits", &values(&logits), &fixture.logits);
}

fn check(tensor: &str, got: &[f32], want: &HostTensor) {
    let (error, worst) = distance(got, &want.data);
    assert!(
        error <= TOLERANCE,
        "first tensor that differs: {tensor}: relative L2 {error:.2e}; worst at flat index {worst} of {:?}: {} instead of {}",
        want.shape,
        got[worst],
        want.data[worst]
    );
}

#[test]
fn windows_that_divide_the_grid() {
    compare("swin_plain");
}

#[test]
fn padded_windows_odd_merge_position_embedding_and_no_qkv_bias() {
    compare("swin_padded");
}

/// Runs the attention of every block as a whole and in parts, and compares their bits.
#[derive(Default)]
struct WholeAndParts {
    masked_blocks: usize,
}

impl Sites for WholeAndParts {
    fn attention(&mut self, attention: &Attention<'_>) -> Result<Tensor, FloatError> {
        let whole = attention.whole()?.expect("attention on the host has a kernel");
        let parts = attention_in_parts(self, attention)?;
        assert_eq!(whole.dims(), parts.dims());
        let different =
            values(&whole).iter().zip(values(&parts)).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        assert_eq!(different, 0, "{}", attention.block);
        self.masked_blocks += usize::from(attention.mask.is_some());
        Ok(whole)
    }
}

#[test]
fn whole_attention_has_the_bits_of_its_parts() {
    for name in ["swin_plain", "swin_padded"] {
        let mut fixture = fixture(name);
        // Large logits: a masked one then has a weight, which depends on how it was rounded.
        for (name, tensor) in &mut fixture.parameters {
            if name.ends_with("qkv.weight") {
                tensor.data.iter_mut().for_each(|value| *value *= 8.0);
            }
        }
        let swin = Swin::new(&fixture.config, &fixture.parameters, &Device::Cpu).unwrap();
        let mut sites = WholeAndParts::default();
        let logits = values(&swin.forward(&fixture.input, &mut sites).unwrap());
        assert!(sites.masked_blocks > 0, "{name} has no shifted windows");
        assert_eq!(logits, values(&swin.forward(&fixture.input, &mut Float).unwrap()));
    }
}

#[test]
fn swin_v2() {
    compare("swinv2_plain");
}

#[test]
fn swin_v2_with_padded_windows_odd_merge_and_pretrained_window() {
    compare("swinv2_padded");
}

#[test]
fn the_differentiable_forward_agrees_and_reaches_every_parameter() {
    for name in FIXTURES {
        let fixture = fixture(name);
        let mut variables = BTreeMap::new();
        for (name, tensor) in &fixture.parameters {
            let variable =
                candle_core::Var::from_slice(&tensor.data, tensor.shape.as_slice(), &Device::Cpu).unwrap();
            variables.insert(name.clone(), variable);
        }
        let tensors = variables.iter().map(|(name, v)| (name.clone(), v.as_tensor().clone())).collect();
        let swin = Swin::with_ops(&fixture.config, &tensors, &Device::Cpu, Compute::Candle.into()).unwrap();
        let logits = swin.forward(&fixture.input, &mut Float).unwrap();
        check("logits", &values(&logits), &fixture.logits);
        let gradients = logits.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        for (name, variable) in &variables {
            let gradient =
                gradients.get(variable.as_tensor()).unwrap_or_else(|| panic!("no gradient for {name}"));
            assert!(values(gradient).iter().any(|g| *g != 0.0), "the gradient of {name} is zero");
        }
    }
}

#[test]
fn every_parameter_matters() {
    for name in FIXTURES {
        let fixture = fixture(name);
        for (parameter, _) in parameters(&fixture.config) {
            let mut zeroed = fixture.parameters.clone();
            zeroed.get_mut(&parameter).unwrap().data.fill(0.0);
            let swin = Swin::new(&fixture.config, &zeroed, &Device::Cpu).unwrap();
            let logits = swin.forward(&fixture.input, &mut Float).unwrap();
            let (error, _) = distance(&values(&logits), &fixture.logits.data);
            assert!(error > 1e-3, "zeroing {parameter} of {name} changes the logits by {error:.1e} only");
        }
    }
}

/// A checkpoint of mmpretrain gives mmpretrain's logits. Merging in Microsoft's order would give others.
#[test]
fn checkpoints_of_mmpretrain() {
    for version in ["v1", "v2"] {
        let Fixture { config, input, logits, parameters, .. } = fixture(&format!("mmpretrain_{version}"));
        let wrong = &parameters["logits_of_wrong_order"].data;
        let shipped = load_config("swin_tiny_patch4_window7_224", &[]).unwrap();
        let cfg = LoadedConfig { config, ..shipped };
        let root = env!("CARGO_MANIFEST_DIR");
        let path = format!("{root}/../model/tests/checkpoints/mmpretrain/{version}.pth");
        let options = LoadOptions { cfg: Some(cfg), ..LoadOptions::default() };
        let model = load_float(path.as_ref(), &options).unwrap();
        let forward = |tensors: &StateDict| {
            let swin = Swin::new(&model.config, tensors, &Device::Cpu).unwrap();
            values(&swin.forward(&input, &mut Float).unwrap())
        };
        let (error, _) = distance(&forward(&model.tensors), &logits.data);
        assert!(error <= TOLERANCE, "{version}: {error:.2e}");
        let (error, _) = distance(wrong, &logits.data);
        assert!(error > 0.1, "{version}: the order of merging changes the logits by {error:.2e} only");
        // The wrong order as such: columns of a merge taken as they are stored.
        let mut unordered = model.tensors.clone();
        for tensor in unordered.iter_mut().filter(|(name, t)| is_merged(name, t)).map(|(_, t)| t) {
            *tensor = channel_by_channel(tensor);
        }
        let (error, _) = distance(&forward(&unordered), wrong);
        assert!(error <= TOLERANCE, "{version}: the wrong order gives other logits: {error:.2e}");
    }
}

/// Whether the last axis of a parameter has four tokens: merging's weight, and its norm if it stands before.
fn is_merged(name: &str, tensor: &HostTensor) -> bool {
    let (Some((prefix, _)), Some(columns)) = (name.split_once(".downsample."), tensor.shape.last()) else {
        return false;
    };
    let stage: u32 = prefix.trim_start_matches("layers.").parse().unwrap();
    // The fixtures have 6 channels.
    *columns == 4 * 6 * 2usize.pow(stage)
}

/// Columns `part * C + c`, parts (0, 0), (1, 0), (0, 1), (1, 1), as columns `4 c + 2 row + column`.
fn channel_by_channel(tensor: &HostTensor) -> HostTensor {
    let columns = *tensor.shape.last().unwrap();
    let channels = columns / 4;
    let row = |row: &[f32]| -> Vec<f32> {
        (0..columns).map(|k| row[[0, 2, 1, 3][k % 4] * channels + k / 4]).collect()
    };
    HostTensor::new(tensor.shape.clone(), tensor.data.chunks(columns).flat_map(row).collect())
}
