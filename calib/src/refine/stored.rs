//! The samples of a part of the images as tensors, and the samples of all parts from them.
//!
//! Rows of a sample belong to one image each, and the ranges of channels are extremes. Both therefore merge
//! exactly.

use std::collections::{BTreeMap, BTreeSet};

use swinq_model::part::{PartTensor, PartTensors, StoredTensors};
use swinq_model::quantized::FloatModel;
use swinq_model::site::BlockId;
use swinq_model::{Linear, ModelError};

use super::sample::{Pieces, Sampler, WindowPieces, pairwise};

/// The names of the queries, keys and values of a block.
const PARTS_OF_QKV: [&str; 3] = ["q", "k", "v"];

impl Sampler {
    /// Stores the samples.
    pub fn store(&self, tensors: &mut PartTensors) {
        for (layer, pieces) in &self.inputs {
            store_pieces(pieces, &rows_of(*layer), tensors);
        }
        for (block, windows) in &self.attentions {
            let prefix = windows_of(*block);
            for (pieces, part) in windows.parts.iter().zip(PARTS_OF_QKV) {
                store_pieces(pieces, &format!("{prefix}.{part}"), tensors);
            }
            store_values(&windows.addend, &format!("{prefix}.addend"), tensors);
            let scales = PartTensor::f32([windows.scales.len()], &windows.scales);
            tensors.insert(format!("{prefix}.scales"), scales);
        }
    }

    /// Adds the samples of another part, whose images are `ids`. The result does not depend on the order in
    /// which parts are added.
    ///
    /// # Errors
    /// [`ModelError::File`] for tensors that are missing or do not fit `model` or the images.
    pub fn add_stored(
        &mut self,
        tensors: &StoredTensors<'_>,
        model: &FloatModel,
        ids: &BTreeSet<usize>,
    ) -> Result<(), ModelError> {
        for (layer, pieces) in &mut self.inputs {
            let width = model.tensors[&layer.weight_name()].matrix().1;
            add_pieces(pieces, &rows_of(*layer), width, 1, ids, tensors)?;
        }
        let stages = model.config.stages();
        for (block, windows) in &mut self.attentions {
            let stage = &stages[block.stage];
            let (heads, tokens) = (stage.heads, stage.window_tokens());
            add_windows(windows, *block, [heads, tokens, stage.dim], ids, tensors)?;
        }
        Ok(())
    }
}

fn rows_of(layer: Linear) -> String {
    format!("rows.{layer}")
}

fn windows_of(block: BlockId) -> String {
    format!("windows.{block}")
}

fn store_pieces(pieces: &Pieces, prefix: &str, tensors: &mut PartTensors) {
    store_values(&pieces.rows, prefix, tensors);
    for (name, ends) in [("low", &pieces.low), ("high", &pieces.high)] {
        tensors.insert(format!("{prefix}.{name}"), PartTensor::f32([ends.len()], ends));
    }
}

/// Stores the values of each image: the images' positions, the numbers of their values, and the values.
fn store_values(values: &BTreeMap<usize, Vec<f32>>, prefix: &str, tensors: &mut PartTensors) {
    let (n, all) = (values.len(), values.values().flatten().copied().collect::<Vec<f32>>());
    tensors.insert(format!("{prefix}.ids"), PartTensor::u64([n], values.keys().map(|&id| id as u64)));
    let lengths = values.values().map(|values| values.len() as u64);
    tensors.insert(format!("{prefix}.lengths"), PartTensor::u64([n], lengths));
    tensors.insert(format!("{prefix}.values"), PartTensor::f32([all.len()], &all));
}

/// Adds rows of `width` values, a multiple of `unit` for each image, and the ranges of the channels.
fn add_pieces(
    pieces: &mut Pieces,
    prefix: &str,
    width: usize,
    unit: usize,
    ids: &BTreeSet<usize>,
    tensors: &StoredTensors<'_>,
) -> Result<(), ModelError> {
    let ends = |name: &str| {
        let name = format!("{prefix}.{name}");
        let (shape, values) = tensors.f32(&name, 1)?;
        // A part without images has seen no channel.
        let expected = if ids.is_empty() { 0 } else { width };
        if shape[0] != expected || !values.iter().all(|value| value.is_finite()) {
            return Err(tensors.problem(&name, &format!("is not {expected} finite values")));
        }
        Ok(values)
    };
    let (low, high) = (ends("low")?, ends("high")?);
    add_values(&mut pieces.rows, prefix, width * unit, ids, tensors)?;
    if pieces.low.is_empty() {
        (pieces.low, pieces.high) = (low, high);
    } else if !low.is_empty() {
        pieces.low = pairwise(&pieces.low, &low, f32::min);
        pieces.high = pairwise(&pieces.high, &high, f32::max);
    }
    Ok(())
}

/// Adds the values of each image; their number must be a multiple of `unit`.
fn add_values(
    all: &mut BTreeMap<usize, Vec<f32>>,
    prefix: &str,
    unit: usize,
    ids: &BTreeSet<usize>,
    tensors: &StoredTensors<'_>,
) -> Result<(), ModelError> {
    let names = ["ids", "lengths", "values"].map(|name| format!("{prefix}.{name}"));
    let (images, lengths) = (tensors.ids(&names[0])?, tensors.u64(&names[1])?);
    let (_, values) = tensors.f32(&names[2], 1)?;
    if let Some(id) = images.iter().find(|id| !ids.contains(id)) {
        return Err(tensors.problem(&names[0], &format!("has image {id}, which the part has not read")));
    }
    let sum = lengths.iter().try_fold(0u64, |sum, length| sum.checked_add(*length));
    let whole = lengths.iter().all(|length| *length > 0 && length % unit as u64 == 0);
    if images.len() != lengths.len() || sum != Some(values.len() as u64) || !whole {
        return Err(tensors.problem(&names[1], "does not divide the values into rows of images"));
    }
    if !values.iter().all(|value| value.is_finite()) {
        return Err(tensors.problem(&names[2], "has values that are not finite"));
    }
    let mut rest = values.as_slice();
    for (id, length) in images.into_iter().zip(lengths) {
        let (now, later) = rest.split_at(length as usize);
        all.insert(id, now.to_vec());
        rest = later;
    }
    Ok(())
}

/// Adds the windows of a block with `heads`, `tokens` of a window and `channels`.
fn add_windows(
    windows: &mut WindowPieces,
    block: BlockId,
    [heads, tokens, channels]: [usize; 3],
    ids: &BTreeSet<usize>,
    tensors: &StoredTensors<'_>,
) -> Result<(), ModelError> {
    let prefix = windows_of(block);
    for (pieces, part) in windows.parts.iter_mut().zip(PARTS_OF_QKV) {
        add_pieces(pieces, &format!("{prefix}.{part}"), channels, tokens, ids, tensors)?;
    }
    let addend = format!("{prefix}.addend");
    add_values(&mut windows.addend, &addend, heads * tokens * tokens, ids, tensors)?;
    for (id, addend_of_image) in windows.addend.iter().filter(|(id, _)| ids.contains(id)) {
        let count = addend_of_image.len() / (heads * tokens * tokens);
        let fits =
            |pieces: &Pieces| pieces.rows.get(id).is_some_and(|rows| rows.len() == count * tokens * channels);
        if !windows.parts.iter().all(fits) {
            return Err(
                tensors.problem(&addend, &format!("has other windows of image {id} than its queries"))
            );
        }
    }
    if windows.parts.iter().any(|pieces| pieces.rows.len() != windows.addend.len()) {
        return Err(tensors.problem(&addend, "has other images than its queries, keys and values"));
    }
    let name = format!("{prefix}.scales");
    let (_, scales) = tensors.f32(&name, 1)?;
    if ids.is_empty() {
        return Ok(());
    }
    if scales.len() != heads || (!windows.scales.is_empty() && windows.scales != scales) {
        return Err(tensors.problem(&name, "does not have the factors of the model's heads"));
    }
    (windows.heads, windows.tokens, windows.scales) = (heads, tokens, scales);
    Ok(())
}
