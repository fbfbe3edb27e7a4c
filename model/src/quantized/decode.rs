//! Reading a quantized checkpoint. Every inconsistent state is refused, naming the tensor or site.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use swinq_numerics::Gelu;

use super::file::{
    Document, FORMAT_VERSION, FileInfo, METADATA_KEY, NUMBERS_VERSION, SiteEntry, factor_name, scale_name,
    zero_point_name,
};
use super::{
    ChannelCodes, Int8Weight, LARGEST_SCALE, Param, QuantizedModel, SiteState, channel_codes_allowed_at,
    hash, scale_of, task,
};
use crate::arch::{SwinConfig, SwinVersion, WindowPolicy};
use crate::checkpoint::{Dialect, check_header};
use crate::error::{self, ModelError};
use crate::json_keys;
use crate::params::{name_list, parameters};
use crate::recipe::SiteSpec;
use crate::site::{Linear, Site, all_linears};
use crate::tensor::HostTensor;

/// Reads the model in `bytes`; errors name the file `path`.
pub(super) fn decode(path: &Path, bytes: &[u8]) -> Result<(QuantizedModel, FileInfo), ModelError> {
    let unreadable = |e: String| ModelError::file(path, error::damaged("safetensors file", e));
    check_header(bytes).map_err(unreadable)?;
    let file = SafeTensors::deserialize(bytes).map_err(|e| unreadable(e.to_string()))?;
    let mut document = read_document(path, bytes, &file)?;
    state_library(&mut document);
    let Document { format_version, numbers, ref hash, .. } = document;
    let info = FileInfo { format_version, numbers, hash: hash.clone() };
    if document.architecture.version == SwinVersion::V2 && document.numbers < 3 {
        let problem = "is a Swin V2, which needs `numbers: 3` in its metadata; calibrate again";
        return Err(ModelError::file(path, problem));
    }
    document.architecture.validate()?;
    check_version_3(path, &document)?;
    check_transform(&document)?;
    let specs: BTreeMap<Site, SiteSpec> =
        document.recipe.resolve(&document.architecture)?.into_iter().collect();
    check_site_table(path, &specs, &document.sites)?;
    let channels = channel_sites(path, document.numbers, &specs, &file)?;
    check_names(path, &document.architecture, &specs, &channels, &file)?;
    let params = read_params(&document.architecture, &specs, &file)?;
    let sites = read_sites(&document.architecture, specs, &channels, &document.sites, &file)?;
    let hidden = |(site, state): (&Site, &SiteState)| {
        matches!(site, Site::Input(Linear::Fc2(_))) && state.spec.enabled
    };
    let gelu = if numbers < 4 && sites.iter().any(hidden) { Gelu::Erf } else { Gelu::Quadratic };
    let model = QuantizedModel {
        config: document.architecture,
        transform: document.transform,
        labels: document.labels,
        recipe: document.recipe,
        gelu,
        sites,
        params,
        provenance: document.provenance,
    };
    model.validate()?;
    Ok((model, info))
}

/// The document, after the hash of the file is verified.
fn read_document(path: &Path, bytes: &[u8], file: &SafeTensors) -> Result<Document, ModelError> {
    let damaged = |e: String| {
        ModelError::file(path, format!("its `{METADATA_KEY}` metadata is damaged: {e}; calibrate again"))
    };
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| damaged(e.to_string()))?;
    let text = metadata.metadata().as_ref().and_then(|map| map.get(METADATA_KEY)).ok_or_else(|| {
        let problem =
            "this is a float checkpoint; run `swinq calibrate` first, or pass --cfg to a command that also runs float models";
        ModelError::file(path, problem)
    })?;
    json_keys::check(text.as_bytes(), json_keys::MAX_KEYS).map_err(damaged)?;
    let mut value: serde_json::Value = serde_json::from_str(text).map_err(|e| damaged(e.to_string()))?;
    let version = value.get("format_version").and_then(serde_json::Value::as_u64);
    match version.ok_or_else(|| damaged("it has no format_version".to_owned()))? {
        1 if value.get("hash").is_some() => return Err(damaged("format version 1 has no hash".to_owned())),
        1 => {}
        2..=FORMAT_VERSION => {
            let hash = value.get("hash").and_then(serde_json::Value::as_str);
            let hash = hash.ok_or_else(|| damaged("it has no hash".to_owned()))?;
            hash::verify(hash, text, file, "copy it again from its source, or calibrate again")
                .map_err(|problem| ModelError::file(path, problem))?;
            if value.get("numbers").is_none() {
                return Err(damaged("it has no numbers, the version of the number contract".to_owned()));
            }
        }
        other => {
            let problem = format!(
                "has format version {other}, but this swinq reads versions 1 to {FORMAT_VERSION}; use the swinq that \
                 wrote it, or calibrate again"
            );
            return Err(ModelError::file(path, problem));
        }
    }
    check_numbers(path, &value)?;
    if let Some(architecture) = value.get_mut("architecture") {
        let newer = ["task", "outputs"].into_iter().find(|key| architecture.get(key).is_some());
        match newer.filter(|_| version < Some(3)) {
            None => task::take(architecture).map_err(|problem| ModelError::file(path, problem))?,
            Some(key) => return Err(damaged(format!("unknown field `{key}`"))),
        }
    }
    serde_json::from_value(value).map_err(|e| damaged(e.to_string()))
}

/// Refuses a version of the number contract that this program does not know.
fn check_numbers(path: &Path, document: &serde_json::Value) -> Result<(), ModelError> {
    let Some(numbers) = document.get("numbers") else { return Ok(()) };
    if numbers.as_u64().is_some_and(|version| (1..=NUMBERS_VERSION).contains(&version)) {
        return Ok(());
    }
    let problem = format!(
        "needs version {numbers} of the number contract, but this swinq computes versions 1 to {NUMBERS_VERSION}; use \
         the swinq that wrote it, or calibrate again"
    );
    Err(ModelError::file(path, problem))
}

/// The sites whose factors or zero points of channels are in the file.
fn channel_sites(
    path: &Path,
    numbers: u64,
    specs: &BTreeMap<Site, SiteSpec>,
    file: &SafeTensors,
) -> Result<BTreeSet<Site>, ModelError> {
    let stored: BTreeSet<&str> = file.names().into_iter().collect();
    let has = |site: &Site| {
        [factor_name(*site), zero_point_name(*site)].iter().any(|n| stored.contains(n.as_str()))
    };
    let allowed =
        specs.iter().filter(|(site, spec)| channel_codes_allowed_at(**site) && spec.needs_scale(**site));
    let sites: BTreeSet<Site> = allowed.map(|(site, _)| *site).filter(has).collect();
    match sites.first() {
        Some(site) if numbers < 2 => {
            let problem = format!(
                "has scales of the channels of {site}, which need `numbers: 2` in its metadata; calibrate again"
            );
            Err(ModelError::file(path, problem))
        }
        _ => Ok(sites),
    }
}

/// Sets the window policy of the library whose checkpoint the model is made from, where the file has the
/// common one.
fn state_library(Document { architecture, provenance, .. }: &mut Document) {
    if architecture.window_policy == WindowPolicy::ShrinkAndPad
        && let Ok(dialect) = provenance.source.dialect.parse::<Dialect>()
    {
        let stated =
            SwinConfig { window_policy: dialect.window_policy(architecture.version), ..architecture.clone() };
        if stated.stored_policy() == WindowPolicy::ShrinkAndPad {
            *architecture = stated;
        }
    }
}

/// Refuses a file whose version is not the one that its architecture needs.
fn check_version_3(path: &Path, document: &Document) -> Result<(), ModelError> {
    let needed = document.architecture.needs_version_3() || document.transform.needs_version_3();
    if needed == (document.format_version >= 3) {
        return Ok(());
    }
    let version = document.format_version;
    let problem = if needed { "needs version 3 of the format" } else { "needs no version 3 of the format" };
    Err(ModelError::file(
        path,
        format!("has format version {version}, but its architecture {problem}; calibrate again"),
    ))
}

fn check_transform(document: &Document) -> Result<(), ModelError> {
    let (transform, size) = (&document.transform, document.architecture.image_size);
    if transform.size != size {
        let problem = format!(
            "{} pixels, but the architecture takes {}; calibrate again",
            transform.size.short(),
            size.short()
        );
        return Err(ModelError::config("transform.size", problem));
    }
    let channels = document.architecture.in_chans;
    if transform.channels() != channels {
        let problem =
            format!("{} means for images of {channels} channels; calibrate again", transform.channels());
        return Err(ModelError::config("transform.mean", problem));
    }
    transform.check().map_err(|(field, problem)| {
        ModelError::config(format!("transform.{field}"), format!("{problem}; calibrate again"))
    })?;
    Ok(())
}

/// Checks that the stored site table has exactly the architecture's sites, with the recipe's settings.
fn check_site_table(
    path: &Path,
    specs: &BTreeMap<Site, SiteSpec>,
    entries: &BTreeMap<String, SiteEntry>,
) -> Result<(), ModelError> {
    let known: BTreeSet<String> = specs.keys().map(Site::to_string).collect();
    let missing: Vec<&str> = known.iter().map(String::as_str).filter(|n| !entries.contains_key(*n)).collect();
    let extra: Vec<&str> = entries.keys().map(String::as_str).filter(|n| !known.contains(*n)).collect();
    if !(missing.is_empty() && extra.is_empty()) {
        let problem = format!(
            "its site table does not fit its architecture: missing {}; unexpected {}; calibrate again",
            name_list(&missing),
            name_list(&extra)
        );
        return Err(ModelError::file(path, problem));
    }
    for (&site, spec) in specs {
        let entry = &entries[&site.to_string()];
        let stored = (entry.enabled, entry.bits, entry.granularity, entry.calibrator, entry.kind, entry.ptq);
        if stored != (spec.enabled, spec.bits, spec.granularity, spec.calibrator, spec.kind, spec.ptq) {
            let problem = "the stored site table contradicts the stored recipe; calibrate again";
            return Err(ModelError::site(site, problem));
        }
    }
    Ok(())
}

/// Checks that the file has exactly the tensors that the architecture and the recipe need.
fn check_names(
    path: &Path,
    config: &SwinConfig,
    specs: &BTreeMap<Site, SiteSpec>,
    channels: &BTreeSet<Site>,
    file: &SafeTensors,
) -> Result<(), ModelError> {
    let stored: BTreeSet<&str> = file.names().into_iter().collect();
    let has_scale =
        |(site, spec): &(&Site, &SiteSpec)| spec.enabled && (site.is_weight() || spec.needs_scale(**site));
    let scaled = specs.iter().filter(has_scale);
    let scales: BTreeSet<String> = scaled.map(|(site, _)| scale_name(site)).collect();
    if let Some(name) = scales.iter().find(|name| !stored.contains(name.as_str())) {
        let site = name.strip_suffix(".scale").unwrap_or(name);
        let problem = format!(
            "is enabled, but the file has no tensor `{name}`: the file is only half calibrated; run `swinq \
             calibrate` again, or disable the site with a rule"
        );
        return Err(ModelError::site(site, problem));
    }
    let mut expected: BTreeSet<String> = parameters(config).into_iter().map(|(name, _)| name).collect();
    expected.extend(scales);
    expected.extend(channels.iter().flat_map(|&site| [factor_name(site), zero_point_name(site)]));
    let missing: Vec<&str> = expected.iter().map(String::as_str).filter(|n| !stored.contains(n)).collect();
    let extra: Vec<&str> = stored.iter().copied().filter(|n| !expected.contains(*n)).collect();
    if missing.is_empty() && extra.is_empty() {
        return Ok(());
    }
    let problem = format!(
        "its tensors do not fit its architecture and recipe: missing {}; unexpected {}; calibrate again",
        name_list(&missing),
        name_list(&extra)
    );
    Err(ModelError::file(path, problem))
}

fn read_params(
    config: &SwinConfig,
    specs: &BTreeMap<Site, SiteSpec>,
    file: &SafeTensors,
) -> Result<BTreeMap<String, Param>, ModelError> {
    let linears = all_linears(config).into_iter();
    let weights: BTreeMap<String, Site> = linears.map(|l| (l.weight_name(), Site::Weight(l))).collect();
    let mut params = BTreeMap::new();
    for (name, shape) in parameters(config) {
        let param = match weights.get(&name).map(|site| &specs[site]).filter(|spec| spec.enabled) {
            Some(spec) => Param::Int8(read_int8(&name, shape, spec, file)?),
            None => Param::Float(read_float(&name, &shape, file)?),
        };
        params.insert(name, param);
    }
    Ok(params)
}

fn read_sites(
    config: &SwinConfig,
    specs: BTreeMap<Site, SiteSpec>,
    channels: &BTreeSet<Site>,
    entries: &BTreeMap<String, SiteEntry>,
    file: &SafeTensors,
) -> Result<BTreeMap<Site, SiteState>, ModelError> {
    let mut sites = BTreeMap::new();
    for (site, spec) in specs {
        let amax = entries[&site.to_string()].amax;
        if spec.needs_scale(site) {
            check_amax(site, amax, read_scales(&scale_name(site), &[], file)?[0])?;
        } else if amax.is_some() {
            let problem = "has an amax in the stored site table, but is off or needs none; calibrate again";
            return Err(ModelError::site(site, problem));
        }
        let channels = match site {
            Site::Input(Linear::Fc2(block)) if channels.contains(&site) => {
                let hidden = config.stages()[block.stage].hidden;
                let factors = read_scales(&factor_name(site), &[hidden], file)?;
                let zero_points = read_codes(&zero_point_name(site), &[hidden], file)?;
                Some(ChannelCodes { factors, zero_points })
            }
            _ => None,
        };
        sites.insert(site, SiteState { spec, amax, channels });
    }
    Ok(sites)
}

fn check_amax(site: Site, amax: Option<f32>, scale: f32) -> Result<(), ModelError> {
    let problem = match amax {
        Some(amax) if scale_of(amax) == scale => return Ok(()),
        Some(amax) => format!(
            "the stored amax {amax} contradicts the scale tensor, which holds {scale} (amax / 127 would be {}); \
             calibrate again",
            scale_of(amax)
        ),
        None => {
            "has a scale tensor, but the stored site table has no amax for it; calibrate again".to_owned()
        }
    };
    Err(ModelError::site(site, problem))
}

fn read_int8(
    name: &str,
    shape: Vec<usize>,
    spec: &SiteSpec,
    file: &SafeTensors,
) -> Result<Int8Weight, ModelError> {
    let codes = read_codes(name, &shape, file)?;
    let limit = spec.largest_code();
    let over = |codes: &[i8]| codes.iter().fold(false, |over, code| over | (code.unsigned_abs() > limit));
    if over(&codes)
        && let Some(code) = codes.iter().find(|code| code.unsigned_abs() > limit)
    {
        let problem = format!("holds the code {code}; {}-bit weights use [-{limit}, {limit}]", spec.bits);
        return Err(ModelError::tensor(name, problem));
    }
    let channels = match spec.granularity {
        crate::recipe::Granularity::Channel => shape[0],
        crate::recipe::Granularity::Tensor => 1,
    };
    let scales = read_scales(&scale_name(name), &[channels], file)?;
    Ok(Int8Weight { shape, codes, scales })
}

/// Reads integers: I8.
fn read_codes(name: &str, shape: &[usize], file: &SafeTensors) -> Result<Vec<i8>, ModelError> {
    let view = view(name, shape, file)?;
    if view.dtype() != Dtype::I8 {
        let problem = format!(
            "is stored as {:?}, but its site is quantized, so it must be I8; calibrate again",
            view.dtype()
        );
        return Err(ModelError::tensor(name, problem));
    }
    Ok(bytemuck::cast_slice(view.data()).to_vec())
}

/// Reads scales: F32, positive, at most [`LARGEST_SCALE`], with finite reciprocals.
fn read_scales(name: &str, shape: &[usize], file: &SafeTensors) -> Result<Vec<f32>, ModelError> {
    let view = view(name, shape, file)?;
    if view.dtype() != Dtype::F32 {
        let problem = format!("is stored as {:?}; scales are F32; calibrate again", view.dtype());
        return Err(ModelError::tensor(name, problem));
    }
    let scales = f32_values(view.data());
    match scales.iter().position(|&s| !(s > 0.0 && s <= LARGEST_SCALE && (1.0 / s).is_finite())) {
        None => Ok(scales),
        Some(index) => {
            let problem = format!(
                "holds {} at index {index}, which cannot be a scale (it must be positive and at most \
                 {LARGEST_SCALE:e}, with a finite reciprocal); calibrate again",
                scales[index]
            );
            Err(ModelError::tensor(name, problem))
        }
    }
}

fn read_float(name: &str, shape: &[usize], file: &SafeTensors) -> Result<HostTensor, ModelError> {
    let view = view(name, shape, file)?;
    let halves = || view.data().chunks_exact(2).map(|b| [b[0], b[1]]);
    let data = match view.dtype() {
        Dtype::F32 => f32_values(view.data()),
        Dtype::F16 => halves().map(|b| half::f16::from_le_bytes(b).to_f32()).collect(),
        Dtype::BF16 => halves().map(|b| half::bf16::from_le_bytes(b).to_f32()).collect(),
        other => {
            let problem = format!(
                "is stored as {other:?}, but the recipe leaves it in float, so it must be F32, F16 or BF16; calibrate \
                 again"
            );
            return Err(ModelError::tensor(name, problem));
        }
    };
    Ok(HostTensor::new(shape, data))
}

fn f32_values(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn view<'a>(name: &str, shape: &[usize], file: &SafeTensors<'a>) -> Result<TensorView<'a>, ModelError> {
    let view = file.tensor(name).map_err(|e| ModelError::tensor(name, format!("{e}; calibrate again")))?;
    if view.shape() != shape {
        let problem = format!("has shape {:?}, but {shape:?} is expected; calibrate again", view.shape());
        return Err(ModelError::tensor(name, problem));
    }
    Ok(view)
}
