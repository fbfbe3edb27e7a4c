//! Writes the feature maps that a backbone computes for the images in a safetensors file.
//!
//! ```text
//! cargo run -p swinq-float --example features -- MODEL IMAGES OUT [--cfg NAME] [--prefix P] [--stages 0,1]
//! ```
//!
//! IMAGES holds normalised images, f32 `[batch, channels, height, width]`, under any names. OUT gets for each
//! image `I` and each output `I.stageK`, f32 `[batch, channels, height, width]`. An image that the network
//! refuses is named, and has no output.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use candle_core::{DType, Device, Tensor, safetensors};
use swinq_float::{Float, Swin};
use swinq_model::{LoadOptions, Task, load_config, load_float_with_remarks};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [model, images, out, options @ ..] = words.as_slice() else {
        return Err("usage: features MODEL IMAGES OUT [--cfg NAME] [--prefix P] [--stages 0,1]".into());
    };
    let mut reading = LoadOptions { task: Some(Task::Features), ..LoadOptions::default() };
    for pair in options.chunks(2) {
        match pair {
            [key, value] if key == "--cfg" => reading.cfg = Some(load_config(value, &[])?),
            [key, value] if key == "--prefix" => reading.prefix = Some(value.clone()),
            [key, value] if key == "--stages" => {
                reading.outputs = Some(value.split(',').map(str::parse).collect::<Result<_, _>>()?);
            }
            other => return Err(format!("{other:?} is no option").into()),
        }
    }
    let loaded = load_float_with_remarks(Path::new(model), &reading)?;
    loaded.remarks.iter().for_each(|remark| eprintln!("{remark}"));
    eprintln!("{:?} {:?}", loaded.model.config, loaded.model.transform);
    let mut features = BTreeMap::new();
    for (name, image) in safetensors::load(images, &Device::Cpu)? {
        let (_, _, height, width) = image.dims4()?;
        let config = &loaded.model.config;
        let grids = match config.grids(swinq_model::Size::new(height, width)) {
            Ok(grids) => grids,
            Err(problem) => {
                eprintln!("refused {name}: {problem}");
                continue;
            }
        };
        let swin = Swin::new(config, &loaded.model.tensors, &Device::Cpu)?;
        let outputs = swin.outputs(&image.to_dtype(DType::F32)?, &mut Float)?;
        for (output, tokens) in config.outputs.iter().zip(outputs) {
            let grid = grids[output.stage].size;
            let channels = tokens.dims().last().copied().unwrap_or(0);
            let map = tokens.reshape(((), grid.height, grid.width, channels))?.permute((0, 3, 1, 2))?;
            features.insert(format!("{name}.{}", output.name), map.contiguous()?);
        }
    }
    let features: std::collections::HashMap<String, Tensor> = features.into_iter().collect();
    Ok(safetensors::save(&features, out)?)
}
