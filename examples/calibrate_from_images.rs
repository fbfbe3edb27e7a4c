//! Calibrates a float model on an iterator of decoded images, and writes the quantized checkpoint.
//!
//! In this example the images come from files; a camera or a video could be read in the same way.
//!
//! ```console
//! $ cargo run --release --example calibrate_from_images -- swin_t.pth swin_tiny_patch4_window7_224 out.safetensors *.jpg
//! ```

use std::ops::ControlFlow;

use swinq::{CalibrateOptions, Images, Model, OpenOptions, Progress, RgbImage, calibrate, decode_image};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, cfg, output, files @ ..] = arguments.as_slice() else {
        eprintln!("usage: calibrate_from_images MODEL CFG OUTPUT IMAGE...");
        std::process::exit(2);
    };
    let options = OpenOptions { cfg: Some(cfg.clone()), ..OpenOptions::default() };
    let model = Model::open_float(model, &options)?;
    let decode = |file: &String| -> Result<RgbImage, Box<dyn std::error::Error>> {
        Ok(decode_image(&std::fs::read(file)?).map_err(|error| format!("{file}: {error}"))?)
    };
    let decoded: Vec<RgbImage> = files.iter().map(decode).collect::<Result<_, _>>()?;
    let images = Images::from_rgb(decoded, model.transform())?;
    let mut progress = |step: Progress| {
        eprintln!("{:?}: {} of {}", step.phase, step.done, step.total);
        ControlFlow::Continue(())
    };
    let calibrated = calibrate(model, &CalibrateOptions::default(), &images, &mut progress)?;
    calibrated.model.save(output)?;
    println!("wrote {output}");
    Ok(())
}
