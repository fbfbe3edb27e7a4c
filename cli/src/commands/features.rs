//! `swinq features`.

use std::path::PathBuf;

use anyhow::bail;
use swinq::{FeatureOptions, Features, Model};

use crate::args::{FeaturesArgs, FloatArgs, NetworkTask, Usage};
use crate::out::{caution, counted, info, note};
use crate::paths::check_outputs;
use crate::progress::Progress;
use crate::{backend_arg, image_paths, interrupt, model_arg};

/// Runs the command. Images that cannot be read do not stop it; they are named, and the command fails at the
/// end.
pub fn run(args: &FeaturesArgs) -> anyhow::Result<()> {
    let paths = image_paths::read(&args.images)?;
    let inputs = paths.iter().chain([&args.model]).map(PathBuf::as_path);
    check_outputs([&args.features], inputs.chain(args.float.files()))?;
    let model = open(args)?;
    image_paths::check_commas(&paths)?;
    let mut options = backend_arg::engine(&args.backend, args.threads, args.batch_size)?;
    options.max_pixels = args.max_pixels;
    let engine = backend_arg::engine_of(&model, &options)?;
    let (sizing, padding) = (args.size, args.padding.padding());
    let how = FeatureOptions { sizing, padding, batch_size: args.batch_size, threads: args.threads.most };
    let features = Features::new(&engine, &paths, how)?;
    let (images, dataset) = (features.images(), features.dataset().cloned());
    let mut progress = Progress::new("features", images);
    let left_out = features.write(&args.features, &mut |done, _| {
        progress.set(done);
        interrupt::check()
    })?;
    let written = images - left_out.len();
    progress.finish(written);
    dataset.as_ref().and_then(swinq::turned).iter().for_each(|remark| note!("{remark}"));
    left_out.iter().for_each(|left_out| caution!("image {}: {}", left_out.image, left_out.problem));
    if written > 0 {
        info!("wrote {}: the feature maps of {}", args.features.display(), counted(written, "image"));
    }
    match left_out.len() {
        0 => Ok(()),
        1 => bail!("1 image has no feature maps; the warning names it"),
        count => bail!("{count} images have no feature maps; the warnings name them"),
    }
}

/// Opens the model as a backbone.
fn open(args: &FeaturesArgs) -> anyhow::Result<Model> {
    if args.float.task == Some(NetworkTask::Classification) {
        let text =
            "--task classification: this command computes feature maps; `swinq predict` computes classes";
        return Err(Usage(text.to_owned()).into());
    }
    let float = FloatArgs { task: Some(NetworkTask::Features), ..args.float.clone() };
    let model = model_arg::open(&args.model, &float)?;
    args.float.check_used(!model.describes_itself())?;
    Ok(model)
}
