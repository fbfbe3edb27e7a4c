//! `output.cu`: feature maps and scores in each type and order.

use half::{bf16, f16};
use swinq_cuda::ops::ResidualType;
use swinq_cuda::ops::output::{MapsConfig, OutputForm, OutputType, values_launch, values_program};
use swinq_numerics::reference;
use swinq_testing::Rng;

use super::compiler::Compiler;
use super::launch::{Launch, bytes, floats, halves, words};
use super::rows::{half_floats, to_halves};

const EPSILON: f32 = 1e-5;
/// Flags of steps, none of which is set.
const CLEAR: [u32; 300] = [0; 300];

/// Tokens of the residual, whose values are exact in f16, and the parameters of a norm.
struct Case {
    images: usize,
    tokens: usize,
    columns: usize,
    residual: Vec<f32>,
    norm: Option<(Vec<f32>, Vec<f32>)>,
}

impl Case {
    fn new(images: usize, tokens: usize, columns: usize, norm: bool) -> Case {
        let mut rng = Rng((tokens + columns) as u64);
        let values: Vec<f32> = (0..images * tokens * columns).map(|_| rng.float() * 4.0 + 30.0).collect();
        let norm = norm.then(|| (rng.floats(columns, 2.0), rng.floats(columns, 1.0)));
        Case { images, tokens, columns, residual: half_floats(&bytes(&to_halves(&values))), norm }
    }

    fn launch(&self, residual: ResidualType, form: OutputForm, flags: &[u32]) -> Launch {
        launch(&[self], residual, form, flags)
    }

    /// The map of the reference, in the order `[images, columns, tokens]` or `[images, tokens, columns]`.
    fn expected(&self, channels_first: bool) -> Vec<f32> {
        let mut rows = self.residual.clone();
        if let Some((gamma, beta)) = &self.norm {
            for (row, out) in self.residual.chunks(self.columns).zip(rows.chunks_mut(self.columns)) {
                reference::layer_norm_row(row, gamma, beta, EPSILON, out);
            }
        }
        if !channels_first {
            return rows;
        }
        let of_image = |image: &[f32]| -> Vec<f32> {
            (0..self.columns)
                .flat_map(|column| image.iter().skip(column).step_by(self.columns).copied())
                .collect()
        };
        rows.chunks(self.tokens * self.columns).flat_map(of_image).collect()
    }
}

/// The launch that writes the maps of all `cases`.
fn launch(cases: &[&Case], residual: ResidualType, form: OutputForm, flags: &[u32]) -> Launch {
    let config = MapsConfig { residual };
    let shapes: Vec<_> = cases.iter().map(|case| [case.images, case.tokens, case.columns]).collect();
    let (firsts, shape) = config.launch(&shapes);
    let launch = Launch::new(&config.program(form), shape).activation(flags);
    let launch =
        cases.iter().zip(firsts).fold(launch.int(flags.len()).int(cases.len()), |launch, (case, first)| {
            let launch = match residual {
                ResidualType::F32 => launch.activation(&case.residual),
                ResidualType::F16 => launch.activation(&to_halves(&case.residual)),
            };
            let (gamma, beta) = case.norm.as_ref().map(|(g, b)| (&g[..], &b[..])).unzip();
            let launch = launch.optional(gamma).optional(beta);
            let launch = launch.activation(&vec![77_u8; case.residual.len() * form.element.bytes()]);
            let launch = launch.activation(&[0_u32]).int(case.tokens).int(config.tokens_each(case.columns));
            launch.int(case.columns).int(first).float(EPSILON)
        });
    // Each of the parameters' 16 maps has eight words of eight bytes.
    (8 * cases.len()..8 * 16).fold(launch, |launch, _| launch.null())
}

/// The bits of `values` in the type `element`.
fn in_type(values: &[f32], element: OutputType) -> Vec<u8> {
    match element {
        OutputType::F32 => bytes(values),
        OutputType::F16 => bytes(&values.iter().map(|&x| f16::from_f32(x).to_bits()).collect::<Vec<u16>>()),
        OutputType::Bf16 => bytes(&values.iter().map(|&x| bf16::from_f32(x).to_bits()).collect::<Vec<u16>>()),
    }
}

fn forms() -> impl Iterator<Item = OutputForm> {
    [OutputType::F32, OutputType::F16, OutputType::Bf16]
        .into_iter()
        .flat_map(|element| [false, true].map(|channels_first| OutputForm { element, channels_first }))
}

#[test]
fn maps_are_those_of_the_reference_in_every_type_and_order() {
    let Some(compiler) = Compiler::get() else { return };
    // Tokens around those of a block, even and odd numbers of them, and rows so long that a block holds few.
    let sizes = [
        (1, 1, 96),
        (2, 49, 40),
        (3, 66, 96),
        (1, 130, 200),
        (2, 7, 384),
        (2, 12, 1536),
        (1, 3, 4096),
        (1, 70, 180),
    ];
    for (images, tokens, columns) in sizes {
        for norm in [false, true] {
            let case = Case::new(images, tokens, columns, norm);
            for form in forms() {
                let (got, flag) = case.launch(ResidualType::F32, form, &CLEAR).outcome(compiler);
                let what = format!("{images} x {tokens} x {columns}, norm {norm}, {form:?}");
                assert_eq!(flag, 0, "{what}");
                assert!(got == in_type(&case.expected(form.channels_first), form.element), "{what}");
                if columns % ResidualType::F16.columns_at_once() == 0 {
                    // The values of the residual are exact in f16.
                    let half = case.launch(ResidualType::F16, form, &CLEAR).outcome(compiler);
                    assert!(half == (got, 0), "{what}, f16");
                }
            }
        }
    }
}

#[test]
fn one_launch_writes_maps_of_all_stages() {
    let Some(compiler) = Compiler::get() else { return };
    let mut cases = [(2, 9, 384, true), (2, 33, 96, false), (2, 130, 40, true)]
        .map(|(i, t, c, norm)| Case::new(i, t, c, norm));
    // The second map alone has a value that is not finite.
    cases[1].residual[5] = f32::INFINITY;
    let form = OutputForm { element: OutputType::F16, channels_first: true };
    let launch = launch(&cases.each_ref(), ResidualType::F16, form, &CLEAR);
    let buffers = launch.run(compiler);
    // Flags, then for each map the input, gamma and beta if it has a norm, the output and its flag.
    let mut at = 1;
    for (case, raised) in cases.iter().zip([0, 1, 0]) {
        at += if case.norm.is_some() { 3 } else { 1 };
        let want = in_type(&case.expected(true), form.element);
        assert!(buffers[at] == want, "{} tokens of {} columns", case.tokens, case.columns);
        assert_eq!(words(&buffers[at + 1]), [raised]);
        at += 2;
    }
}

#[test]
fn a_flag_of_a_step_makes_every_value_nan() {
    let Some(compiler) = Compiler::get() else { return };
    let case = Case::new(2, 40, 96, true);
    for (at, form) in [0, 255, 256, 299].into_iter().flat_map(|at| forms().map(move |form| (at, form))) {
        let mut flags = CLEAR;
        flags[at] = 1;
        let (out, raised) = case.launch(ResidualType::F16, form, &flags).outcome(compiler);
        let nan = match form.element {
            OutputType::F32 => floats(&out).iter().all(|x| x.is_nan()),
            OutputType::F16 => halves(&out).iter().all(|&x| f16::from_bits(x).is_nan()),
            OutputType::Bf16 => halves(&out).iter().all(|&x| bf16::from_bits(x).is_nan()),
        };
        assert!(nan && raised == 1, "flag {at}, {form:?}");
    }
}

#[test]
fn a_value_that_is_not_finite_in_the_type_of_the_output_raises_its_flag() {
    let Some(compiler) = Compiler::get() else { return };
    let mut case = Case::new(1, 65, 96, false);
    for (value, flags) in
        [(f32::NAN, [1, 1, 1]), (f32::INFINITY, [1, 1, 1]), (65520.0, [0, 1, 0]), (3.4e38, [0, 1, 1])]
    {
        case.residual[64 * 96 + 95] = value;
        for (form, expected) in forms().zip(flags.iter().flat_map(|&flag| [flag; 2])) {
            let (_, flag) = case.launch(ResidualType::F32, form, &CLEAR).outcome(compiler);
            assert_eq!(flag, expected, "{value}, {form:?}");
        }
    }
}

#[test]
fn scores_are_copied_in_each_type() {
    let Some(compiler) = Compiler::get() else { return };
    let mut rng = Rng(5);
    for count in [1, 10, 256, 1000] {
        let values = rng.floats(count, 9.0);
        for element in [OutputType::F32, OutputType::F16, OutputType::Bf16] {
            let launch = Launch::new(&values_program(element), values_launch(count));
            let launch = launch.activation(&values).activation(&vec![77_u8; count * element.bytes()]);
            let launch = launch.activation(&CLEAR).activation(&[0_u32]).int(CLEAR.len()).int(count);
            let buffers = launch.run(compiler);
            let clear = words(&buffers[3]) == [0];
            assert!(clear && buffers[1] == in_type(&values, element), "{count} values, {element:?}");
        }
    }
}
