//! `qk_norm.cu`: the operands of cosine attention.

use swinq_cuda::ops::attention::{HEAD_DIM, WIDE_HEAD_DIM, low_columns};
use swinq_cuda::ops::qk_norm::QkNormConfig;
use swinq_cuda::ops::{ResidualType, row_stride};
use swinq_numerics::{Quantizer, reference};
use swinq_testing::{Rng, assert_same, step};

use super::compiler::Compiler;
use super::launch::{Launch, words};
use super::rows::{half_floats, to_halves};

/// The fill byte of the output before a launch.
const UNTOUCHED: u8 = 77;

/// Queries, keys and values of some tokens, in values that are exact in f16.
struct Case {
    rows: usize,
    head_dim: usize,
    hi_lo: Vec<bool>,
    x: Vec<f32>,
}

impl Case {
    fn new(rows: usize, head_dim: usize, hi_lo: &[bool]) -> Case {
        let values = Rng(rows as u64).floats(rows * 3 * hi_lo.len() * head_dim, 3.0);
        let mut x = half_floats(&super::launch::bytes(&to_halves(&values)));
        // A vector of zeros, and one with a single value.
        x[..head_dim].fill(0.0);
        if rows > 1 {
            let width = 3 * hi_lo.len() * head_dim;
            x[width..width + head_dim - 1].fill(0.0);
        }
        Case { rows, head_dim, hi_lo: hi_lo.to_vec(), x }
    }

    fn heads(&self) -> usize {
        self.hi_lo.len()
    }

    fn columns(&self, codes: bool) -> usize {
        let low = self.hi_lo.iter().filter(|&&two| two && codes).count();
        (3 * self.heads() + 2 * low) * self.head_dim
    }

    /// The output and the overflow flag.
    fn run(&self, compiler: &Compiler, input: ResidualType, sites: Option<[Quantizer; 3]>) -> [Vec<u8>; 2] {
        let config = QkNormConfig { input, codes: sites.is_some(), head_dim: self.head_dim };
        let launch = Launch::new(&config.program(), QkNormConfig::launch(self.rows, self.heads()));
        let launch = match input {
            ResidualType::F32 => launch.activation(&self.x),
            ResidualType::F16 => launch.activation(&to_halves(&self.x)),
        };
        let low =
            (config.codes && self.hi_lo.contains(&true)).then(|| low_columns(&self.hi_lo, self.head_dim));
        let bytes = if config.codes { 1 } else { 2 };
        let stride = row_stride(self.columns(config.codes), bytes);
        let launch = launch.optional(low.as_deref()).activation(&vec![UNTOUCHED; self.rows * stride * bytes]);
        let launch = launch.activation(&[0_u32]).int(self.rows).int(self.heads()).int(stride);
        let recips = sites.map_or([1.0; 3], |sites| sites.map(Quantizer::recip));
        let mut buffers = recips.into_iter().fold(launch, Launch::float).run(compiler);
        let flag = buffers.pop().unwrap();
        [buffers.pop().unwrap(), flag]
    }

    /// Normalised queries and keys, and the values.
    fn normalized(&self) -> Vec<f32> {
        let mut y = self.x.clone();
        for row in y.chunks_exact_mut(3 * self.heads() * self.head_dim) {
            row.chunks_exact_mut(self.head_dim).take(2 * self.heads()).for_each(reference::normalize);
        }
        y
    }

    /// The rows of codes.
    fn codes(&self, sites: [Quantizer; 3]) -> Vec<u8> {
        let columns = self.heads() * self.head_dim;
        let mut codes = Vec::new();
        for row in self.normalized().chunks_exact(3 * columns) {
            for (part, site) in row.chunks_exact(columns).zip(sites) {
                codes.extend(part.iter().map(|&y| site.code(y).cast_unsigned()));
            }
            for (part, site) in row.chunks_exact(columns).zip(sites).take(2) {
                for head in (0..self.heads()).filter(|&head| self.hi_lo[head]) {
                    let low = |&y: &f32| reference::lo_code(y * site.recip()).cast_unsigned();
                    codes.extend(part[head * self.head_dim..][..self.head_dim].iter().map(low));
                }
            }
        }
        codes
    }
}

fn cases() -> [Case; 5] {
    [
        Case::new(49, HEAD_DIM, &[false; 3]),
        Case::new(64, HEAD_DIM, &[false, true, true]),
        Case::new(1, HEAD_DIM, &[true]),
        Case::new(13, HEAD_DIM, &[true, false, false, true, false]),
        Case::new(13, WIDE_HEAD_DIM, &[true, false, true]),
    ]
}

#[test]
fn codes_are_those_of_the_reference() {
    let Some(compiler) = Compiler::get() else { return };
    let sites = [1.0 / 127.0, 1.0 / 127.0, 0.02].map(step);
    for case in cases() {
        let want = case.codes(sites);
        for input in [ResidualType::F16, ResidualType::F32] {
            let [got, flag] = case.run(compiler, input, Some(sites));
            assert_eq!(got, want, "{} rows of {:?}, {input:?}", case.rows, case.hi_lo);
            assert_eq!(words(&flag), [0]);
        }
    }
}

#[test]
fn halves_are_those_of_the_reference_rounded_once() {
    let Some(compiler) = Compiler::get() else { return };
    for case in cases() {
        let want = half_floats(&super::launch::bytes(&to_halves(&case.normalized())));
        for input in [ResidualType::F16, ResidualType::F32] {
            let [got, _] = case.run(compiler, input, None);
            assert_same(&half_floats(&got), &want, &format!("{} rows, {input:?}", case.rows));
        }
    }
}

#[test]
fn a_value_that_is_not_finite_raises_the_flag() {
    let Some(compiler) = Compiler::get() else { return };
    let mut case = Case::new(5, HEAD_DIM, &[true, false]);
    let last = case.x.len() - 1;
    for (at, value) in [(40, f32::INFINITY), (last, f32::NAN), (last, f32::NEG_INFINITY)] {
        let kept = std::mem::replace(&mut case.x[at], value);
        let [_, flag] = case.run(compiler, ResidualType::F16, Some([step(0.01); 3]));
        assert_eq!(words(&flag), [1], "{value} at {at}");
        case.x[at] = kept;
    }
}
