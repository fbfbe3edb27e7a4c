//! Tables of a model's sites: which are INT8, their ranges, and the reasons why others are not.

use comfy_table::{ColumnConstraint, Width};
use swinq::model::quantized::{ChannelCodes, SiteState};
use swinq::model::{Granularity, Int8, Kind, Linear, Operand, Ptq, QuantizedModel, Site, all_linears};

use crate::tables;

/// One row per linear layer and one per attention. The sites that most recipes leave off (scores, additions)
/// appear only if they are on.
pub fn products(model: &QuantizedModel) -> String {
    let mut table = tables::markdown(["product", "type", "input", "weight bits", "output"]);
    for linear in all_linears(&model.config) {
        let site = |s| model.site(s);
        let kind = if model.is_int8(linear) { "INT8" } else { "float" };
        table.add_row([
            linear.to_string(),
            kind.to_owned(),
            activation(site(Site::Input(linear))),
            weight(site(Site::Weight(linear))),
            activation(site(Site::Output(linear))),
        ]);
        if let Linear::Qkv(block) = linear {
            let [q, k, v] = [Site::Q(block), Site::K(block), Site::V(block)].map(site);
            let probs = site(Site::Probs(block));
            let both = |a: &SiteState, b: &SiteState| {
                if a.spec.enabled && b.spec.enabled { "INT8" } else { "float" }
            };
            let types = match [both(q, k), both(v, probs)] {
                [first, second] if first == second => first.to_owned(),
                [first, second] => format!("{first}, {second}"),
            };
            table.add_row([
                format!("{block}.attn QK^T PV"),
                types,
                format!("q {}, k {}", activation(q), activation(k)),
                format!("v {}", activation(v)),
                format!("probs {}{}", probabilities(probs), scores(site(Site::Scores(block)))),
            ]);
        }
        if let (Some(block), Some(branch)) = (linear.block(), linear.branch()) {
            let [branch, shortcut] =
                [Operand::Branch, Operand::Shortcut].map(|operand| site(Site::Add(block, branch, operand)));
            if branch.spec.enabled || shortcut.spec.enabled {
                let text = format!("branch {}, shortcut {}", activation(branch), activation(shortcut));
                table.add_row([format!("  residual after {linear}"), String::new(), text]);
            }
        }
    }
    table.to_string()
}

/// One row per site.
pub fn sites(model: &QuantizedModel) -> String {
    let mut table = tables::markdown(["site", "codes", "range from", "amax", "scale"]);
    for column in table.column_iter_mut().skip(3) {
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(10)));
    }
    for (site, state) in &model.sites {
        let spec = &state.spec;
        let number = |value: Option<f32>| value.map_or(String::new(), |v| format!("{v:.4e}"));
        let scale = match &state.channels {
            Some(channels) => format!("{} x {}", number(state.scale()), ranges(channels)),
            None => number(state.scale()),
        };
        let from = match (spec.enabled, spec.needs_scale(*site), spec.amax) {
            (false, ..) => String::new(),
            (true, true, Some(_)) => "the recipe".to_owned(),
            (true, false, _) if !site.is_weight() => "none needed".to_owned(),
            _ if spec.ptq != Ptq::Basic => format!("{}, {}", spec.calibrator, spec.ptq),
            _ => spec.calibrator.to_string(),
        };
        let codes = match (spec.enabled, spec.bits) {
            (false, _) => "float".to_owned(),
            (true, 8) => kind(spec.kind).to_owned(),
            (true, bits) => format!("{} in {bits} bits", kind(spec.kind)),
        };
        table.add_row([site.to_string(), codes, from, number(state.amax), scale]);
    }
    table.to_string()
}

/// One line: the share of the model that runs in INT8.
pub fn summary(model: &QuantizedModel) -> String {
    let enabled = model.sites.values().filter(|s| s.spec.enabled).count();
    format!(
        "recipe {}: {enabled} of {} sites quantized, {:.1} % of the linear layers' MACs in INT8, {}",
        model.recipe.name,
        model.sites.len(),
        100.0 * model.int8_share(),
        swinq::eval::mebibytes(model.size_bytes())
    )
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::S8 => "s8",
        Kind::U8 => "u8",
    }
}

fn activation(state: &SiteState) -> String {
    match (state.spec.enabled, state.amax, &state.channels) {
        (false, ..) => "float".to_owned(),
        (true, Some(_), Some(channels)) => per_channel(state, channels),
        (true, Some(amax), None) => format!("±{amax:.3}"),
        (true, None, _) => "uncalibrated".to_owned(),
    }
}

/// The ranges of the channels: the lowest and the highest value that a code represents.
fn per_channel(state: &SiteState, channels: &ChannelCodes) -> String {
    let scale = state.scale().unwrap_or_default();
    let end = |code: f32| {
        let of_channel = move |(f, z): (&f32, &i8)| scale * f * (code - f32::from(*z));
        channels.factors.iter().zip(&channels.zero_points).map(of_channel)
    };
    let (low, high) = (end(Int8::MIN).fold(f32::MAX, f32::min), end(Int8::MAX).fold(f32::MIN, f32::max));
    format!("{low:.2}..{high:.2}/channel")
}

/// The factors and zero points of channels in words.
fn ranges(channels: &ChannelCodes) -> String {
    let factors = channels.factors.iter().copied();
    let (least, most) = (factors.clone().fold(f32::MAX, f32::min), factors.fold(f32::MIN, f32::max));
    let zero_points = || channels.zero_points.iter();
    let (low, high) = (zero_points().min().unwrap_or(&0), zero_points().max().unwrap_or(&0));
    format!("{least:.3}..{most:.3}, zero points {low}..{high}")
}

fn probabilities(state: &SiteState) -> String {
    match (state.spec.enabled, state.spec.kind) {
        (true, Kind::U8) => "u8".to_owned(),
        _ => activation(state),
    }
}

fn scores(state: &SiteState) -> String {
    if state.spec.enabled { format!(", scores {}", activation(state)) } else { String::new() }
}

fn weight(state: &SiteState) -> String {
    let spec = &state.spec;
    let granularity = if spec.granularity == Granularity::Channel { "channel" } else { "tensor" };
    let ptq = if spec.ptq == Ptq::Basic { String::new() } else { format!(", {}", spec.ptq) };
    if spec.enabled { format!("{}/{granularity}{ptq}", spec.bits) } else { "float".to_owned() }
}
