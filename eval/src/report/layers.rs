//! The modules and layers of the model that the report is about: precision, error and time.

use std::collections::BTreeMap;

use super::places::{in_order, split};
use super::svg::bar;
use crate::results::{ModelResult, Profile, SiteResult};

/// Kinds of launches, in the order of their colours `k0` to `k6`.
const KINDS: [&str; 7] = ["norm", "qkv", "attention", "proj", "fc1", "fc2", "other"];

/// The section about layers.
pub struct Layers {
    /// Images per inference of the times.
    pub batch: Option<usize>,
    /// Milliseconds of all launches.
    pub total_ms: f64,
    /// CSS class and name of each kind of launch.
    pub legend: Vec<(String, &'static str)>,
    pub modules: Vec<ModuleRow>,
    pub layers: Vec<LayerRow>,
}

/// A block, a patch merging, or the part before or after the stages.
pub struct ModuleRow {
    pub name: String,
    /// A bar of the time of each kind of launch.
    pub bar: String,
    pub ms: String,
    pub share: String,
    /// The baseline's time divided by the model's.
    pub speedup: String,
    /// Linear layers in INT8, of all.
    pub int8: String,
    /// The lowest SQNR of its sites, and where.
    pub noisiest: String,
}

/// One launch, or one linear layer if there are no times.
pub struct LayerRow {
    pub name: String,
    pub precision: String,
    pub ms: String,
    pub share: String,
    pub speedup: String,
    /// SQNR at its input and of its weight, in dB.
    pub input_db: String,
    pub weight_db: String,
}

impl Layers {
    /// The layers of `model`, compared with those of `base` where both have times of one batch size; `None`
    /// if the model has neither sites nor times.
    pub fn new(model: &ModelResult, base: Option<&ModelResult>) -> Option<Layers> {
        let sites: BTreeMap<&str, &SiteResult> =
            model.sites.iter().map(|site| (site.site.as_str(), site)).collect();
        let profile = model.profile.as_ref();
        let base = base
            .and_then(|base| base.profile.as_ref())
            .filter(|base| Some(base.batch) == profile.map(|p| p.batch));
        let names = match profile {
            Some(profile) => in_order(profile.launches.iter().map(|launch| launch.name.as_str())),
            None => in_order(model.sites.iter().filter_map(|site| site.site.strip_suffix(".weight"))),
        };
        if names.is_empty() {
            return None;
        }
        let times = Times::new(profile);
        let view = View { sites, times, base: base.map(|base| Times::new(Some(base))) };
        let modules = in_order(names.iter().map(|name| split(name).0));
        let longest = modules.iter().map(|module| view.times.module(module)).fold(0.0, f64::max);
        Some(Layers {
            batch: profile.map(|profile| profile.batch),
            total_ms: view.times.total,
            legend: KINDS.iter().enumerate().map(|(i, &kind)| (format!("k{i}"), kind)).collect(),
            modules: modules.iter().map(|module| view.module(module, longest)).collect(),
            layers: names.iter().map(|name| view.layer(name)).collect(),
        })
    }
}

/// Milliseconds by launch.
struct Times<'a> {
    by_name: BTreeMap<&'a str, f64>,
    total: f64,
}

impl<'a> Times<'a> {
    fn new(profile: Option<&'a Profile>) -> Times<'a> {
        let mut by_name: BTreeMap<&str, f64> = BTreeMap::new();
        for launch in profile.iter().flat_map(|profile| &profile.launches) {
            *by_name.entry(&launch.name).or_default() += launch.ms;
        }
        Times { by_name, total: profile.map_or(0.0, Profile::total_ms) }
    }

    fn module(&self, module: &str) -> f64 {
        self.by_name.iter().filter(|(name, _)| split(name).0 == module).map(|(_, ms)| ms).sum()
    }

    fn kind(&self, module: &str, kind: usize) -> f64 {
        let of_kind = |name: &str| split(name).0 == module && kind_of(name) == kind;
        self.by_name.iter().filter(|(name, _)| of_kind(name)).map(|(_, ms)| ms).sum()
    }
}

/// Index of a launch's kind in [`KINDS`].
fn kind_of(launch: &str) -> usize {
    let (module, place) = split(launch);
    let block = module.starts_with(|c: char| c.is_ascii_digit());
    let kind = match place.rsplit('.').next().unwrap_or("") {
        "norm1" | "norm2" if block => "norm",
        "attn" if block => "attention",
        last if block => last,
        _ => "other",
    };
    KINDS.iter().position(|name| *name == kind).unwrap_or(KINDS.len() - 1)
}

struct View<'a> {
    sites: BTreeMap<&'a str, &'a SiteResult>,
    times: Times<'a>,
    base: Option<Times<'a>>,
}

impl View<'_> {
    fn module(&self, module: &str, longest: f64) -> ModuleRow {
        let ms = self.times.module(module);
        let parts: Vec<(f64, String)> = (0..KINDS.len())
            .map(|kind| (self.times.kind(module, kind) / longest.max(f64::MIN_POSITIVE), format!("k{kind}")))
            .collect();
        let parts: Vec<(f64, &str)> = parts.iter().map(|(part, class)| (*part, class.as_str())).collect();
        let inside: Vec<&&SiteResult> =
            self.sites.values().filter(|site| split(&site.site).0 == module).collect();
        let weights: Vec<&&&SiteResult> =
            inside.iter().filter(|site| site.site.ends_with(".weight")).collect();
        let int8 = weights.iter().filter(|site| self.is_int8(site.site.trim_end_matches(".weight"))).count();
        let noisiest = inside
            .iter()
            .filter_map(|site| Some((site.sqnr_db.filter(|db| db.is_finite() && site.enabled)?, &site.site)))
            .min_by(|a, b| a.0.total_cmp(&b.0));
        ModuleRow {
            name: module.to_owned(),
            bar: bar(&parts, None),
            ms: milliseconds(ms),
            share: self.share(ms),
            speedup: self.speedup(self.base.as_ref().map(|base| base.module(module)), ms),
            int8: if weights.is_empty() { String::new() } else { format!("{int8} of {}", weights.len()) },
            noisiest: noisiest.map_or(String::new(), |(db, site)| format!("{db:.1} at {}", split(site).1)),
        }
    }

    fn layer(&self, name: &str) -> LayerRow {
        let ms = self.times.by_name.get(name).copied().unwrap_or(0.0);
        let db = |site: String| {
            let site = self.sites.get(site.as_str()).filter(|site| site.enabled);
            site.and_then(|site| site.sqnr_db).map_or(String::new(), |db| format!("{db:.1}"))
        };
        LayerRow {
            name: name.to_owned(),
            precision: self.precision(name),
            ms: milliseconds(ms),
            share: self.share(ms),
            speedup: self.speedup(self.base.as_ref().and_then(|base| base.by_name.get(name).copied()), ms),
            input_db: db(format!("{name}.input")),
            weight_db: db(format!("{name}.weight")),
        }
    }

    fn is_on(&self, site: &str) -> bool {
        self.sites.get(site).is_some_and(|site| site.enabled)
    }

    /// Whether the linear layer runs in INT8: its input and its weight are quantized.
    fn is_int8(&self, linear: &str) -> bool {
        self.is_on(&format!("{linear}.input")) && self.is_on(&format!("{linear}.weight"))
    }

    fn precision(&self, launch: &str) -> String {
        let weight = self.sites.get(format!("{launch}.weight").as_str());
        let products = [["q", "k"], ["probs", "v"]];
        let products = products.map(|pair| pair.iter().all(|site| self.is_on(&format!("{launch}.{site}"))));
        match (weight, launch.ends_with(".attn")) {
            (Some(weight), _) if self.is_int8(launch) => match weight.bits {
                Some(bits) if bits < 8 => format!("INT8 ({bits}-bit weights)"),
                _ => "INT8".to_owned(),
            },
            (Some(_), _) => "float".to_owned(),
            (None, true) => match products {
                [true, true] => "INT8".to_owned(),
                [true, false] => "INT8 scores, float values".to_owned(),
                [false, true] => "float scores, INT8 values".to_owned(),
                [false, false] => "float".to_owned(),
            },
            (None, false) => String::new(),
        }
    }

    fn share(&self, ms: f64) -> String {
        if self.times.total > 0.0 { format!("{:.1} %", 100.0 * ms / self.times.total) } else { String::new() }
    }

    fn speedup(&self, base: Option<f64>, own: f64) -> String {
        base.filter(|base| *base > 0.0 && own > 0.0)
            .map_or(String::new(), |base| format!("{:.2}x", base / own))
    }
}

fn milliseconds(ms: f64) -> String {
    if ms > 0.0 { format!("{ms:.3}") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_have_kinds() {
        let kinds = |name: &str| KINDS[kind_of(name)];
        assert_eq!(kinds("layers.0.blocks.1.norm2"), "norm");
        assert_eq!(kinds("layers.0.blocks.1.attn"), "attention");
        assert_eq!(kinds("layers.0.blocks.1.attn.qkv"), "qkv");
        assert_eq!(kinds("layers.0.blocks.1.mlp.fc2"), "fc2");
        assert_eq!(kinds("layers.0.downsample.norm"), "other");
        assert_eq!(kinds("norm"), "other");
    }
}
