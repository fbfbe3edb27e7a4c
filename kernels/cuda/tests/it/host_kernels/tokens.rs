//! `tokens.cu`: tokens of every form, as the residual.

use half::{bf16, f16};
use swinq_cuda::ops::ResidualType;
use swinq_cuda::ops::patch::{InputForm, InputType};
use swinq_cuda::ops::tokens::TokensConfig;
use swinq_numerics::Size;
use swinq_testing::Rng;

use super::compiler::Compiler;
use super::launch::{Launch, bytes};
use super::rows::to_halves;

/// Grids whose tokens fill a tile, and less than one.
const SIZES: [(usize, Size, usize); 3] =
    [(1, Size::new(4, 8), 32), (2, Size::new(7, 5), 60), (1, Size::new(1, 33), 180)];

/// A value for each byte of each channel.
fn table(channels: usize) -> Vec<[f32; 256]> {
    (0..channels)
        .map(|channel| std::array::from_fn(|byte| (byte * 7 + channel) as f32 / 64.0 - 3.0))
        .collect()
}

fn launch(images: usize, size: Size, config: TokensConfig, form: InputForm, tokens: &[u8]) -> Launch {
    let (total, lookup) = (images * size.area(), table(config.channels));
    let launch = Launch::new(&config.program(form), config.launch(total)).activation(tokens);
    let launch = launch.array(lookup.as_flattened()).null().null().null().null().null().null();
    let launch = launch.activation(&vec![77_u8; total * config.channels * config.residual.bytes()]);
    let launch = launch.activation(&[0_u32]).int(size.height).int(size.width).int(size.width);
    let launch = launch.int(size.area()).int(total).int(config.channels);
    launch.float(0.0).float(0.0).float(0.0).float(0.0)
}

/// `values` in the order `[images, channels, tokens]`.
fn channels_first<T: Copy>(values: &[T], tokens: usize, channels: usize) -> Vec<T> {
    let image = |image: &[T]| -> Vec<T> {
        (0..channels).flat_map(|c| image.iter().skip(c).step_by(channels).copied()).collect()
    };
    assert_eq!(values.len() % (tokens * channels), 0);
    values.chunks(tokens * channels).flat_map(image).collect()
}

#[test]
fn tokens_of_every_form_become_the_residual() {
    let Some(compiler) = Compiler::get() else { return };
    for (images, size, channels) in SIZES {
        let mut rng = Rng(channels as u64);
        // Values with few bits, which every type holds.
        let raw = rng.bytes(images * size.area() * channels);
        let values: Vec<f32> = raw.iter().map(|&byte| f32::from(byte) / 4.0 - 30.0).collect();
        let looked_up =
            raw.iter().enumerate().map(|(at, &byte)| table(channels)[at % channels][usize::from(byte)]);
        let of_bytes: Vec<f32> = looked_up.collect();
        for element in [InputType::U8, InputType::F32, InputType::F16, InputType::Bf16] {
            for first in [false, true] {
                let order =
                    |x: &[f32]| if first { channels_first(x, size.area(), channels) } else { x.to_vec() };
                let ordered = order(&values);
                let (tokens, expected) = match element {
                    InputType::U8 if first => (channels_first(&raw, size.area(), channels), &of_bytes),
                    InputType::U8 => (raw.clone(), &of_bytes),
                    InputType::F32 => (bytes(&ordered), &values),
                    InputType::F16 => (bytes(&to_halves(&ordered)), &values),
                    InputType::Bf16 => {
                        let bits = ordered.iter().map(|&x| bf16::from_f32(x).to_bits());
                        (bytes(&bits.collect::<Vec<u16>>()), &values)
                    }
                };
                let form = InputForm { element, channels_first: first };
                for residual in [ResidualType::F32, ResidualType::F16] {
                    let config = TokensConfig { channels, residual };
                    let want = match residual {
                        ResidualType::F32 => bytes(expected),
                        ResidualType::F16 => bytes(&to_halves(expected)),
                    };
                    let got = launch(images, size, config, form, &tokens).outcome(compiler);
                    assert!(got == (want, 0), "{images} x {size} x {channels}, {form:?}, {residual:?}");
                }
            }
        }
    }
}

#[test]
fn a_token_that_is_not_finite_raises_the_flag() {
    let Some(compiler) = Compiler::get() else { return };
    let (size, config) = (Size::new(3, 11), TokensConfig { channels: 40, residual: ResidualType::F16 });
    let form = InputForm { element: InputType::F16, channels_first: false };
    for (value, flag) in [(f16::NAN, 1), (f16::INFINITY, 1), (f16::MAX, 0)] {
        let mut tokens = vec![f16::ONE.to_bits(); size.area() * config.channels];
        *tokens.last_mut().unwrap() = value.to_bits();
        assert_eq!(launch(1, size, config, form, &bytes(&tokens)).outcome(compiler).1, flag, "{value}");
    }
}
