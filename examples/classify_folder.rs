//! Classifies the images of a folder and prints the best class of each.
//!
//! ```console
//! $ cargo run --release --example classify_folder -- swin_t.int8.safetensors photos
//! ```

use std::ops::ControlFlow;

use swinq::{EngineOptions, Error, Images, Model, ReadOptions, Split, infer_images, top_k};

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, folder] = arguments.as_slice() else {
        eprintln!("usage: classify_folder MODEL FOLDER");
        std::process::exit(2);
    };
    let model = Model::open(model)?;
    let engine = model.engine(&EngineOptions::default())?;
    let images = Images::open(folder, Split::Val, None, 0)?;
    let mut progress = |done, total| {
        eprintln!("{done} of {total} images");
        ControlFlow::Continue(())
    };
    let scores = infer_images(&engine, &images, &ReadOptions::default(), &mut progress)?.scores;
    for (id, prediction) in scores.ids.iter().zip(top_k(&engine, &scores.logits, 1)?) {
        for class in prediction.classes {
            let name = class.label.unwrap_or_else(|| class.index.to_string());
            println!("{}: {name} ({:.1} %)", images.name_of(*id), 100.0 * class.score);
        }
    }
    Ok(())
}
