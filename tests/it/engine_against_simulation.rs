//! The engine's logits equal those of the simulation (the float forward with fake quantization) bit for bit,
//! for the shipped recipes and random recipes, on every instruction set of this processor, for both samples.

use crate::common::sample::{calibrated, run};
use crate::common::subject::Subject;
use crate::common::{blocks, float_model, root, with_channels};
use candle_core::Device;
use proptest::prelude::*;
use swinq_eval::fidelity;
use swinq_float::FloatClassifier;
use swinq_int8_runtime::{Backend, CpuOptions, Engine};
use swinq_kernels::Cpu;
use swinq_model::quantized::{ChannelCodes, FloatModel};
use swinq_model::site::all_sites;
use swinq_model::{BlockId, Granularity, Kind, Linear, Ptq, QuantizedModel, Recipe, Rule, Site};

/// The trained Swin V2, with a factor of `q k^T` in the first head of each block that makes it use hi and lo
/// codes.
fn swin_v2() -> FloatModel {
    let mut model = Subject::open(&root().join("samples/swinv2_micro_cifar10"));
    let scales = model.tensors.iter_mut().filter(|(name, _)| name.ends_with(".attn.logit_scale"));
    scales.for_each(|(_, tensor)| tensor.data[0] = 3.0);
    model
}

fn quantized(model: &FloatModel, recipe: &Recipe) -> QuantizedModel {
    calibrated(model, recipe, &Device::Cpu).model
}

fn engine(model: &QuantizedModel, cpu: Cpu) -> Engine {
    Engine::new(
        model,
        Backend::Cpu(CpuOptions {
            threads: 2,
            max_batch: 4,
            image_threads: 0,
            max_memory: 0,
            max_pixels: 0,
            cpu,
        }),
    )
    .unwrap()
}

#[test]
fn shipped_recipes_on_every_instruction_set() {
    check_shipped_recipes(&float_model());
}

#[test]
fn shipped_recipes_of_swin_v2_on_every_instruction_set() {
    check_shipped_recipes(&swin_v2());
}

fn check_shipped_recipes(float: &FloatModel) {
    let available = Cpu::available();
    eprintln!("implementations: {available:?}");
    let exact = run(&FloatClassifier::new(float, &Device::Cpu).unwrap(), float, 48);
    for name in ["default", "mode1", "mode2"] {
        let model = quantized(float, &Recipe::shipped(name).unwrap());
        let simulated = run(&FloatClassifier::simulate(&model, &Device::Cpu).unwrap(), float, 48);
        let noise = fidelity(&exact, &simulated).unwrap().sqnr_db;
        assert!((20.0..60.0).contains(&noise), "{name} quantizes: {noise} dB against float");
        for &cpu in &available {
            assert_eq!(run(&engine(&model, cpu), float, 48).logits, simulated.logits, "{name} on {cpu}");
        }
    }
}

/// The engine equals the simulation, and every factor and zero point counts.
#[test]
fn scales_and_zero_points_of_channels_on_every_instruction_set() {
    let float = float_model();
    let exact = run(&FloatClassifier::new(&float, &Device::Cpu).unwrap(), &float, 48);
    // The ranges are those of tensors, from which the test makes those of channels.
    let plain = quantized(&float, &Recipe::shipped("default").unwrap().with_ptq(Ptq::Basic));
    let model = with_channels(plain, &float, |_| true);
    let simulated = run(&FloatClassifier::simulate(&model, &Device::Cpu).unwrap(), &float, 48);
    let noise = fidelity(&exact, &simulated).unwrap().sqnr_db;
    assert!(noise > 15.0, "{noise} dB against float");
    for cpu in Cpu::available() {
        assert_eq!(run(&engine(&model, cpu), &float, 48).logits, simulated.logits, "{cpu}");
    }
    // The last block's values reach the logits directly.
    let last = Site::Input(Linear::Fc2(*blocks(&model).last().unwrap()));
    let change = |change: fn(&mut ChannelCodes)| {
        let mut model = model.clone();
        change(model.sites.get_mut(&last).unwrap().channels.as_mut().unwrap());
        run(&engine(&model, Cpu::available()[0]), &float, 48).logits
    };
    assert_ne!(change(|c| c.factors.iter_mut().for_each(|f| *f *= 1.25)), simulated.logits);
    let shift = |c: &mut ChannelCodes| c.zero_points.iter_mut().for_each(|z| *z = z.saturating_add(30));
    assert_ne!(change(shift), simulated.logits);
}

#[test]
fn float_on_every_instruction_set() {
    let float = float_model();
    let expected = run(&FloatClassifier::new(&float, &Device::Cpu).unwrap(), &float, 64);
    let model = QuantizedModel::from_float(float.clone()).unwrap();
    for cpu in Cpu::available() {
        let found = fidelity(&expected, &run(&engine(&model, cpu), &float, 64)).unwrap();
        assert!(found.sqnr_db >= 100.0, "{}: {found:?}", cpu);
    }
}

#[test]
fn batches_of_any_size_give_the_same_logits() {
    let float = float_model();
    let model = quantized(&float, &Recipe::shipped("default").unwrap());
    let options = CpuOptions {
        threads: 1,
        max_batch: 33,
        image_threads: 0,
        max_memory: 0,
        max_pixels: 0,
        cpu: Cpu::scalar(),
    };
    let run_with =
        |options: CpuOptions| run(&Engine::new(&model, Backend::Cpu(options)).unwrap(), &float, 33).logits;
    let whole = run_with(options);
    for cpu in Cpu::available() {
        assert_eq!(run_with(CpuOptions { cpu, ..options }), whole, "{cpu} against the reference");
        for max_batch in [1, 3, 8] {
            let split = run_with(CpuOptions { threads: 3, max_batch, cpu, ..options });
            assert_eq!(split, whole, "{cpu} in parts of {max_batch}");
        }
    }
}

/// A random rule for one site. `draw` selects one of the rules that are allowed for the site.
fn rule(site: Site, draw: u32) -> Rule {
    let weight = site.is_weight();
    Rule {
        pattern: site.to_string(),
        enable: Some(!draw.is_multiple_of(4)),
        bits: Some(if draw % 16 == 1 { 4 } else { 7 }).filter(|_| weight && matches!(draw % 16, 1 | 3)),
        granularity: weight.then_some(if draw.is_multiple_of(3) {
            Granularity::Tensor
        } else {
            Granularity::Channel
        }),
        kind: (matches!(site, Site::Probs(_)) && draw.is_multiple_of(3)).then_some(Kind::S8),
        ..Rule::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_recipes(draws in proptest::collection::vec(0u32..48, 159), second in any::<bool>()) {
        let float = if second { swin_v2() } else { float_model() };
        let sites = all_sites(&float.config);
        prop_assert_eq!(sites.len(), 6 * 21 + 3 * 3);
        let rules = sites.iter().zip(&draws).map(|(&site, &draw)| rule(site, draw)).collect();
        let recipe = Recipe { name: "random".to_owned(), description: String::new(), rules };
        // Every other block also has scales and zero points of channels.
        let wanted = |id: BlockId| draws[id.stage + 2 * id.block].is_multiple_of(2);
        let model = with_channels(quantized(&float, &recipe), &float, wanted);
        let simulated = run(&FloatClassifier::simulate(&model, &Device::Cpu).unwrap(), &float, 24);
        for cpu in Cpu::available() {
            let engine = run(&engine(&model, cpu), &float, 24);
            prop_assert_eq!(&engine.logits, &simulated.logits, "{}", cpu);
        }
    }
}
