//! An inference allocates nothing after the first, in INT8 and in FP32.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use swinq_int8_runtime::{Backend, CpuOptions, Engine};
use swinq_model::QuantizedModel;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const IMAGES: usize = 3;

fn blocks_of_100_inferences(model: &QuantizedModel) -> u64 {
    let options = CpuOptions { threads: 2, max_batch: 2, ..CpuOptions::detect().unwrap() };
    let engine = Engine::new(model, Backend::Cpu(options)).unwrap();
    let size = model.config.image_size;
    let pixels: Vec<u8> = (0..IMAGES * size * size * 3).map(|i| (i * 37 % 251) as u8).collect();
    let mut logits = vec![0.0; IMAGES * model.config.num_classes];
    for _ in 0..3 {
        engine.infer_into(&pixels, &mut logits).unwrap();
    }
    let before = dhat::HeapStats::get().total_blocks;
    for _ in 0..100 {
        engine.infer_into(&pixels, &mut logits).unwrap();
    }
    dhat::HeapStats::get().total_blocks - before
}

#[test]
fn inference_allocates_nothing_after_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("q.safetensors");
    let mut models = BTreeMap::new();
    for (name, more) in [("default", &[][..]), ("mode1", &["--int8-mode", "1"])] {
        common::calibrate(&path, &[&["--batches", "1"], more].concat()).success();
        models.insert(name, QuantizedModel::load(Path::new(&path)).unwrap());
    }
    let float = common::float_model();
    models.insert("float", QuantizedModel::from_float(&float).unwrap());
    let _profiler = dhat::Profiler::builder().testing().build();
    for (name, model) in &models {
        assert_eq!(blocks_of_100_inferences(model), 0, "{name}");
    }
    let before = dhat::HeapStats::get().total_blocks;
    drop(std::hint::black_box(Box::new(1u8)));
    assert_eq!(dhat::HeapStats::get().total_blocks - before, 1, "the allocator does not count");
}
