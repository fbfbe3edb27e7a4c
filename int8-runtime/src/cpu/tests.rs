//! Plans written by hand, with steps that no Swin V1 has, against the reference.

use std::sync::Arc;

use swinq_kernels::Cpu;
use swinq_model::{Size, SwinConfig, WindowPolicy};
use swinq_numerics::reference::{add_layer_norm_row, layer_norm_row};
use swinq_numerics::{ImageEdge, Images, PAD, Quantizer};
use swinq_plan::{
    Element, Geometry, Linear, Norm, Op, Order, Outline, Output, OutputKind, Patches, Plan, Rows, Step,
    Store, TensorId, TensorSpec, Values, Weight,
};

use super::{CpuOptions, CpuRunner, Packed};
use crate::engine::{MOST_OUTPUTS, OutputForm};
use crate::trace::{Traced, TracedValues};

/// Side of an image in pixels.
const SIDE: usize = 6;
/// Channels: a patch's pixels.
const C: usize = 12;
const EPS: f32 = 1e-5;

/// A grid of 3 x 3 tokens, in patches of 2 x 2 pixels, with windows of 2 x 2 tokens, so that it is padded.
fn config() -> SwinConfig {
    SwinConfig {
        image_size: Size::square(SIDE),
        patch_size: 2,
        embed_dim: C,
        depths: vec![2],
        num_heads: vec![1],
        window_size: Size::square(2).into(),
        window_policy: WindowPolicy::Pad,
        ..SwinConfig::default()
    }
}

/// The windows of a shifted block.
const WINDOWS: Order = Order::Windows { stage: 0, shifted: true };

fn values(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + i / 5) % 23) as f32 * step - 0.4).collect()
}

/// The parameters that a hand-made plan borrows.
struct Params {
    gamma: Vec<f32>,
    beta: Vec<f32>,
    weight: Vec<f32>,
}

/// Four steps: pixels to the residual; codes of the residual in windows; a linear layer in float; the norm of
/// its result, added to the residual.
///
/// The linear layer reads f32, so the quantizer's result is stored dequantized.
fn plan<'m>(params: &'m Params, quantizer: Quantizer, residual: Store) -> Plan<'m> {
    let spec = |rows, columns| TensorSpec { rows, columns, element: Element::F32 };
    let image = TensorSpec { rows: Rows::Pixels, columns: 3, element: Element::Pixel };
    let lookup = (0..3).map(|c| std::array::from_fn(|b| b as f32 / 64.0 - c as f32)).collect();
    let patches = Patches { patch: 2, lookup, edge: ImageEdge::Padded };
    let linear = Linear {
        layer: swinq_model::Linear::Head,
        n: C,
        k: C,
        weight: Weight::Float(Values::Float(&params.weight)),
        bias: None,
        output: None,
        gelu: None,
        order: WINDOWS,
    };
    let norm = Norm { gamma: Values::Float(&params.gamma), beta: Values::Float(&params.beta), eps: EPS };
    let step = |name: &str, op, store, input, output| Step {
        name: name.to_owned(),
        op,
        store,
        input: TensorId(input),
        output: TensorId(output),
        macs_per_row: 0,
    };
    Plan {
        tensors: vec![image, spec(Rows::Tokens(0), C), spec(Rows::Windows(0), C), spec(Rows::Windows(0), C)],
        steps: vec![
            step("patches", Op::Patches(patches), Store::F32, 0, 1),
            step("quantize", Op::Quantize(WINDOWS), Store::Fake(quantizer), 1, 2),
            step("linear", Op::Linear(linear), Store::F32, 2, 3),
            step("norm", Op::Norm(norm, WINDOWS), residual, 3, 1),
        ],
        outputs: vec![Output { name: "residual".to_owned(), kind: OutputKind::Logits, tensor: TensorId(1) }],
        own: Arc::new(Geometry::new(&config(), Size::square(SIDE)).unwrap()),
    }
}

fn floats<'a>(traced: &'a [Traced], name: &str) -> &'a [f32] {
    let launch = traced.iter().find(|launch| launch.name == name).unwrap();
    let TracedValues::Float(values) = &launch.values else { panic!("{name} wrote codes") };
    values
}

#[test]
fn the_residual_is_quantized_in_window_order_and_a_norm_adds_to_it() {
    let params = Params { gamma: values(C, 0.1), beta: values(C, 0.05), weight: values(C * C, 0.03) };
    let quantizer = Quantizer::new(0.02).unwrap();
    let (branch, shortcut) = (Quantizer::new(0.03), Quantizer::new(0.04));
    let (images, pixels) = (3, (0..3 * SIDE * SIDE * 3).map(|i| (i * 31 % 256) as u8).collect::<Vec<_>>());
    for (branch, shortcut) in [(None, None), (branch, shortcut)] {
        for cpu in Cpu::available() {
            let plan = plan(&params, quantizer, Store::Residual { branch, shortcut });
            let outline: Arc<Outline> = Arc::new(plan.outline());
            let packed = Arc::new(Packed::new(&plan, &outline, cpu));
            let options = CpuOptions {
                threads: 2,
                max_batch: images,
                image_threads: 0,
                max_memory: 0,
                max_pixels: 0,
                cpu,
            };
            let runner = CpuRunner::new(&packed, &config(), &options, None).unwrap();
            let input = Images::new(Size::square(SIDE), &pixels[..]);
            let traced = runner.trace(images, input).unwrap();

            let (map, tokens) = (plan.own.map(WINDOWS), plan.own.rows(Rows::Tokens(0)));
            let (mut residual, x) = (floats(&traced, "patches").to_vec(), floats(&traced, "linear"));
            let row = |image: usize, i: usize| image * map.rows().len() + i;
            for image in 0..images {
                for (i, &token) in map.rows().iter().enumerate() {
                    let gathered = &floats(&traced, "quantize")[row(image, i) * C..][..C];
                    if token == PAD {
                        assert_eq!(gathered, [0.0; C], "{cpu}: padding row {i}");
                        continue;
                    }
                    let token = &mut residual[(image * tokens + token as usize) * C..][..C];
                    let expected: Vec<f32> = token.iter().map(|&v| quantizer.fake(v)).collect();
                    assert_eq!(gathered, expected, "{cpu}: row {i} of image {image}");
                    let x = &x[row(image, i) * C..][..C];
                    add_layer_norm_row(x, &params.gamma, &params.beta, EPS, [branch, shortcut], token);
                }
            }
            assert_eq!(floats(&traced, "norm"), residual, "{cpu}");

            let mut fused = vec![0.0_f32; images * tokens * C];
            let mut outputs = [const { None }; MOST_OUTPUTS];
            outputs[0] = Some(bytemuck::cast_slice_mut(&mut fused));
            runner
                .infer((images, images), input, &mut outputs, &[OutputForm::default(); MOST_OUTPUTS])
                .unwrap();
            assert_eq!(fused, residual, "{cpu}: all launches of an inference");

            let mut plain = vec![0.0; C];
            layer_norm_row(&x[..C], &params.gamma, &params.beta, EPS, &mut plain);
            assert!(plain.iter().any(|v| *v != plain[0]), "the norm is constant");
        }
    }
}

#[test]
fn a_runner_beside_another_has_its_threads_and_no_memory_of_its_own() {
    let params = Params { gamma: values(C, 0.1), beta: values(C, 0.05), weight: values(C * C, 0.03) };
    let plan = plan(&params, Quantizer::new(0.02).unwrap(), Store::Residual { branch: None, shortcut: None });
    let outline: Arc<Outline> = Arc::new(plan.outline());
    let options = CpuOptions { threads: 2, ..CpuOptions::detect().unwrap() };
    let packed = Arc::new(Packed::new(&plan, &outline, options.cpu));
    let first = CpuRunner::new(&packed, &config(), &options, None).unwrap();
    let held = first.held_bytes();
    let second = CpuRunner::new(&packed, &config(), &options, Some(first.shared_lanes())).unwrap();
    assert!(Arc::ptr_eq(&first.shared_lanes(), &second.shared_lanes()));
    assert_eq!((held > 0, second.held_bytes()), (true, held));
}
