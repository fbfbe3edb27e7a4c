//! The report: one HTML file that contains its style sheet, charts and pictures, and the same figures as
//! Markdown.
//!
//! The page loads nothing, runs no script, follows the reader's light or dark preference, prints on A4, and
//! escapes every text from outside. Its parts are drawn from [`Results`] alone, except for the pictures in
//! [`ReportExtras`].
//!
//! | module | content |
//! | --- | --- |
//! | [`verdict`] | the sentence in the title, and which model the detailed sections are about |
//! | `names`, `matrix` | short names; the comparison matrix |
//! | `front`, `labels`, `latency` | accuracy against latency; latency by batch size |
//! | `places`, `map`, `layers`, `ranges` | sites and layers: precision, error, time, histograms of ranges |
//! | `program` | a whole program in float and in INT8 |
//! | `sensitivity`, `tuning` | which layers cost accuracy; the recipes that a search tried |
//! | `classes`, `outputs`, `training` | classes and images that changed; outputs and images of a backbone; curves of a training |
//! | `conditions`, `steps` | machine, data, recipes and hashes; the commands |
//! | `svg` | charts |
//! | `markdown` | the report as Markdown |

mod classes;
mod conditions;
mod front;
mod labels;
mod latency;
mod layers;
mod map;
mod markdown;
mod matrix;
mod names;
mod outputs;
mod places;
mod program;
mod ranges;
mod sensitivity;
mod steps;
mod svg;
mod training;
mod tuning;
pub mod verdict;

use std::collections::BTreeMap;

use askama::Template;
use base64::Engine;
use swinq_model::Granularity;

pub use markdown::markdown;
pub use names::file_names;
pub use svg::{Anchor, Svg, escape};

use crate::results::sensitivity::Sensitivity;
use crate::results::tune::Tuning;
use crate::results::{ModelResult, Results};
use crate::text::decibels;

/// A picture of an image, as JPEG.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thumbnail {
    /// The bytes of a JPEG file.
    pub jpeg: Vec<u8>,
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
}

impl Thumbnail {
    fn data_uri(&self) -> String {
        format!("data:image/jpeg;base64,{}", base64::engine::general_purpose::STANDARD.encode(&self.jpeg))
    }
}

/// The content of a report in addition to the results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportExtras {
    /// Title of the page; empty for the verdict.
    pub title: String,
    /// Pictures of the images on which a model disagrees with the baseline, or is farthest from it, by
    /// position in the data set's list.
    pub thumbnails: BTreeMap<usize, Thumbnail>,
    /// The effect of each layer and site, from `swinq sensitivity`.
    pub sensitivity: Option<Sensitivity>,
    /// The search of `swinq tune`.
    pub tuning: Option<Tuning>,
}

impl ReportExtras {
    /// The title of the report on `results`: the one given, the verdict on a search without models, or the
    /// verdict on the models.
    fn title(&self, results: &Results) -> String {
        match &self.tuning {
            _ if !self.title.is_empty() => self.title.clone(),
            Some(tuning) if results.models.is_empty() => tuning::title(tuning),
            _ => verdict::verdict(results).title,
        }
    }
}

/// The chart of accuracy against latency, for wide and for narrow pages.
struct Front {
    batch: usize,
    wide: String,
    narrow: String,
}

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    title: String,
    warnings: Vec<String>,
    /// Machine and time in one line.
    subtitle: String,
    sections: Vec<(&'static str, &'static str)>,
    names: Vec<String>,
    subject: Option<usize>,
    groups: Vec<matrix::Group>,
    front: Option<Front>,
    latency: Vec<latency::LatencyPanel>,
    program: Option<program::ProgramSection>,
    tuning: Option<tuning::TuningSection>,
    sensitivity: Option<sensitivity::SensitivitySection>,
    layers: Option<layers::Layers>,
    maps: Vec<map::Map>,
    legend: Vec<(String, String)>,
    sites: Vec<[String; 7]>,
    ranges: Option<ranges::Ranges>,
    classes: Option<classes::Classes>,
    images: Vec<classes::ImageCard>,
    outputs: Option<outputs::Outputs>,
    training: Option<training::TrainingSection>,
    environment: Vec<conditions::Fact>,
    data: Vec<conditions::Fact>,
    models: Vec<conditions::ModelFacts>,
    steps: Vec<steps::Step>,
    notes: &'a [String],
}

impl Page<'_> {
    /// Whether the detailed sections are about model `index`.
    fn is_subject(&self, index: impl std::borrow::Borrow<usize>) -> bool {
        self.subject.as_ref() == Some(index.borrow())
    }

    /// Name of the model that the detailed sections are about.
    fn subject_name(&self) -> &str {
        self.subject.map_or("", |subject| &self.names[subject])
    }
}

/// Renders the report of `results` as one self-contained HTML file.
///
/// It contains the verdict as its title, a matrix that compares all models, charts of accuracy against
/// latency and of latency, and, for the model that the verdict is about ([`verdict::subject`]), precision,
/// error and time of its layers, the ranges of its sites, and the classes and images that changed, or the
/// outputs of a backbone. The conditions and the commands that reproduce the results follow. Figures that
/// were not measured are left out.
pub fn html(results: &Results, extras: &ReportExtras) -> String {
    let names = names::short_names(&results.models);
    let subject = verdict::subject(results);
    let model = subject.map(|subject| &results.models[subject]);
    let base = results.models.first().filter(|_| subject != Some(0));
    let sections = results.models.iter().zip(&names);
    let mut page = Page {
        title: extras.title(results),
        warnings: verdict::verdict(results).warnings,
        subtitle: subtitle(results),
        sections: Vec::new(),
        subject,
        groups: matrix::groups(results),
        front: front_charts(results, &names),
        latency: latency::panels(results, &names),
        program: results.program.as_ref().map(program::ProgramSection::new),
        tuning: extras.tuning.as_ref().map(tuning::TuningSection::new),
        sensitivity: extras.sensitivity.as_ref().map(sensitivity::SensitivitySection::new),
        layers: model.and_then(|model| layers::Layers::new(model, base)),
        maps: sections.filter_map(|(model, name)| map::Map::new(name, model)).collect(),
        legend: map::legend(),
        sites: model.map_or(Vec::new(), listing),
        ranges: subject.and_then(|i| ranges::Ranges::new(&names[i], &results.models[i])),
        classes: model.and_then(|model| classes::Classes::new(results, model)),
        images: model.map_or(Vec::new(), |model| classes::images(results, model, extras)),
        outputs: model.and_then(|model| outputs::Outputs::new(model, extras)),
        training: results.training.as_ref().map(training::TrainingSection::new),
        environment: conditions::environment(results),
        data: conditions::data(results),
        models: conditions::models(results, &names),
        steps: steps::steps(results, &names),
        notes: &results.notes,
        names,
    };
    page.sections = navigation(&page);
    page.render().expect("rendering into a String cannot fail")
}

/// Processor or GPU, threads and time.
fn subtitle(results: &Results) -> String {
    let environment = &results.environment;
    let device = environment.gpu.as_ref().map(|gpu| gpu.name.clone()).or(environment.cpu.clone());
    let threads = match environment.threads {
        0 => None,
        1 => Some("1 thread".to_owned()),
        threads => Some(format!("{threads} threads")),
    };
    let version = Some(format!("swinq {}", environment.swinq));
    let time = Some(environment.time.clone()).filter(|time| !time.is_empty());
    [device, threads, time, version].into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

fn front_charts(results: &Results, names: &[String]) -> Option<Front> {
    let (batch, points) = front::points(results, names)?;
    let chart = |size| front::chart(&points, size, &front::Chart::ACCURACY, |_| true);
    Some(Front { batch, wide: chart([880.0, 380.0]), narrow: chart([340.0, 330.0]) })
}

/// Anchor and title of each section that has content.
fn navigation(page: &Page<'_>) -> Vec<(&'static str, &'static str)> {
    let all = [
        ("comparison", "Comparison", !page.groups.is_empty()),
        ("front", "Accuracy against latency", page.front.is_some()),
        ("latency", "Latency", !page.latency.is_empty()),
        ("program", "Whole program", page.program.is_some()),
        ("tuning", "Tuning", page.tuning.is_some()),
        ("sensitivity", "Sensitivity", page.sensitivity.is_some()),
        ("layers", "Layers", page.layers.is_some()),
        ("map", "Error by site", !page.maps.is_empty()),
        ("ranges", "Ranges", page.ranges.is_some()),
        ("classes", "Classes and images", page.classes.is_some() || !page.images.is_empty()),
        ("outputs", "Outputs and images", page.outputs.is_some()),
        ("training", "Training", page.training.is_some()),
        ("conditions", "Conditions", true),
        ("steps", "Steps to reproduce", !page.steps.is_empty()),
    ];
    all.into_iter().filter(|(_, _, present)| *present).map(|(id, title, _)| (id, title)).collect()
}

/// Every site of `model`: name, precision, calibrator, scale, range, SQNR, and the reason if it is not INT8.
fn listing(model: &ModelResult) -> Vec<[String; 7]> {
    let row = |site: &crate::results::SiteResult| {
        let kind = format!("{:?}", site.kind).to_lowercase();
        let bits = site.bits.filter(|&bits| bits != 8).map_or(String::new(), |bits| format!(", {bits} bits"));
        [
            site.site.clone(),
            if site.enabled { format!("INT8 ({kind}{bits})") } else { "float".to_owned() },
            site.calibrator.map_or(String::new(), |calibrator| calibrator.to_string()),
            match (site.scale, site.granularity) {
                (Some(scale), _) => format!("{scale:.6e}"),
                (None, Some(Granularity::Channel)) => "per channel".to_owned(),
                (None, _) => String::new(),
            },
            site.amax().map_or(String::new(), |amax| format!("{amax:.4}")),
            site.sqnr_db.map_or(String::new(), decibels),
            site.reason.clone().unwrap_or_default(),
        ]
    };
    model.sites.iter().map(row).collect()
}
