//! `swinq predict`.

use std::path::{Path, PathBuf};

use comfy_table::{Table, presets};
use serde_json::json;
use swinq::model::atomic::write_atomic;
use swinq::{ClassScore, Engine, Images, Logits, Prediction, ReadOptions};

use crate::args::PredictArgs;
use crate::out::say;
use crate::paths::check_outputs;
use crate::{backend_arg, interrupt, model_arg};

/// Number of images that are decoded and run at a time.
const BATCH: usize = 8;

/// Runs the command.
pub fn run(args: &PredictArgs) -> anyhow::Result<()> {
    check_outputs(&args.logits, args.images.iter().chain([&args.model]).map(PathBuf::as_path))?;
    let model = model_arg::open(&args.model, &args.float)?;
    args.float.check_used(!model.describes_itself())?;
    let options = backend_arg::engine(&args.backend, args.threads, BATCH.min(args.images.len()))?;
    let engine = backend_arg::with_remedy(Engine::new(&model, &options), &options)?;
    let images = Images::from_files(&args.images)?;
    let read = ReadOptions { batch_size: BATCH, threads: args.threads, skip_corrupt: 0 };
    let found = engine.infer_images(&images, &read, &mut |_, _| interrupt::check())?;
    if let Some(path) = &args.logits {
        write_logits(path, &found.logits)?;
    }
    let names = found.ids.iter().map(|&id| images.name_of(id));
    let predictions: Vec<_> = names.zip(engine.top_k(&found.logits, args.topk)?).collect();
    if args.json {
        print_json(&predictions)?
    } else {
        print_table(&predictions)
    }
    Ok(())
}

/// The name of a class, or its index if it has no name.
fn name(class: &ClassScore) -> String {
    class.label.clone().unwrap_or_else(|| class.index.to_string())
}

fn print_json(predictions: &[(String, Prediction)]) -> anyhow::Result<()> {
    let class = |c: &ClassScore| json!({"class": c.index, "label": c.label, "probability": c.probability});
    let entry = |(image, prediction): &(String, Prediction)| {
        let classes: Vec<_> = prediction.classes.iter().map(class).collect();
        json!({"image": image, "topk": classes})
    };
    say!("{}", serde_json::to_string_pretty(&predictions.iter().map(entry).collect::<Vec<_>>())?);
    Ok(())
}

fn print_table(predictions: &[(String, Prediction)]) {
    for (image, prediction) in predictions {
        say!("{image}");
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        for class in &prediction.classes {
            let percent = format!("  {:.2} %", 100.0 * class.probability);
            table.add_row([percent, class.index.to_string(), name(class)]);
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
