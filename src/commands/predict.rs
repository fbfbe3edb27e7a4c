//! `swinq predict`.

use std::path::{Path, PathBuf};

use comfy_table::{Table, presets};
use serde_json::json;
use swinq_data::{Dataset, Loader, LoaderOptions};
use swinq_model::atomic::write_atomic;
use swinq_model::{BatchSource, Classifier, Logits};

use crate::args::PredictArgs;
use crate::backend::Target;
use crate::interrupt;
use crate::model_arg::Model;
use crate::out::say;
use crate::paths::check_outputs;

/// Images decoded and run at a time.
const BATCH: usize = 8;

/// Runs the command.
pub fn run(args: &PredictArgs) -> anyhow::Result<()> {
    check_outputs(&args.logits, args.images.iter().chain([&args.model]).map(PathBuf::as_path))?;
    let model = Model::load(&args.model, &args.float)?;
    args.float.check_used(model.is_float())?;
    let model = model.into_quantized()?;
    let labels = model.labels.clone();
    let batch_size = BATCH.min(args.images.len());
    let mut engine = Target::one(&args.backend, args.threads, batch_size)?.engine(&model)?;
    let dataset = Dataset::from_files(&args.images)?;
    let ids = (0..dataset.len()).collect();
    let options = LoaderOptions { batch_size: BATCH, threads: args.threads, prefetch: 2, skip_corrupt: 0 };
    let mut loader = Loader::new(dataset.clone(), ids, model.transform.clone(), options);
    let mut logits = Logits { values: Vec::new(), classes: engine.classes() };
    for index in 0..loader.batches() {
        anyhow::ensure!(!interrupt::requested(), "interrupted; nothing was written");
        let batch = loader.batch(0, index).map_err(anyhow::Error::from_boxed)?;
        logits.values.extend(engine.infer(&batch).map_err(anyhow::Error::from_boxed)?.values);
    }
    if let Some(path) = &args.logits {
        write_logits(path, &logits)?;
    }
    let name = |class: usize| labels.as_ref().map_or_else(|| class.to_string(), |names| names[class].clone());
    let predictions: Vec<Prediction> =
        logits.rows().enumerate().map(|(i, row)| Prediction::new(dataset.name(i), row, args.topk)).collect();
    if args.json {
        print_json(&predictions, name)?
    } else {
        print_table(&predictions, name)
    }
    Ok(())
}

/// The best classes of one image.
struct Prediction {
    image: String,
    /// Class and probability, best first.
    best: Vec<(usize, f64)>,
}

impl Prediction {
    fn new(image: String, scores: &[f32], topk: usize) -> Prediction {
        let max = f64::from(scores.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let exps: Vec<f64> = scores.iter().map(|&s| (f64::from(s) - max).exp()).collect();
        let total: f64 = exps.iter().sum();
        let mut best: Vec<(usize, f64)> = exps.iter().map(|e| e / total).enumerate().collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        best.truncate(topk);
        Prediction { image, best }
    }
}

fn print_json(predictions: &[Prediction], name: impl Fn(usize) -> String) -> anyhow::Result<()> {
    let entry = |p: &Prediction| {
        let classes: Vec<_> = p
            .best
            .iter()
            .map(|&(class, probability)| json!({"class": class, "label": name(class), "probability": probability}))
            .collect();
        json!({"image": p.image, "topk": classes})
    };
    say!("{}", serde_json::to_string_pretty(&predictions.iter().map(entry).collect::<Vec<_>>())?);
    Ok(())
}

fn print_table(predictions: &[Prediction], name: impl Fn(usize) -> String) {
    for prediction in predictions {
        say!("{}", prediction.image);
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        for &(class, probability) in &prediction.best {
            table.add_row([format!("  {:.2} %", 100.0 * probability), class.to_string(), name(class)]);
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
