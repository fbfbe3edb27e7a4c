//! Refinement of a calibrated model: rewrites layers and searches their ranges so that the error of their
//! outputs falls, and leaves plain INT8 products.
//!
//! Each transform concerns one layer, and is kept only if it lowers the mean squared error of this layer's
//! output on rows that no transform was fitted to. The inputs are those of the float model, so that layers do
//! not affect each other. `docs/calibration.md` defines the transforms exactly.

mod attention;
mod groups;
mod hidden;
mod layer;
mod norm;
mod sample;
mod stored;
mod trial;
mod values;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use swinq_model::quantized::{ChannelCodes, FloatModel, Int8Weight};
use swinq_model::site::BlockId;
use swinq_model::{Granularity, HostTensor, Linear, Ptq, Site, SiteSpec};

use crate::channels::fold_factors;
use crate::error::CalibError;
use crate::refined::{RefinedParameters, norm_before};
use crate::weight::quantize_weight;
use attention::AttentionPath;
use layer::{Codes, Target, column_squares, diagonal_range};
use norm::moved_to_bias;
use sample::{ChannelMap, Rows};
pub(crate) use sample::{Sampler, Samples};
pub use trial::{Refinement, Trial};
use values::{Ranges, ValuePath};

/// The layers of blocks and of patch merging that run in INT8 and whose `ptq` is not `basic`.
pub(crate) fn refined_layers(specs: &BTreeMap<Site, SiteSpec>) -> Vec<Linear> {
    let layers = specs.keys().filter_map(|site| match site {
        Site::Weight(Linear::PatchEmbed | Linear::Head) => None,
        Site::Weight(layer) => Some(*layer),
        _ => None,
    });
    let wanted = |layer: &Linear| {
        let weight = &specs[&Site::Weight(*layer)];
        weight.enabled && weight.ptq != Ptq::Basic && specs[&Site::Input(*layer)].enabled
    };
    layers.filter(wanted).collect()
}

/// The model, the samples and the ranges of a refinement.
pub(crate) struct Refiner<'a> {
    /// The setting of every site.
    pub specs: &'a BTreeMap<Site, SiteSpec>,
    /// The sites whose range must not change.
    pub fixed: &'a BTreeSet<Site>,
    /// The samples of the calibration.
    pub samples: Samples,
    /// The float model, which stays as it is.
    pub float: &'a FloatModel,
    /// The results so far; at first the calibrated ranges.
    pub refined: RefinedParameters,
    /// Every transform that was tried.
    pub trials: Vec<Trial>,
}

/// The numbers of a layer: how its input is rounded, its weight, and the error on held-out rows.
struct Fitted {
    codes: Codes,
    weight: Int8Weight,
    error: f64,
}

impl Refiner<'_> {
    fn layer(&mut self, layer: Linear) -> Result<(), CalibError> {
        if let Linear::Proj(block) = layer {
            self.migrate_values(block)?;
            self.attention_ranges(block)?;
        }
        let mut fitted = match norm_before(&self.float.config, layer) {
            Some(norm) => self.migrate_norm(layer, &norm)?,
            None => self.plain(layer)?,
        };
        if let Linear::Fc2(_) = layer {
            fitted = self.hidden_channels(layer, fitted)?;
        }
        self.correct_bias(layer, &mut fitted)?;
        self.refined.ranges.insert(Site::Input(layer), fitted.codes.amax());
        if let Codes::Channels { factors, .. } = &fitted.codes {
            let codes = ChannelCodes { factors: factors.clone(), zero_points: fitted.codes.zero_points() };
            self.refined.channels.extend(layer.block().map(|block| (block, codes)));
        }
        Ok(())
    }

    fn weight(&self, layer: Linear) -> &HostTensor {
        self.tensor(&layer.weight_name()).expect("a layer has a weight")
    }

    /// The parameter `name` as it is so far.
    fn tensor(&self, name: &str) -> Option<&HostTensor> {
        self.refined.tensor(self.float, name)
    }

    /// The parameter `name`, to be rewritten.
    fn tensor_mut(&mut self, name: String) -> Option<&mut HostTensor> {
        match self.refined.tensors.entry(name) {
            Entry::Occupied(tensor) => Some(tensor.into_mut()),
            Entry::Vacant(place) => {
                let tensor = self.float.tensors.get(place.key())?.clone();
                Some(place.insert(tensor))
            }
        }
    }

    fn view(&self, layer: Linear) -> Result<View<'_>, CalibError> {
        View::new(&self.samples.inputs[&layer], self.weight(layer), &self.specs[&Site::Weight(layer)])
    }

    fn is_on(&self, site: Site) -> bool {
        self.specs[&site].enabled
    }

    fn try_one(&mut self, layer: Linear, transform: Refinement, before: f64, after: f64) -> bool {
        let trial = Trial { layer, transform, before, after };
        self.trials.push(trial);
        trial.kept()
    }

    /// The layer without a rewriting: its range is searched, and kept if it lowers the error.
    fn plain(&mut self, layer: Linear) -> Result<Fitted, CalibError> {
        let input = Site::Input(layer);
        let view = self.view(layer)?;
        let basic = view.judge(Codes::Tensor(self.refined.ranges[&input]))?;
        if self.fixed.contains(&input) {
            return Ok(basic);
        }
        let searched = view.judge(view.searched_range(Codes::Tensor(view.rows.max())))?;
        let kept = self.try_one(layer, Refinement::Range, basic.error, searched.error);
        Ok(if kept { searched } else { basic })
    }

    /// [`norm`]: the layer with its norm's channels rewritten, or without if that is better.
    fn migrate_norm(&mut self, layer: Linear, norm: &str) -> Result<Fitted, CalibError> {
        let plain = self.plain(layer)?;
        if self.fixed.contains(&Site::Input(layer)) {
            return Ok(plain);
        }
        let (rows, weight) = (&self.samples.inputs[&layer], self.weight(layer));
        let spec = &self.specs[&Site::Weight(layer)];
        let map = norm::best_map(rows, weight, spec, self.may_shift_input(layer))?;
        let (rows, weight) = (rows.mapped(&map), fold_factors(weight, &map.factor));
        let view = View::new(&rows, &weight, spec)?;
        let moved = view.judge(view.searched_range(Codes::Tensor(rows.max())))?;
        if !self.try_one(layer, Refinement::MigrateNorm, plain.error, moved.error) {
            return Ok(plain);
        }
        self.move_into(layer, &map);
        let gamma = self.tensor_mut(format!("{norm}.weight")).expect("a norm has a weight");
        gamma.data.iter_mut().zip(&map.factor).for_each(|(gamma, factor)| *gamma /= factor);
        let beta = self.tensor_mut(format!("{norm}.bias")).expect("a norm has a bias");
        map.apply(&mut beta.data);
        self.samples.inputs.insert(layer, rows);
        Ok(moved)
    }

    /// Rewrites a layer for an input that follows `map`: the columns of its weight, and its bias.
    fn move_into(&mut self, layer: Linear, map: &ChannelMap) {
        let weight = self.weight(layer);
        let (moved, weight) = (moved_to_bias(weight, &map.shift), fold_factors(weight, &map.factor));
        let weight = weight.into_owned();
        self.refined.tensors.insert(layer.weight_name(), weight);
        if let Some(bias) = self.tensor_mut(layer.bias_name()) {
            bias.data.iter_mut().zip(moved).for_each(|(b, moved)| *b = (f64::from(*b) + moved) as f32);
        }
    }

    /// Whether a shift of the layer's input can move into its bias: it has one, `.output` is off, and no
    /// input is padding, whose zeros do not pass the norm. Windows of a backbone may have padding, because
    /// its images have any size.
    fn may_shift_input(&self, layer: Linear) -> bool {
        let grids = self.float.config.own_grids();
        let backbone = self.float.config.is_backbone();
        let padded = |block: BlockId| backbone || grids[block.stage].is_padded();
        let has_bias = self.tensor(&layer.bias_name()).is_some();
        has_bias && !self.is_on(Site::Output(layer)) && !matches!(layer, Linear::Qkv(block) if padded(block))
    }

    /// [`values`]: rewrites the values of a block and its projection if that is better.
    fn migrate_values(&mut self, block: BlockId) -> Result<(), CalibError> {
        let (qkv, proj) = (Linear::Qkv(block), Linear::Proj(block));
        let (input, values) = (Site::Input(proj), Site::V(block));
        let qkv_spec = &self.specs[&Site::Weight(qkv)];
        let rows_are_free = !qkv_spec.enabled || qkv_spec.granularity == Granularity::Channel;
        let fixed = [input, values].iter().any(|site| self.fixed.contains(site));
        let Some(windows) = self.samples.attentions.get(&block) else { return Ok(()) };
        if fixed || !rows_are_free || self.is_on(Site::Output(qkv)) {
            return Ok(());
        }
        let path = ValuePath {
            windows,
            mixed: &self.samples.inputs[&proj],
            weight: self.weight(proj),
            spec: &self.specs[&Site::Weight(proj)],
            values_on: self.is_on(values),
            may_shift: self.tensor(&qkv.bias_name()).is_some() && !self.is_on(Site::Output(proj)),
        };
        let ranges = &self.refined.ranges;
        let basic = Ranges { values: ranges.get(&values).copied().unwrap_or(1.0), mixed: ranges[&input] };
        let (map, ranges, after, before) = path.best_map(basic)?;
        if !self.try_one(proj, Refinement::MigrateValues, before, after) {
            return Ok(());
        }
        self.move_into(proj, &map);
        self.map_value_rows(qkv, &map);
        self.refined.ranges.insert(input, ranges.mixed);
        if self.is_on(values) {
            self.refined.ranges.insert(values, ranges.values);
        }
        let mapped = self.samples.inputs[&proj].mapped(&map);
        self.samples.inputs.insert(proj, mapped);
        let windows = self.samples.attentions.get_mut(&block).expect("found above");
        windows.qkv[2] = windows.qkv[2].mapped(&map);
        Ok(())
    }

    /// [`attention`]: searches the ranges of queries, keys and values that are on and may change.
    fn attention_ranges(&mut self, block: BlockId) -> Result<(), CalibError> {
        let Some(windows) = self.samples.attentions.get(&block) else { return Ok(()) };
        let sites = [Site::Q(block), Site::K(block), Site::V(block)];
        let proj = Linear::Proj(block);
        let free = sites.map(|site| self.is_on(site) && !self.fixed.contains(&site));
        let start = sites.map(|site| self.is_on(site).then(|| self.refined.ranges[&site]));
        if !free.contains(&true) {
            return Ok(());
        }
        let path = AttentionPath::new(windows, self.weight(proj))?;
        let found = path.search(start, free)?;
        let (before, after) = (path.held_error(start)?, path.held_error(found)?);
        if self.try_one(proj, Refinement::AttentionRanges, before, after) {
            let on = sites.into_iter().zip(found).filter_map(|(site, amax)| Some((site, amax?)));
            self.refined.ranges.extend(on);
        }
        Ok(())
    }

    /// Rewrites the rows of `attn.qkv` that give the values.
    fn map_value_rows(&mut self, qkv: Linear, map: &ChannelMap) {
        let channels = map.factor.len();
        let weight = self.tensor_mut(qkv.weight_name()).expect("attn.qkv has a weight");
        for (row, factor) in weight.data.chunks_exact_mut(channels).skip(2 * channels).zip(&map.factor) {
            row.iter_mut().for_each(|w| *w /= factor);
        }
        if let Some(bias) = self.tensor_mut(qkv.bias_name()) {
            map.apply(&mut bias.data[2 * channels..]);
        }
    }

    /// [`hidden`]: codes for each hidden channel, or `fitted` if that is better.
    fn hidden_channels(&mut self, layer: Linear, fitted: Fitted) -> Result<Fitted, CalibError> {
        if self.fixed.contains(&Site::Input(layer)) || self.is_on(Site::Output(layer)) {
            return Ok(fitted);
        }
        let view = self.view(layer)?;
        let codes = hidden::best_codes(view.rows, view.weight, view.spec)?;
        let own = view.judge(view.searched_range(codes))?;
        Ok(if self.try_one(layer, Refinement::HiddenChannels, fitted.error, own.error) {
            own
        } else {
            fitted
        })
    }

    /// Subtracts the mean error of the layer's output from its bias, if that lowers the error.
    fn correct_bias(&mut self, layer: Linear, fitted: &mut Fitted) -> Result<(), CalibError> {
        let Some(bias) = self.tensor(&layer.bias_name()) else { return Ok(()) };
        let view = self.view(layer)?;
        let rounded = fitted.weight.dequantize();
        let mean = Target::new(&view.rows.fit, view.weight)?.mean_error(&fitted.codes, &rounded.data)?;
        let change: Vec<f32> = mean.iter().map(|mean| -mean).collect();
        let error = view.held.error(&fitted.codes, &rounded.data, Some(&change))?;
        let corrected = bias.data.iter().zip(change).map(|(b, change)| b + change).collect();
        if self.try_one(layer, Refinement::BiasCorrection, fitted.error, error) {
            self.refined.biases.insert(layer, corrected);
            fitted.error = error;
        }
        Ok(())
    }
}

/// A layer as it is: its input, its float weight, and its output for the held-out rows.
struct View<'a> {
    rows: &'a Rows,
    weight: &'a HostTensor,
    spec: &'a SiteSpec,
    held: Target<'a>,
}

impl<'a> View<'a> {
    fn new(rows: &'a Rows, weight: &'a HostTensor, spec: &'a SiteSpec) -> Result<View<'a>, CalibError> {
        Ok(View { rows, weight, spec, held: Target::new(&rows.held, weight)? })
    }

    /// The layer with these codes and the calibrator's scales, and its error on the held-out rows.
    fn judge(&self, codes: Codes) -> Result<Fitted, CalibError> {
        let weight = quantize_weight(&codes.stored(self.weight), self.spec)?;
        let error = self.held.error(&codes, &weight.dequantize().data, None)?;
        Ok(Fitted { codes, weight, error })
    }

    /// `widest`, or the narrower range with the least estimated error at the layer's output.
    fn searched_range(&self, widest: Codes) -> Codes {
        let squares = column_squares(&widest.stored(self.weight).data, self.rows.width);
        let (amax, _) = diagonal_range(&widest, widest.amax(), &self.rows.fit, &squares);
        widest.with_amax(amax)
    }
}

#[cfg(test)]
mod tests;
