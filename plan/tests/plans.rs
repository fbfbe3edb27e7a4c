//! Plans of small models under every shipped recipe: their ops, the source of their parameters, and their
//! text.
//!
//! `UPDATE_SNAPSHOTS=1` rewrites the texts in `tests/snapshots`; without it the tests compare with them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use swinq_calib::quantize;
use swinq_model::quantized::Param;
use swinq_model::site::all_sites;
use swinq_model::{Ptq, QuantizedModel, Recipe, Site, Size, SwinConfig, SwinVersion, WindowPolicy};
use swinq_numerics::MASKS;
use swinq_plan::{
    Element, Geometry, Norm, Op, Order, Plan, Rows, StepOutline, Store, TensorId, Values, Weight,
};
use swinq_testing::model::{random, small};

const RECIPES: [&str; 4] = ["float", "default", "mode1", "mode2"];

/// Two stages with shifted windows, padding, an absolute position embedding and no patch norm.
fn padded() -> SwinConfig {
    SwinConfig {
        name: "padded".to_owned(),
        image_size: Size::square(44),
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
        image_size: Size::square(44),
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
        Op::Patches(_) | Op::Quantize(_) | Op::QkNorm(_) => Vec::new(),
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
            let mut read: BTreeSet<usize> = plan.outputs.iter().map(|output| output.tensor.0).collect();
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
            let shape = |id: TensorId| (plan.own.rows(plan.tensor(id).rows), plan.tensor(id).columns);
            let map = |order: &Order| (plan.own.map(*order).tokens(), plan.own.map(*order).rows().len());
            let outline = plan.outline();
            for (step, outlined) in plan.steps.iter().zip(&outline.steps) {
                let ((rows, columns), (out_rows, out_columns)) = (shape(step.input), shape(step.output));
                match &step.op {
                    Op::Linear(linear) => {
                        assert_eq!((linear.k, linear.n), (columns, out_columns), "{}", step.name);
                        let macs = outline.macs(outlined);
                        assert_eq!(macs, (rows * columns * out_columns) as u64, "{}", step.name);
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
                        let expected = match step.store {
                            Store::Residual { .. } => (out_rows, rows),
                            _ => (rows, out_rows),
                        };
                        assert_eq!(map(order), expected, "{}", step.name);
                    }
                    Op::QkNorm(op) => {
                        assert_eq!(3 * op.heads * op.head_dim, columns, "{}", step.name);
                        let codes = plan.tensor(step.output).element == Element::Code;
                        assert_eq!(op.columns(codes), out_columns, "{}", step.name);
                    }
                    Op::Attention(op) => {
                        let windows = plan.own.masks(op.order).len();
                        assert_eq!(op.tokens * windows, rows, "{}", step.name);
                        let low = op.hi_lo.iter().filter(|&&two| two).count();
                        assert_eq!((3 * op.heads + 2 * low) * op.head_dim, columns, "{}", step.name);
                        assert_eq!(op.scales.len(), op.heads, "{}", step.name);
                        assert_eq!(op.bias.expand().len(), op.heads * op.tokens * op.tokens, "{}", step.name);
                        let regions = op.regions.as_ref().map(|regions| regions.len());
                        assert!(regions.is_none_or(|len| len == MASKS * op.tokens), "{}", step.name);
                    }
                    Op::Merge(op) => {
                        let sources = plan.own.merge(op.stage);
                        assert_eq!(
                            (sources.tokens(), sources.rows().len()),
                            (rows, 4 * out_rows),
                            "{}",
                            step.name
                        );
                        assert_eq!(out_columns, 4 * columns, "{}", step.name);
                        let gamma = op.norm.as_ref().map_or(out_columns, |norm| norm.gamma.len());
                        assert_eq!(gamma, out_columns, "{}", step.name);
                    }
                    Op::PositionEmbedding(table) => assert_eq!(table.len(), rows * columns, "{}", step.name),
                    Op::NormInPlace(norm) | Op::Pool(norm) => {
                        assert_eq!(norm.gamma.len(), columns, "{}", step.name);
                    }
                    Op::Quantize(order) => {
                        assert_eq!((map(order), out_columns), ((rows, out_rows), columns), "{}", step.name);
                    }
                    Op::Patches(op) => {
                        assert_eq!(
                            (rows, columns),
                            (config.image_size.area(), op.lookup.len()),
                            "{}",
                            step.name
                        );
                        assert_eq!(columns * op.patch * op.patch, out_columns, "{}", step.name);
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
    let orders: Vec<(usize, bool)> = (plan.steps.iter())
        .filter_map(|step| match step.op {
            Op::Norm(_, Order::Windows { stage, shifted }) => Some((stage, shifted)),
            _ => None,
        })
        .collect();
    assert_eq!(orders, [(0, false), (0, true), (0, false), (0, true), (1, false), (1, true)]);
    let shift = |(stage, shifted)| plan.own.grid(stage).shift_of(shifted).side().unwrap();
    assert_eq!(orders.iter().copied().map(shift).collect::<Vec<_>>(), [0, 2, 0, 2, 0, 0]);
    let map = |order: usize| plan.own.windows(orders[order].0, orders[order].1);
    assert!(std::sync::Arc::ptr_eq(map(4), map(5)) && !std::sync::Arc::ptr_eq(map(0), map(1)));
}

#[test]
fn a_geometry_of_another_size_fits_the_same_plan() {
    let config = SwinConfig { window_policy: WindowPolicy::HuggingFace, ape: false, ..padded() };
    let plan_of = |image_size: Size| {
        let model = model(SwinConfig { image_size, ..config.clone() }, "default");
        let plan = Plan::new(&model).unwrap();
        (plan.outline().steps, plan.own.as_ref().clone())
    };
    let (steps, own) = plan_of(config.image_size);
    let other = Size::new(44, 30);
    let geometry = Geometry::new(&config, other).unwrap();
    // A plan of a network that is built for the other size has the same steps, and that geometry as its own.
    let (other_steps, other_own) = plan_of(other);
    let unnamed =
        |steps: Vec<StepOutline>| steps.into_iter().map(|step| (step.name, step.store)).collect::<Vec<_>>();
    assert_eq!(unnamed(other_steps), unnamed(steps));
    assert_eq!(other_own, geometry);
    assert_ne!(own, geometry);
    assert_eq!(geometry.rows(Rows::Tokens(0)), 11 * 8);
    assert_eq!(geometry.rows(Rows::Windows(0)), 12 * 8);
    assert_eq!(geometry.rows(Rows::Tokens(1)), 6 * 4);
    // A grid smaller than the window would need other parameters.
    let error = Geometry::new(&config, Size::new(44, 12)).unwrap_err().to_string();
    assert!(error.contains("stage1") && error.contains("larger image"), "{error}");
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
