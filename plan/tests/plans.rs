//! Plans of small models under every shipped recipe: their ops, the source of their parameters, and their
//! text.
//!
//! `UPDATE_SNAPSHOTS=1` rewrites the texts in `tests/snapshots`; without it the tests compare with them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use swinq_calib::quantize;
use swinq_model::quantized::Param;
use swinq_model::site::all_sites;
use swinq_model::{Ptq, QuantizedModel, Recipe, Site, SwinConfig, SwinVersion, WindowPolicy};
use swinq_plan::{Element, Norm, Op, Order, Plan, Store, TensorId, Values, Weight};
use swinq_testing::model::{random, small};

const RECIPES: [&str; 4] = ["float", "default", "mode1", "mode2"];

/// Two stages with shifted windows, padding, an absolute position embedding and no patch norm.
fn padded() -> SwinConfig {
    SwinConfig {
        name: "padded".to_owned(),
        image_size: 44,
        window_policy: WindowPolicy::ShrinkAndPad,
        ape: true,
        qkv_bias: false,
        patch_norm: false,
        ..small()
    }
}

/// A Swin V2 with padding.
fn second() -> SwinConfig {
    SwinConfig {
        name: "second".to_owned(),
        version: SwinVersion::V2,
        image_size: 44,
        window_policy: WindowPolicy::ShrinkAndPad,
        ..small()
    }
}

/// `config` with random weights under `recipe`; each site has a different range.
fn model(config: SwinConfig, recipe: &str) -> QuantizedModel {
    let float = random(config, 5);
    if recipe == "float" {
        return QuantizedModel::from_float(float).unwrap();
    }
    let sites = all_sites(&float.config).into_iter().enumerate();
    let ranges: BTreeMap<Site, f32> = sites.map(|(i, site)| (site, 1.0 + i as f32 / 8.0)).collect();
    quantize(&float, &Recipe::shipped(recipe).unwrap().with_ptq(Ptq::Basic), &ranges).unwrap()
}

/// Address of the data that `values` borrows.
fn address(values: &Values<'_>) -> usize {
    match values {
        Values::Float(values) => values.as_ptr().addr(),
        Values::Codes(weight) => weight.codes.as_ptr().addr(),
    }
}

/// Addresses of all parameters that `plan` refers to.
fn addresses(plan: &Plan<'_>) -> Vec<usize> {
    let norm = |norm: &Norm<'_>| vec![address(&norm.gamma), address(&norm.beta)];
    let of = |op: &Op<'_>| match op {
        Op::Patches(_) | Op::Quantize(_) | Op::NormalizeHeads(_) => Vec::new(),
        Op::Linear(linear) => {
            let weight = match &linear.weight {
                Weight::Int8 { codes, .. } => codes.codes.as_ptr().addr(),
                Weight::Float(values) => address(values),
            };
            linear.bias.iter().map(address).chain([weight]).collect()
        }
        Op::Norm(op, _) | Op::NormInPlace(op) | Op::Pool(op) => norm(op),
        Op::PositionEmbedding(table) => vec![address(table)],
        Op::Attention(attention) => vec![attention.bias.table.as_ptr().addr()],
        Op::Merge(merge) => merge.norm.as_ref().map(norm).unwrap_or_default(),
    };
    plan.steps.iter().flat_map(|step| of(&step.op)).collect()
}

#[test]
fn every_parameter_is_borrowed_by_one_step() {
    for config in [small(), padded()] {
        for recipe in RECIPES {
            let model = model(config.clone(), recipe);
            let mut stored: Vec<usize> = (model.params.values())
                .map(|param| match param {
                    Param::Float(tensor) => tensor.data.as_ptr().addr(),
                    Param::Int8(weight) => weight.codes.as_ptr().addr(),
                })
                .collect();
            let plan = Plan::new(&model).unwrap();
            let mut borrowed = addresses(&plan);
            stored.sort_unstable();
            borrowed.sort_unstable();
            assert_eq!(borrowed, stored, "{}, {recipe}", config.name);
        }
    }
}

#[test]
fn every_tensor_is_written_before_it_is_read() {
    for config in [small(), padded(), second()] {
        for recipe in RECIPES {
            let model = model(config.clone(), recipe);
            let plan = Plan::new(&model).unwrap();
            let mut written = BTreeSet::from([plan.image().0]);
            let mut read = BTreeSet::from([plan.logits().0]);
            for step in &plan.steps {
                assert!(written.contains(&step.input.0), "{recipe}: {} reads nothing", step.name);
                read.insert(step.input.0);
                written.insert(step.output.0);
            }
            let all: BTreeSet<usize> = (0..plan.tensors.len()).collect();
            assert_eq!((&written, &read), (&all, &all), "{}, {recipe}", config.name);
        }
    }
}

#[test]
fn parameters_have_the_shapes_of_their_tensors() {
    for config in [small(), padded(), second()] {
        for recipe in RECIPES {
            let model = model(config.clone(), recipe);
            let plan = Plan::new(&model).unwrap();
            let shape = |id: TensorId| (plan.tensor(id).rows, plan.tensor(id).columns);
            for step in &plan.steps {
                let ((rows, columns), (out_rows, out_columns)) = (shape(step.input), shape(step.output));
                match &step.op {
                    Op::Linear(linear) => {
                        assert_eq!((linear.k, linear.n), (columns, out_columns), "{}", step.name);
                        assert_eq!(step.macs, (rows * columns * out_columns) as u64, "{}", step.name);
                        assert!(linear.bias.is_none_or(|bias| bias.len() == linear.n), "{}", step.name);
                        let values = match &linear.weight {
                            Weight::Int8 { codes, multiplier, .. } => {
                                assert_eq!(multiplier.len(), linear.n, "{}", step.name);
                                codes.codes.len()
                            }
                            Weight::Float(values) => values.len(),
                        };
                        assert_eq!(values, linear.n * linear.k, "{}", step.name);
                    }
                    Op::Norm(norm, order) => {
                        assert_eq!((norm.gamma.len(), norm.beta.len()), (columns, columns), "{}", step.name);
                        let (tokens, windows) = match order {
                            Order::Tokens => (rows, rows),
                            Order::Windows { map, .. } => (map.tokens(), map.rows().len()),
                        };
                        let expected = match step.store {
                            Store::Residual { .. } => (out_rows, rows),
                            _ => (rows, out_rows),
                        };
                        assert_eq!((tokens, windows), expected, "{}", step.name);
                    }
                    Op::NormalizeHeads(op) => {
                        assert_eq!(3 * op.heads * op.head_dim, columns, "{}", step.name);
                        let codes = plan.tensor(step.output).element == Element::Code;
                        assert_eq!(op.columns(codes), out_columns, "{}", step.name);
                    }
                    Op::Attention(op) => {
                        assert_eq!(op.tokens * op.windows, rows, "{}", step.name);
                        let low = op.two_codes.iter().filter(|&&two| two).count();
                        assert_eq!((3 * op.heads + 2 * low) * op.head_dim, columns, "{}", step.name);
                        assert_eq!(op.scales.len(), op.heads, "{}", step.name);
                        assert_eq!(op.bias.expand().len(), op.heads * op.tokens * op.tokens, "{}", step.name);
                        assert!(op.regions.as_ref().is_none_or(|r| r.len() == rows), "{}", step.name);
                    }
                    Op::Merge(op) => {
                        assert_eq!((op.tokens, op.sources.len()), (rows, out_rows), "{}", step.name);
                        assert_eq!(out_columns, 4 * columns, "{}", step.name);
                        let gamma = op.norm.as_ref().map_or(out_columns, |norm| norm.gamma.len());
                        assert_eq!(gamma, out_columns, "{}", step.name);
                    }
                    Op::PositionEmbedding(table) => assert_eq!(table.len(), rows * columns, "{}", step.name),
                    Op::NormInPlace(norm) | Op::Pool(norm) => {
                        assert_eq!(norm.gamma.len(), columns, "{}", step.name);
                    }
                    Op::Quantize(order) => {
                        let windows = match order {
                            Order::Tokens => rows,
                            Order::Windows { map, .. } => map.rows().len(),
                        };
                        assert_eq!((windows, out_columns), (out_rows, columns), "{}", step.name);
                    }
                    Op::Patches(op) => {
                        assert_eq!((op.image * op.image, 3), (rows, columns), "{}", step.name);
                        assert_eq!(3 * op.patch * op.patch, out_columns, "{}", step.name);
                    }
                }
            }
        }
    }
}

#[test]
fn scales_and_multipliers_are_those_of_the_sites() {
    let model = model(small(), "default");
    let plan = Plan::new(&model).unwrap();
    let mut int8 = 0;
    for step in &plan.steps {
        let Op::Linear(linear) = &step.op else { continue };
        let Weight::Int8 { codes, input, multiplier, .. } = &linear.weight else { continue };
        let amax = model.site(Site::Input(linear.layer)).amax.unwrap();
        assert_eq!(input.scale(), amax / 127.0, "{}", step.name);
        for (row, multiplier) in multiplier.iter().enumerate() {
            assert_eq!(*multiplier, amax / 127.0 * codes.scale(row), "{} row {row}", step.name);
        }
        let producer = plan.steps.iter().find(|s| s.output == step.input).unwrap();
        assert_eq!(producer.store, Store::Codes(vec![*input]), "{} feeds {}", producer.name, step.name);
        int8 += 1;
    }
    assert_eq!(int8, 4 * 4 + 1, "the linear layers of four blocks and a reduction run in INT8");
}

#[test]
fn blocks_of_one_stage_and_shift_share_their_row_order() {
    let model = model(SwinConfig { depths: vec![4, 2], ..small() }, "default");
    let plan = Plan::new(&model).unwrap();
    let maps: Vec<_> = (plan.steps.iter())
        .filter_map(|step| match &step.op {
            Op::Norm(_, Order::Windows { map, shift }) => Some((map.clone(), *shift)),
            _ => None,
        })
        .collect();
    let shifts: Vec<usize> = maps.iter().map(|(_, shift)| *shift).collect();
    assert_eq!(shifts, [0, 2, 0, 2, 0, 0]);
    let same = |a: usize, b: usize| std::sync::Arc::ptr_eq(&maps[a].0, &maps[b].0);
    assert!(same(0, 2) && same(1, 3) && same(4, 5) && !same(0, 1) && !same(2, 4));
}

#[test]
fn weights_stored_as_codes_are_dequantized_where_their_product_runs_in_float() {
    let mut recipe = Recipe::shipped("default").unwrap().with_ptq(Ptq::Basic);
    recipe.rules.push(swinq_model::Rule {
        pattern: "layers.0.blocks.0.mlp.fc1.input".to_owned(),
        enable: Some(false),
        ..swinq_model::Rule::default()
    });
    let float = model(small(), "float").into_float().unwrap();
    let sites = all_sites(&float.config).into_iter();
    let model = quantize(&float, &recipe, &sites.map(|site| (site, 2.0)).collect()).unwrap();
    let plan = Plan::new(&model).unwrap();
    let step = plan.steps.iter().find(|step| step.name == "layers.0.blocks.0.mlp.fc1").unwrap();
    let Op::Linear(linear) = &step.op else { panic!("fc1 is a linear layer") };
    let Weight::Float(values @ Values::Codes(codes)) = &linear.weight else { panic!("{:?}", linear.weight) };
    assert_eq!(*values.read(), codes.dequantize().data);
}

#[test]
fn models_that_cannot_run_are_refused() {
    let mut damaged = model(small(), "default");
    damaged.params.remove("norm.bias");
    let message = Plan::new(&damaged).unwrap_err().to_string();
    assert!(message.contains("norm.bias"), "{message}");
}

#[test]
fn the_text_of_each_plan_is_as_recorded() {
    for config in [small(), padded(), second()] {
        for recipe in RECIPES {
            let model = model(config.clone(), recipe);
            let plan = Plan::new(&model).unwrap();
            let text = plan.to_string();
            assert_eq!(plan.outline().to_string(), text);
            let file = format!("tests/snapshots/{}_{recipe}.txt", config.name);
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
            if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
                std::fs::write(&path, &text).unwrap();
            }
            let expected = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{file}: {e}"));
            assert_eq!(text, expected, "{file}; UPDATE_SNAPSHOTS=1 records it anew");
        }
    }
}
