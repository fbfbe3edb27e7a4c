//! The CUDA backend against the CPU engine on real images: a part of the large validation set, or the bundled
//! validation images. Without a GPU the test prints that it is skipped, or fails if `REQUIRE_IMPL` names
//! `cuda`. Both samples run, a Swin V1 and a Swin V2.

use std::ops::ControlFlow;

use crate::common::subject::Subject;
use crate::common::{float_model, gpu, large_data, root, sample_data};
use candle_core::Device;
use swinq_calib::{CalibrateOptions, calibrate};
use swinq_data::{Dataset, Loader, LoaderOptions, Split};
use swinq_eval::{Collected, collect, fidelity};
use swinq_int8_runtime::cuda::{Autotune, CudaOptions, Gemm, ResidualType};
use swinq_int8_runtime::{Backend, CpuOptions, Engine};
use swinq_model::quantized::FloatModel;
use swinq_model::{Classifier, QuantizedModel, Recipe};

/// Number of images that are compared.
const IMAGES: usize = 2000;

/// The sample's model, calibrated on training images of the large data set, or on the bundled training
/// images.
fn calibrated(model: &FloatModel) -> QuantizedModel {
    let large = large_data("cuda_images (320 training images; the bundled ones are used)")
        .map(|f| f.join("data/cifar10"));
    let folder = large.filter(|f| f.join("train.zip").is_file()).unwrap_or_else(sample_data);
    let dataset = Dataset::open(&folder, Split::Train).unwrap();
    let ids = dataset.sample(Some(320.min(dataset.len())), 0);
    let options = LoaderOptions { batch_size: 16, threads: 1, prefetch: 1, skip_corrupt: 0 };
    let mut loader = Loader::new(dataset, ids, model.transform.clone(), options).unwrap();
    let mut progress = |_| ControlFlow::Continue(());
    let options = CalibrateOptions { imported: None, device: &Device::Cpu, progress: &mut progress };
    calibrate(model, &Recipe::shipped("default").unwrap(), &mut loader, options).unwrap().model
}

/// Logits of a sample of images that is spread over the classes.
fn run(classifier: &dyn Classifier, model: &QuantizedModel) -> Collected {
    let folder =
        large_data("cuda_images (2,000 images; the bundled 1,000 are used)").map(|f| f.join("data/cifar10"));
    let dataset = Dataset::open(&folder.unwrap_or_else(sample_data), Split::Val).unwrap();
    let ids = dataset.sample(Some(IMAGES.min(dataset.len())), 7);
    let options = LoaderOptions { batch_size: 64, threads: 0, prefetch: 2, skip_corrupt: 0 };
    let mut loader = Loader::new(dataset, ids, model.transform.clone(), options).unwrap();
    collect(classifier, &mut loader, &mut |_, _| ControlFlow::Continue(())).unwrap()
}

#[test]
fn logits_are_those_of_the_cpu_engine() {
    if !gpu("logits_are_those_of_the_cpu_engine") {
        return;
    }
    check(&float_model(), 38.0);
    // 35.6 to 36.1 dB, depending on the images of the calibration.
    check(&Subject::open(&root().join("samples/swinv2_micro_cifar10")), 35.0);
}

/// Compares the logits of `float` with the recipe `default`; `least_half_db` is required of an f16 residual.
fn check(float: &FloatModel, least_half_db: f64) {
    let model = calibrated(float);
    let expected = run(&Engine::new(&model, Backend::Cpu(CpuOptions::detect().unwrap())).unwrap(), &model);
    let images = expected.logits.rows().count();
    for (residual, least_db, least_agreement) in
        [(ResidualType::F32, 45.0, 0.998), (ResidualType::F16, least_half_db, 0.992)]
    {
        for gemm in [Gemm::Own, Gemm::CublasLt, Gemm::Auto] {
            let autotune = if gemm == Gemm::Auto { Autotune::Quick } else { Autotune::Off };
            let options = CudaOptions {
                max_batch: 64,
                residual: Some(residual),
                gemm,
                autotune,
                ..CudaOptions::default()
            };
            let got = run(&Engine::new(&model, Backend::Cuda(options)).unwrap(), &model);
            let found = fidelity(&expected, &got).unwrap();
            eprintln!(
                "{}, {images} images, {residual:?} residual, --gemm {gemm}: {:.1} dB, {:.2} % agreement",
                float.config.name,
                found.sqnr_db,
                100.0 * found.agreement
            );
            assert!(
                found.sqnr_db >= least_db && found.agreement >= least_agreement,
                "{}, {residual:?} {gemm}: {found:?}",
                float.config.name
            );
        }
    }
}
