//! The classes whose accuracy moved, and the images on which the model disagrees most with the baseline.

use super::ReportExtras;
use super::names::short_names;
use super::svg::bar;
use crate::results::{ClassResult, Disagreement, Flips, ModelResult, Results};
use crate::text::thousands;

/// Maximum number of classes in the table.
const SHOWN: usize = 12;

/// The section about classes.
pub struct Classes {
    /// How many predictions changed.
    pub summary: Option<String>,
    pub rows: Vec<ClassRow>,
    /// Number of classes whose number of correct images changed, and of all classes with images.
    pub moved: usize,
    pub total: usize,
    /// The accuracy of every model by class: header and rows of a table.
    pub header: Vec<String>,
    pub all: Vec<Vec<String>>,
}

/// One class.
pub struct ClassRow {
    pub name: String,
    pub images: usize,
    pub before: String,
    pub after: String,
    pub gained: usize,
    pub lost: usize,
    /// A bar to the left for lost images and to the right for gained ones.
    pub bar: String,
}

impl Classes {
    /// The classes of `model`; `None` if its figures by class were not measured.
    pub fn new(results: &Results, model: &ModelResult) -> Option<Classes> {
        let labelled = model.top1_correct.is_some();
        let summary = model.flips.zip(model.images).map(|(flips, images)| sentence(flips, images, labelled));
        let mut moved: Vec<&ClassResult> = model.classes.iter().filter(|c| c.gained + c.lost > 0).collect();
        let net = |c: &ClassResult| c.gained as i64 - c.lost as i64;
        moved.sort_by_key(|c| (net(c), std::cmp::Reverse(c.lost), c.class));
        let count = moved.iter().filter(|c| net(c) != 0).count();
        // The classes that lost most come first, then those that gained most.
        let mut order: Vec<&ClassResult> = moved.clone();
        order.sort_by_key(|c| {
            (std::cmp::Reverse(net(c).abs()), std::cmp::Reverse(c.gained + c.lost), c.class)
        });
        order.truncate(SHOWN);
        order.sort_by_key(|c| (net(c), std::cmp::Reverse(c.lost), c.class));
        let widest = order.iter().map(|c| c.gained.max(c.lost)).max().unwrap_or(0).max(1) as f64;
        let rows = order.into_iter().map(|class| row(results, class, widest)).collect();
        let any = summary.is_some() || !model.classes.is_empty();
        let (header, all) = accuracies(results, model);
        any.then_some(Classes { summary, rows, moved: count, total: model.classes.len(), header, all })
    }
}

/// The accuracy of every model in the classes of `subject`: header and rows.
fn accuracies(results: &Results, subject: &ModelResult) -> (Vec<String>, Vec<Vec<String>>) {
    let names = short_names(&results.models);
    let header = ["class", "images"].map(str::to_owned).into_iter().chain(names).collect();
    let cell = |model: &ModelResult, class: usize| {
        let found = model.classes.iter().find(|c| c.class == class);
        found.map_or("-".to_owned(), |c| percent(c.top1_correct, c.images))
    };
    let row = |c: &ClassResult| {
        let cells = results.models.iter().map(|model| cell(model, c.class));
        [class_name(results, c.class), c.images.to_string()].into_iter().chain(cells).collect()
    };
    (header, subject.classes.iter().map(row).collect())
}

/// `part` of `whole` in percent.
fn percent(part: usize, whole: usize) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}

/// The changed predictions in one sentence. Without labels it is not known which are right.
fn sentence(flips: Flips, images: usize, labelled: bool) -> String {
    let Flips { gained, lost, other } = flips;
    if flips.total() == 0 {
        return format!("No image of {} changes its class.", thousands(images));
    }
    let changed = format!("{} of {} images change their class", thousands(flips.total()), thousands(images));
    if !labelled {
        return format!("{changed}.");
    }
    format!(
        "{changed}: {lost} from right to wrong, {gained} from wrong to right, {other} from one wrong class to another."
    )
}

fn row(results: &Results, class: &ClassResult, widest: f64) -> ClassRow {
    let ClassResult { images, top1_correct, gained, lost, .. } = *class;
    let percent = |count: usize| percent(count, images);
    let half = |count: usize| 0.5 * count as f64 / widest;
    ClassRow {
        name: class_name(results, class.class),
        images,
        before: percent((top1_correct + lost).saturating_sub(gained)),
        after: percent(top1_correct),
        gained,
        lost,
        bar: bar(&[(0.5 - half(lost), "none"), (half(lost), "noisy"), (half(gained), "gain")], None),
    }
}

/// Name of a class, or its number.
pub fn class_name(results: &Results, class: usize) -> String {
    let names = results.data.as_ref().and_then(|data| data.class_names.as_ref());
    names.and_then(|names| names.get(class)).cloned().unwrap_or_else(|| format!("class {class}"))
}

/// An image with both predictions.
pub struct ImageCard {
    /// The picture as a data URI, if there is one, with its width and height.
    pub picture: Option<(String, usize, usize)>,
    pub name: String,
    pub label: Option<String>,
    pub before: String,
    pub after: String,
    /// Which of the two is right, as a CSS class: `right`, `wrong` or empty.
    pub before_class: &'static str,
    pub after_class: &'static str,
    pub kl: String,
}

/// The images on which `model` disagrees most with the baseline.
pub fn images(results: &Results, model: &ModelResult, extras: &ReportExtras) -> Vec<ImageCard> {
    model.disagreements.iter().map(|image| card(results, image, extras)).collect()
}

fn card(results: &Results, image: &Disagreement, extras: &ReportExtras) -> ImageCard {
    let guess = |guess: &crate::results::Guess| {
        format!("{} {:.0} %", class_name(results, guess.class), 100.0 * guess.probability)
    };
    let verdict = |class: usize| match image.label {
        Some(label) if label == class => "right",
        Some(_) => "wrong",
        None => "",
    };
    let thumbnail = extras.thumbnails.get(&image.id);
    ImageCard {
        picture: thumbnail.map(|thumbnail| (thumbnail.data_uri(), thumbnail.width, thumbnail.height)),
        name: image.image.clone().unwrap_or_else(|| format!("image {}", image.id)),
        label: image.label.map(|label| class_name(results, label)),
        before: guess(&image.baseline),
        after: guess(&image.own),
        before_class: verdict(image.baseline.class),
        after_class: verdict(image.own.class),
        kl: format!("{:.3}", image.kl),
    }
}
