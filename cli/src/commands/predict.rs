//! `swinq predict`.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::bail;
use comfy_table::{Cell, CellAlignment, Table, presets};
use serde_json::json;
use swinq::model::Scores;
use swinq::model::atomic::write_atomic;
use swinq::{ClassScore, Images, Inferred, Logits, Prediction, ReadOptions, SwinConfig, infer_images, top_k};

use crate::args::{PredictArgs, Usage};
use crate::out::{caution, note, say};
use crate::paths::check_outputs;
use crate::{backend_arg, image_paths, interrupt, model_arg};

/// Number of images that are decoded and run at a time.
const BATCH: usize = 8;

/// Runs the command. Images that cannot be read do not stop it; they are named, and the command fails at the
/// end.
pub fn run(args: &PredictArgs) -> anyhow::Result<()> {
    let paths = image_paths::read(&args.images)?;
    let inputs = paths.iter().chain([&args.model]).map(PathBuf::as_path);
    check_outputs(&args.logits, inputs.chain(args.float.files()))?;
    let model = model_arg::open_classifier(&args.model, &args.float)?;
    args.float.check_used(!model.describes_itself())?;
    check_threshold(args, model.config())?;
    image_paths::check_commas(&paths)?;
    let (images, errors) = Images::find(&paths)?;
    let mut failed: Vec<Failed> = errors
        .into_iter()
        .map(|(path, error)| Failed { image: path.display().to_string(), error: error.to_string() })
        .collect();
    failed.iter().for_each(|failed| caution!("{}", failed.error));
    let mut predictions = Vec::new();
    if let Some(images) = images {
        let options = backend_arg::engine(&args.backend, args.threads, BATCH.min(images.len()))?;
        let engine = backend_arg::engine_of(&model, &options)?;
        let read = ReadOptions { batch_size: BATCH, threads: args.threads.most, skip_corrupt: images.len() };
        let found = infer_images(&engine, &images, &read, &mut |_, _| interrupt::check())?;
        found.skipped.iter().for_each(|problem| caution!("{problem}"));
        images.turned().iter().for_each(|remark| note!("{remark}"));
        let logits = &found.scores.logits;
        if let Some(path) = args.logits.as_ref().filter(|_| !logits.values.is_empty()) {
            write_logits(path, logits)?;
        }
        let names = found.scores.ids.iter().map(|&id| images.name_of(id));
        let classes = if args.threshold.is_some() { logits.classes } else { args.topk };
        predictions = names.zip(top_k(&engine, logits, classes)?).collect();
        if let Some(least) = args.threshold {
            let reaches = |class: &ClassScore| class.score >= least;
            predictions.iter_mut().for_each(|(_, prediction)| prediction.classes.retain(reaches));
        }
        failed.extend(left_out(&images, found));
    }
    if args.json {
        print_json(&predictions, &failed)?
    } else {
        print_table(&predictions)
    }
    match failed.len() {
        0 => Ok(()),
        1 => bail!("1 input cannot be classified; the warning names it"),
        count => bail!("{count} inputs cannot be classified; the warnings name them"),
    }
}

/// Refuses a threshold for a model with one class for each image, or without classes.
fn check_threshold(args: &PredictArgs, config: &SwinConfig) -> Result<(), Usage> {
    if args.threshold.is_none() || config.scores() == Scores::Sigmoid {
        return Ok(());
    }
    let text = "--threshold is for multi-label classifiers, whose classes have a sigmoid each (problem_type: \
                multi_label_classification); this model is none: use --topk";
    Err(Usage(text.to_owned()))
}

/// An input that cannot be classified.
struct Failed {
    image: String,
    error: String,
}

/// The images without logits, in order, with the messages about them.
fn left_out(images: &Images, found: Inferred) -> Vec<Failed> {
    let readable: HashSet<usize> = found.scores.ids.iter().copied().collect();
    let ids = (0..images.len()).filter(|id| !readable.contains(id));
    ids.zip(found.skipped).map(|(id, error)| Failed { image: images.name_of(id), error }).collect()
}

/// The name of a class, or its index if it has no name.
fn name(class: &ClassScore) -> String {
    class.label.clone().unwrap_or_else(|| class.index.to_string())
}

/// Prints an entry with `topk` for each classified image, then one with `error` for each input that cannot be
/// classified.
fn print_json(predictions: &[(String, Prediction)], failed: &[Failed]) -> anyhow::Result<()> {
    let entry = |(image, prediction): &(String, Prediction)| {
        let (scores, key) = match prediction.scores {
            Scores::Softmax => ("softmax", "probability"),
            Scores::Sigmoid => ("sigmoid", "probability"),
            Scores::Number => ("number", "value"),
        };
        let class = |c: &ClassScore| json!({"class": c.index, "label": c.label, key: c.score});
        let classes: Vec<_> = prediction.classes.iter().map(class).collect();
        json!({"image": image, "scores": scores, "topk": classes})
    };
    let failed = failed.iter().map(|failed| json!({"image": failed.image, "error": failed.error}));
    let entries: Vec<_> = predictions.iter().map(entry).chain(failed).collect();
    say!("{}", serde_json::to_string_pretty(&entries)?);
    Ok(())
}

fn print_table(predictions: &[(String, Prediction)]) {
    for (image, prediction) in predictions {
        say!("{image}");
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        for class in &prediction.classes {
            let score = match prediction.scores {
                Scores::Number => format!("{:.4}", class.score),
                Scores::Softmax | Scores::Sigmoid => format!("{:.2} %", 100.0 * class.score),
            };
            let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
            table.add_row([right(score), right(class.index.to_string()), Cell::new(name(class))]);
        }
        say!("{table}");
    }
}

/// Writes f32 `[images, classes]` under the key `logits`.
fn write_logits(path: &Path, logits: &Logits) -> anyhow::Result<()> {
    let bytes: Vec<u8> = logits.values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let shape = vec![logits.values.len() / logits.classes, logits.classes];
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, &bytes)?;
    let file = safetensors::serialize([("logits", view)], None)?;
    write_atomic(path, |out| out.write_all(&file))?;
    Ok(())
}
