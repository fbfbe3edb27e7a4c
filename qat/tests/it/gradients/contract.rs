//! Fake quantization against the number contract, bit for bit on the integer grid.

use candle_core::{Device, Tensor};
use swinq_calib::quantize_weight;
use swinq_float::ops::taped::{FakeActivation, fake_quantize, fake_quantize_weight};
use swinq_float::ops::{Compute, Ops};
use swinq_model::quantized::Param;
use swinq_model::{Site, all_linears};
use swinq_numerics::Quantizer;
use swinq_numerics::reference::code;
use swinq_qat::export;

use super::{Case, EVERYTHING, W4};
use crate::common::{shifted, values};

fn host() -> Ops {
    Compute::host().unwrap().into()
}

fn bits(values: &[f32]) -> Vec<u32> {
    // A code cannot be -0, so the sign of zero is ignored.
    values.iter().map(|v| (v + 0.0).to_bits()).collect()
}

/// Every code, every tie between two codes, their neighbours in f32, and values beyond both ends.
fn around_every_code(quantizer: Quantizer) -> Vec<f32> {
    let halves = (-300..=300).map(|half| 0.5 * half as f32 * quantizer.scale());
    let near = halves.flat_map(|x| [x, x.next_up(), x.next_down()]);
    near.chain([f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -0.0]).collect()
}

#[test]
fn activations() {
    for scale in [1.0f32, 0.5, 0.013, 3.7e-5, 21.3] {
        let quantizer = Quantizer::new(scale).unwrap();
        let x = around_every_code(quantizer);
        let tensor = Tensor::new(x.as_slice(), &Device::Cpu).unwrap();
        let fake = FakeActivation { quantizer, learned: None };
        let got = values(&fake_quantize(&host(), &tensor, &fake).unwrap());
        let want: Vec<f32> = x.iter().map(|x| f32::from(code(x * quantizer.recip())) * scale).collect();
        assert!(want.contains(&(-128.0 * scale)) && want.contains(&(127.0 * scale)));
        assert_eq!(bits(&got), bits(&want), "scale {scale}");
    }
}

#[test]
fn weights() {
    for (recipe, learned) in [
        ("default", false),
        ("mode1", false),
        (W4, false),
        (EVERYTHING, false),
        (W4, true),
        (EVERYTHING, true),
    ] {
        let case = Case::new(shifted(), Some(recipe), |_| learned);
        let student = case.student();
        let template = case.quantized.as_ref().unwrap();
        let exported =
            export::quantized_student(template, &case.float, student.scales(), student.parameters()).unwrap();
        let mut compared = 0;
        for linear in all_linears(&case.float.config) {
            let name = linear.weight_name();
            let weight = &student.parameters()[&name];
            let Some(fake) = student.scales().fake_weight(linear, weight.elem_count()) else { continue };
            let got = values(&fake_quantize_weight(&host(), weight, &fake, None).unwrap());
            let Param::Int8(codes) = &exported.params[&name] else { panic!("{name} is not quantized") };
            assert_eq!(bits(&got), bits(&codes.dequantize().data), "{recipe}: {name} as exported");
            assert!(codes.codes.iter().any(|c| f32::from(*c).abs() == fake.largest), "{recipe}: {name}");
            if !learned {
                let spec = &template.site(Site::Weight(linear)).spec;
                let want = quantize_weight(&case.float.tensors[&name], spec).unwrap();
                assert_eq!(*codes, want, "{recipe}: {name} as calibrated");
            }
            compared += 1;
        }
        assert!(compared >= 16, "{recipe}: {compared} weights");
    }
}

#[test]
fn trained_ranges_are_exported_as_they_are_used() {
    let case = Case::new(shifted(), Some(EVERYTHING), |_| true);
    let student = case.student();
    let template = case.quantized.as_ref().unwrap();
    let exported =
        export::quantized_student(template, &case.float, student.scales(), student.parameters()).unwrap();
    let mut compared = 0;
    for (&site, state) in exported.sites.iter().filter(|(site, _)| !site.is_weight()) {
        let Some(fake) = student.scales().fake(site, 1) else { continue };
        assert_eq!(state.scale().unwrap().to_bits(), fake.quantizer.scale().to_bits(), "{site}");
        assert_ne!(state.amax, template.site(site).amax, "{site} has not moved");
        compared += 1;
    }
    assert!(compared > 50, "{compared} activations");
}
