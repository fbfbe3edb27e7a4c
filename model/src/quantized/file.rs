//! The quantized-checkpoint file, versions 2 and 3: one safetensors file, specified in
//! `docs/quantized-checkpoint.md`.
//!
//! The tensors are authoritative. The JSON under the metadata key `swinq` describes them; JSON that
//! contradicts them is refused.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, View};
use serde::{Deserialize, Serialize};

use super::{ChannelCodes, Param, Provenance, QuantizedModel, SiteState, decode, hash};
use crate::arch::SwinConfig;
use crate::atomic::write_atomic;
use crate::batch::Transform;
use crate::checkpoint::is_torch;
use crate::error::ModelError;
use crate::recipe::{Calibrator, Granularity, Kind, Ptq, Recipe};
use crate::site::Site;

/// The newest version of the format. It is written only for models that version 2 cannot state: backbones,
/// and those with images that are not square or not RGB, with windows that are not square, or with a window
/// policy or a resizing that version 2 does not name. A new key of the document needs a new version, because
/// older programs refuse keys that they do not know as damage. This crate also reads version 1, which has no
/// hash.
pub const FORMAT_VERSION: u64 = 3;
/// The newest version of the number contract (`docs/inference.md`) that this crate knows. Version 2 has
/// channels with their own scales and zero points, version 3 has Swin V2. Version 4 has quadratic GELU for
/// values that are quantized next; files of older versions keep the GELU by the error function. Version 5 has
/// LayerNorm in f32, version 6 has weights of attention by a power of two; files of older versions have both,
/// too.
pub const NUMBERS_VERSION: u64 = 6;
/// Metadata key of the JSON document.
pub const METADATA_KEY: &str = "swinq";

/// How the file of a model is written; a [`QuantizedModel`] does not state it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Version of the format.
    pub format_version: u64,
    /// Version of the number contract by which the model runs.
    pub numbers: u64,
    /// The hash that was verified, as the file states it; `None` for version 1 of the format.
    pub hash: Option<String>,
}

impl FileInfo {
    /// A warning if the file `path` has no hash.
    pub fn warning(&self, path: &Path) -> Option<String> {
        self.hash.is_none().then(|| {
            format!(
                "{} has format version {}, which has no hash: damage to it may not be found; calibrate again to get one",
                path.display(),
                self.format_version
            )
        })
    }
}

/// The JSON document of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    pub format_version: u64,
    /// The hash of the tensors and of this document ([`super::hash`]); absent in version 1 of the format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// The version of the number contract that the file states ([`QuantizedModel::numbers`]). In version 1 of
    /// the format it may be absent, which is version 1 of the contract.
    #[serde(default = "first")]
    pub numbers: u64,
    pub architecture: SwinConfig,
    pub transform: Transform,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Vec<String>>,
    pub recipe: Recipe,
    pub sites: BTreeMap<String, SiteEntry>,
    pub provenance: Provenance,
}

fn first() -> u64 {
    1
}

/// One row of the document's site table. `amax` is the range in use, calibrated or fixed.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SiteEntry {
    pub enabled: bool,
    pub bits: u8,
    pub granularity: Granularity,
    pub calibrator: Calibrator,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amax: Option<f32>,
    pub kind: Kind,
    #[serde(default, skip_serializing_if = "Ptq::is_basic")]
    pub ptq: Ptq,
}

impl SiteEntry {
    fn new(state: &SiteState) -> SiteEntry {
        let spec = &state.spec;
        SiteEntry {
            enabled: spec.enabled,
            bits: spec.bits,
            granularity: spec.granularity,
            calibrator: spec.calibrator,
            amax: state.amax,
            kind: spec.kind,
            ptq: spec.ptq,
        }
    }
}

/// Name of the tensor that holds the scale of an activation site, or the scales of a weight.
pub(super) fn scale_name(name: impl std::fmt::Display) -> String {
    format!("{name}.scale")
}

/// Name of the tensor of the factors of an activation site's channels.
pub(super) fn factor_name(site: Site) -> String {
    format!("{site}.channel_factor")
}

/// Name of the tensor of the zero points of an activation site's channels.
pub(super) fn zero_point_name(site: Site) -> String {
    format!("{site}.zero_point")
}

impl QuantizedModel {
    /// Writes the model to `path` atomically. The bytes depend on the model only.
    ///
    /// # Errors
    /// The errors of [`QuantizedModel::validate`], a range on a site that uses none, and [`ModelError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), ModelError> {
        self.validate()?;
        let bytes = self.to_bytes()?;
        write_atomic(path, |out| out.write_all(&bytes))
    }

    /// Reads a quantized checkpoint, after its hash is verified. Float tensors may be F32, F16 or BF16.
    ///
    /// # Errors
    /// [`ModelError::Io`] if the file cannot be read. Other errors name the tensor or site: another kind of
    /// file, another format version, a content that does not have the file's hash, tensors that are missing,
    /// unexpected, or of a wrong shape or type, unusable scales, and metadata that contradicts the tensors or
    /// itself.
    pub fn load(path: &Path) -> Result<QuantizedModel, ModelError> {
        Ok(QuantizedModel::load_with_info(path)?.0)
    }

    /// [`QuantizedModel::load`], with the version and the hash of the file.
    ///
    /// # Errors
    /// Those of [`QuantizedModel::load`].
    pub fn load_with_info(path: &Path) -> Result<(QuantizedModel, FileInfo), ModelError> {
        if path.is_dir() {
            let problem = "is a folder; give the file that `swinq calibrate` wrote";
            return Err(ModelError::file(path, problem));
        }
        let bytes = std::fs::read(path).map_err(|e| ModelError::io(path, e))?;
        if is_torch(&bytes) {
            let problem = "is a file of torch.save, and a calibrated checkpoint is a safetensors file; give the file that \
                           `swinq calibrate` wrote from it";
            return Err(ModelError::file(path, problem));
        }
        QuantizedModel::from_bytes(path, &bytes)
    }

    /// [`QuantizedModel::load_with_info`] on the bytes of the file; errors name `path`.
    pub(crate) fn from_bytes(path: &Path, bytes: &[u8]) -> Result<(QuantizedModel, FileInfo), ModelError> {
        decode::decode(path, bytes)
    }

    /// A hash (XXH3-128) of everything that has an effect on the model's outputs or names its classes, as a
    /// text. Unlike the hash of the file it does not depend on the provenance, such as the paths of files.
    ///
    /// # Errors
    /// A range on a site that uses none.
    pub fn fingerprint(&self) -> Result<String, ModelError> {
        let tensors = self.stored()?;
        let document = self.document(&hash::placeholder(), &Provenance::default())?;
        let stored = tensors.iter().map(|(name, t)| (name.as_str(), t.dtype, &*t.shape, &*t.bytes));
        Ok(hash::of(&document, stored))
    }

    /// The version of the file format that a file of the model has.
    pub fn format_version(&self) -> u64 {
        if self.config.needs_version_3() || self.transform.needs_version_3() { FORMAT_VERSION } else { 2 }
    }

    fn to_bytes(&self) -> Result<Vec<u8>, ModelError> {
        let tensors = self.stored()?;
        let placeholder = hash::placeholder();
        let document = self.document(&placeholder, &self.provenance)?;
        let stored = tensors.iter().map(|(name, t)| (name.as_str(), t.dtype, &*t.shape, &*t.bytes));
        let document = document.replacen(&placeholder, &hash::of(&document, stored), 1);
        let metadata = [(METADATA_KEY.to_owned(), document)].into();
        safetensors::serialize(tensors, Some(metadata)).map_err(|e| {
            ModelError::tensor(METADATA_KEY, format!("the model cannot be serialized as safetensors: {e}"))
        })
    }

    /// The tensors of the file.
    fn stored(&self) -> Result<BTreeMap<String, Stored>, ModelError> {
        let mut tensors = BTreeMap::new();
        for (name, param) in &self.params {
            match param {
                Param::Float(t) => {
                    tensors.insert(name.clone(), Stored::f32(t.shape.clone(), &t.data));
                }
                Param::Int8(w) => {
                    tensors.insert(name.clone(), Stored::i8(w.shape.clone(), &w.codes));
                    tensors.insert(scale_name(name), Stored::f32(vec![w.scales.len()], &w.scales));
                }
            }
        }
        for (&site, state) in &self.sites {
            if let Some(scale) = stored_scale(site, state)? {
                tensors.insert(scale_name(site), Stored::f32(vec![], &[scale]));
            }
            if let Some(ChannelCodes { factors, zero_points }) = &state.channels {
                tensors.insert(factor_name(site), Stored::f32(vec![factors.len()], factors));
                tensors.insert(zero_point_name(site), Stored::i8(vec![zero_points.len()], zero_points));
            }
        }
        Ok(tensors)
    }

    /// The JSON document, which states this `hash` and `provenance`.
    fn document(&self, hash: &str, provenance: &Provenance) -> Result<String, ModelError> {
        let document = Document {
            format_version: self.format_version(),
            hash: Some(hash.to_owned()),
            numbers: self.numbers(),
            architecture: self.config.clone(),
            transform: self.transform.clone(),
            labels: self.labels.clone(),
            recipe: self.recipe.clone(),
            sites: self.sites.iter().map(|(site, state)| (site.to_string(), SiteEntry::new(state))).collect(),
            provenance: provenance.clone(),
        };
        serde_json::to_string(&document).map_err(|e| {
            ModelError::config(METADATA_KEY, format!("the description cannot be serialized as JSON: {e}"))
        })
    }
}

/// The scale to store for `site`: `Some` for an enabled `s8` activation, `None` for every other site.
fn stored_scale(site: Site, state: &SiteState) -> Result<Option<f32>, ModelError> {
    if !state.spec.needs_scale(site) && state.amax.is_some() {
        let problem =
            "has a range, but it is off or needs none; clear its amax, or enable the site with a rule";
        return Err(ModelError::site(site, problem));
    }
    Ok(state.scale())
}

/// A tensor as it is written to the file.
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Stored {
    fn f32(shape: Vec<usize>, values: &[f32]) -> Stored {
        Stored { dtype: Dtype::F32, shape, bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect() }
    }

    fn i8(shape: Vec<usize>, codes: &[i8]) -> Stored {
        Stored { dtype: Dtype::I8, shape, bytes: bytemuck::cast_slice(codes).to_vec() }
    }
}

impl View for Stored {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}
