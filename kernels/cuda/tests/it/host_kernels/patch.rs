//! Patch embedding from pixels to the residual stream: `patch.cu`, and `patch_half.cu` for an f16 residual.

use half::{bf16, f16};
use swinq_cuda::LaunchConfig;
use swinq_cuda::ops::linear::pack::pack_half;
use swinq_cuda::ops::patch::{InputForm, InputSite, InputType, PatchConfig};
use swinq_cuda::ops::{DeviceStore, ResidualType};
use swinq_numerics::{ImageEdge, Quantizer, Size, reference};
use swinq_testing::{Rng, step};

use super::compiler::Compiler;
use super::launch::{Launch, bytes, words};
use super::rows::{self, to_halves};

const EPSILON: f32 = 1e-5;

/// A patch embedding and its images.
#[derive(Clone)]
struct Case {
    images: usize,
    size: Size,
    config: PatchConfig,
    pixels: Vec<u8>,
    lookup: Vec<[f32; 256]>,
    /// `[columns, channels * patch * patch]`.
    weight: Vec<f32>,
    bias: Vec<f32>,
    multiplier: Vec<f32>,
    output: Option<Quantizer>,
    gamma: Vec<f32>,
    beta: Vec<f32>,
    position: Vec<f32>,
}

impl Case {
    /// Images of `height x width` pixels.
    fn new(images: usize, (height, width): (usize, usize), config: PatchConfig) -> Case {
        let mut rng = Rng((height + config.columns) as u64);
        let PatchConfig { channels, patch, columns, integer, output, .. } = config;
        let (size, k) = (Size::new(height, width), channels * patch * patch);
        let code = |byte: u8| f32::from(byte.cast_signed());
        // Codes of a quantized input, or normalised values.
        let pixel = |byte: usize| match integer {
            true => code((byte ^ 0x80) as u8),
            false => (byte as f32 / 255.0 - 0.45) / 0.225,
        };
        let weight: Vec<f32> = match integer {
            true => rng.bytes(columns * k).into_iter().map(code).collect(),
            false => rng.floats(columns * k, 0.5),
        };
        // For tensor cores, the f16 values have so few bits that sums are exact in any order.
        let rounded = |x: f32, parts: f32| if config.half() { (x * parts).round() / parts } else { x };
        let weight = weight.into_iter().map(|w| rounded(w, 64.0)).collect();
        let pixel = |byte| rounded(pixel(byte), 16.0);
        let table = |channel| std::array::from_fn(|b| pixel(b * (255 - channel) / 255));
        Case {
            pixels: rng.bytes(images * size.area() * channels),
            lookup: (0..channels).map(table).collect(),
            weight,
            bias: rng.floats(columns, 1.0),
            multiplier: rng.floats(columns, 0.001),
            output: output.then(|| step(0.0625)),
            gamma: rng.floats(columns, 2.0),
            beta: rng.floats(columns, 1.0),
            position: rng.floats(config.grid(size).area() * columns, 1.0),
            images,
            size,
            config,
        }
    }

    fn grid(&self) -> Size {
        self.config.grid(self.size)
    }

    /// Number of tokens of all images.
    fn tokens(&self) -> usize {
        self.images * self.grid().area()
    }

    fn k(&self) -> usize {
        self.config.channels * self.config.patch * self.config.patch
    }

    fn what(&self) -> String {
        format!("{} images of {}, {:?}", self.images, self.size, self.config)
    }

    fn store(&self) -> DeviceStore {
        if self.config.residual == ResidualType::F32 { DeviceStore::Float } else { DeviceStore::Half }
    }

    fn launch(&self) -> Launch {
        self.launch_as(self.config.launch(self.tokens()))
    }

    fn launch_as(&self, config: LaunchConfig) -> Launch {
        self.launch_of(config, InputForm::PIXELS, InputSite::Float, &self.pixels)
    }

    /// The launch for images of `form`, whose bytes are `pixels`.
    fn launch_of(&self, config: LaunchConfig, form: InputForm, site: InputSite, pixels: &[u8]) -> Launch {
        let PatchConfig { columns, integer, norm, position, .. } = self.config;
        let (tokens, k) = (self.tokens(), self.k());
        let recip = self.output.map_or(1.0, Quantizer::recip);
        let scale: Vec<f32> =
            self.multiplier.iter().map(|&m| if integer { m * recip } else { recip }).collect();
        let launch = Launch::new(&self.config.program(form, site), config).activation(pixels);
        let launch = if self.config.half() {
            let row = k.next_multiple_of(16) + 8;
            launch.array(&to_halves(self.lookup.as_flattened())).array(&pack_half(
                &self.weight,
                columns,
                k,
                row,
            ))
        } else {
            let transposed: Vec<f32> =
                (0..k * columns).map(|i| self.weight[i % columns * k + i / columns]).collect();
            launch.array(self.lookup.as_flattened()).array(&transposed)
        };
        let launch = launch
            .array(&self.bias)
            .optional((integer || self.output.is_some()).then_some(&scale[..]))
            .optional(norm.then_some(&self.gamma[..]))
            .optional(norm.then_some(&self.beta[..]))
            .optional(position.then_some(&self.position[..]));
        let launch = rows::output(launch, tokens, columns, self.store()).activation(&[0_u32]);
        let launch = launch.int(self.size.height).int(self.size.width).int(self.grid().width);
        let launch = launch.int(self.grid().area()).int(tokens);
        let launch = launch.int(columns).float(self.output.map_or(1.0, Quantizer::scale)).float(EPSILON);
        let (recip, scale) = match site {
            InputSite::Float => (1.0, 1.0),
            InputSite::Codes(q) | InputSite::Fake(q) => (q.recip(), q.scale()),
        };
        launch.float(recip).float(scale)
    }

    /// The values of the pixels times `factor`, in the order of the channels.
    fn values(&self, channels_first: bool, factor: f32) -> Vec<f32> {
        let (channels, area) = (self.config.channels, self.size.area());
        let value = |i: usize| {
            let (image, at) = (i / (area * channels), i % (area * channels));
            let (pixel, channel) =
                if channels_first { (at % area, at / area) } else { (at / channels, at % channels) };
            let byte = self.pixels[(image * area + pixel) * channels + channel];
            factor * self.lookup[channel][usize::from(byte)]
        };
        (0..self.pixels.len()).map(value).collect()
    }

    /// Rows `[tokens, k]` of normalised pixels; zeros beyond the image.
    fn patches(&self) -> Vec<f32> {
        let (grid, patch, channels) = (self.grid(), self.config.patch, self.config.channels);
        let value = |i: usize| {
            let (token, at) = (i / self.k(), i % self.k());
            let (image, token) = (token / grid.area(), token % grid.area());
            let (channel, at) = (at / (patch * patch), at % (patch * patch));
            let y = token / grid.width * patch + at / patch;
            let x = token % grid.width * patch + at % patch;
            if y >= self.size.height || x >= self.size.width {
                return 0.0;
            }
            let pixel = (image * self.size.height + y) * self.size.width + x;
            self.lookup[channel][usize::from(self.pixels[pixel * channels + channel])]
        };
        (0..self.tokens() * self.k()).map(value).collect()
    }

    /// The linear layer's output for a patch and a column, including the bias.
    fn value(&self, patch: &[f32], column: usize) -> f32 {
        let weight = &self.weight[column * self.k()..][..self.k()];
        if self.config.integer {
            let codes = |x: &[f32]| -> Vec<i8> { x.iter().map(|&x| x as i8).collect() };
            let sum = reference::accumulate_i8(&codes(patch), &codes(weight));
            return reference::epilogue_i8(
                sum,
                self.multiplier[column],
                self.bias[column],
                self.output,
                None,
            );
        }
        let mut sum = [f32::NAN];
        reference::accumulate_f32(patch, weight, &mut sum);
        reference::epilogue_f32(sum[0], self.bias[column], self.output, None)
    }

    /// The residual computed by the reference.
    fn want(&self) -> Vec<f32> {
        let (columns, mut residual) = (self.config.columns, Vec::new());
        for (token, patch) in self.patches().chunks_exact(self.k()).enumerate() {
            let mut row: Vec<f32> = (0..columns).map(|c| self.value(patch, c)).collect();
            if self.config.norm {
                let x = row.clone();
                reference::layer_norm_row(&x, &self.gamma, &self.beta, EPSILON, &mut row);
            }
            if self.config.position {
                let at = token % (self.position.len() / columns) * columns;
                row.iter_mut().zip(&self.position[at..]).for_each(|(x, p)| *x += p);
            }
            residual.extend(row);
        }
        residual
    }
}

/// Patches of 4 pixels of 3 channels, with a norm.
fn base(residual: ResidualType) -> PatchConfig {
    PatchConfig {
        channels: 3,
        patch: 4,
        edge: ImageEdge::Padded,
        columns: 96,
        integer: false,
        output: false,
        norm: true,
        position: false,
        residual,
    }
}

/// Checks that the residual is that of the reference.
fn check(compiler: &Compiler, case: &Case) {
    assert!(!case.config.half());
    let got = case.launch().run(compiler);
    assert_eq!(words(&got[got.len() - 1]), [0], "{}: the flag", case.what());
    rows::check(&got[got.len() - 2], &case.want(), case.config.columns, case.store(), &case.what());
}

/// Checks that an f16 residual is near the reference: sums are exact, and the norm is f32, in two passes.
fn check_half(compiler: &Compiler, case: &Case) {
    assert!(case.config.half());
    let want: Vec<f64> = case.want().into_iter().map(f64::from).collect();
    let config = case.config.launch(case.tokens());
    let one_block = LaunchConfig { grid: [1, 1, 1], ..config };
    let [got, walked] = [config, one_block].map(|config| case.launch_as(config).outcome(compiler).0);
    assert!(got == walked, "{}: a block that walks gives other bits", case.what());
    rows::check_near(&got, &want, 5e-6, case.config.columns, case.store(), &case.what());
}

/// One patch; full and partial blocks of 32 tokens; patches of 1, 2 and 4 pixels.
#[test]
fn the_residual_is_the_reference() {
    let Some(compiler) = Compiler::get() else { return };
    let base = base(ResidualType::F32);
    let cases = [
        Case::new(1, (4, 4), base),
        Case::new(2, (28, 28), PatchConfig { position: true, ..base }),
        Case::new(2, (16, 16), PatchConfig { integer: true, ..base }),
        Case::new(
            3,
            (12, 12),
            PatchConfig { integer: true, output: true, columns: 40, residual: ResidualType::F16, ..base },
        ),
        Case::new(1, (18, 18), PatchConfig { patch: 2, columns: 40, norm: false, position: true, ..base }),
        Case::new(
            1,
            (7, 7),
            PatchConfig {
                patch: 1,
                columns: 8,
                output: true,
                norm: false,
                residual: ResidualType::F16,
                ..base
            },
        ),
    ];
    cases.iter().for_each(|case| check(compiler, case));
}

/// Rectangles, patches that extend beyond the right edge, the lower edge or both, images smaller than a
/// patch, and 1, 2, 4 and 16 channels.
#[test]
fn images_of_any_size_and_channels_give_the_reference() {
    let Some(compiler) = Compiler::get() else { return };
    let base = base(ResidualType::F32);
    let integer = PatchConfig { integer: true, columns: 40, ..base };
    let channels = |channels| PatchConfig { channels, columns: 40, ..base };
    let cases = [
        Case::new(2, (12, 20), PatchConfig { position: true, ..base }),
        Case::new(2, (9, 20), base),
        Case::new(2, (12, 21), PatchConfig { position: true, ..integer }),
        Case::new(1, (15, 10), integer),
        Case::new(3, (1, 2), integer),
        Case::new(2, (5, 8), channels(1)),
        Case::new(1, (6, 9), channels(2)),
        Case::new(2, (9, 7), PatchConfig { integer: true, position: true, ..channels(4) }),
        Case::new(1, (7, 5), channels(16)),
        Case::new(1, (5, 6), PatchConfig { patch: 3, ..channels(1) }),
        Case::new(2, (9, 22), PatchConfig { edge: ImageEdge::Cut, ..integer }),
        Case::new(2, (9, 22), PatchConfig { edge: ImageEdge::Cut, ..base }),
        Case::new(2, (15, 7), PatchConfig { edge: ImageEdge::Cut, ..channels(2) }),
    ];
    cases.iter().for_each(|case| check(compiler, case));
}

/// Covers full and partial groups of 64 tokens, patches of 1, 2 and 4 pixels, and blocks that process several
/// groups.
#[test]
fn an_f16_residual_is_near_the_reference() {
    let Some(compiler) = Compiler::get() else { return };
    let base = base(ResidualType::F16);
    let cases = [
        Case::new(1, (4, 4), base),
        Case::new(2, (32, 32), PatchConfig { position: true, ..base }),
        Case::new(3, (28, 28), PatchConfig { integer: true, ..base }),
        Case::new(2, (24, 24), PatchConfig { integer: true, output: true, columns: 128, ..base }),
        Case::new(1, (28, 28), PatchConfig { output: true, columns: 256, position: true, ..base }),
        Case::new(1, (18, 18), PatchConfig { patch: 2, columns: 32, norm: false, position: true, ..base }),
        Case::new(1, (9, 9), PatchConfig { patch: 1, columns: 64, output: true, norm: false, ..base }),
    ];
    cases.iter().for_each(|case| check_half(compiler, case));
}

/// As for an f32 residual. If a patch extends beyond the image, pixels are read byte by byte, and a block
/// that walks writes zeros where the group before had pixels.
#[test]
fn images_of_any_size_and_channels_are_near_the_reference() {
    let Some(compiler) = Compiler::get() else { return };
    let base = PatchConfig { columns: 32, ..base(ResidualType::F16) };
    let integer = PatchConfig { integer: true, ..base };
    let channels = |channels| PatchConfig { channels, ..base };
    let cases = [
        Case::new(2, (12, 20), PatchConfig { position: true, ..base }),
        Case::new(2, (33, 40), base),
        Case::new(2, (32, 38), PatchConfig { position: true, ..integer }),
        Case::new(1, (35, 41), integer),
        Case::new(3, (1, 2), integer),
        Case::new(2, (5, 8), channels(1)),
        Case::new(1, (6, 10), channels(2)),
        Case::new(2, (9, 7), PatchConfig { integer: true, position: true, ..channels(4) }),
        Case::new(1, (7, 12), channels(16)),
        Case::new(1, (5, 6), PatchConfig { patch: 3, ..channels(1) }),
        Case::new(2, (9, 22), PatchConfig { edge: ImageEdge::Cut, ..integer }),
    ];
    cases.iter().for_each(|case| check_half(compiler, case));
}

/// Images of two sizes pass through the same program with the same weights.
#[test]
fn one_program_embeds_images_of_several_sizes() {
    let Some(compiler) = Compiler::get() else { return };
    let small = Case::new(1, (8, 12), base(ResidualType::F32));
    let of_size = |images, (height, width)| {
        let Case { pixels, position, .. } = Case::new(images, (height, width), small.config);
        Case { images, size: Size::new(height, width), pixels, position, ..small.clone() }
    };
    let sizes = [(1, (8, 12)), (2, (13, 6)), (1, (8, 12)), (1, (20, 4))];
    sizes.into_iter().for_each(|(images, size)| check(compiler, &of_size(images, size)));
}

/// The bytes of `values` in the type `element`.
fn in_type(values: &[f32], element: InputType) -> Vec<u8> {
    match element {
        InputType::U8 => panic!("not a type of normalised values"),
        InputType::F32 => bytes(values),
        InputType::F16 => bytes(&to_halves(values)),
        InputType::Bf16 => bytes(&values.iter().map(|&x| bf16::from_f32(x).to_bits()).collect::<Vec<u16>>()),
    }
}

fn forms() -> impl Iterator<Item = InputForm> {
    [InputType::F32, InputType::F16, InputType::Bf16]
        .into_iter()
        .flat_map(|element| [false, true].map(|channels_first| InputForm { element, channels_first }))
}

/// Whole images and images that patches extend beyond, with each site of the input.
fn float_cases(residual: ResidualType) -> Vec<(Case, InputSite)> {
    let base = PatchConfig { columns: 32, ..base(residual) };
    let integer = PatchConfig { integer: true, ..base };
    let quantizer = step(0.0625);
    vec![
        (Case::new(2, (12, 20), base), InputSite::Float),
        (Case::new(2, (9, 22), PatchConfig { channels: 2, ..base }), InputSite::Float),
        (Case::new(2, (11, 7), integer), InputSite::Codes(quantizer)),
        (Case::new(1, (13, 12), PatchConfig { patch: 3, ..base }), InputSite::Fake(quantizer)),
    ]
}

#[test]
fn normalised_values_of_every_type_and_order_give_the_residual_of_their_bytes() {
    let Some(compiler) = Compiler::get() else { return };
    let [exact, half] = [ResidualType::F32, ResidualType::F16].map(float_cases);
    let exact = exact.into_iter().flat_map(|case| forms().map(move |form| (case.clone(), form)));
    // Each case of an f16 residual has a form of its own.
    let half = half.into_iter().zip(forms().skip(1));
    for ((mut case, site), form) in exact.chain(half) {
        // The table has values that the type and the site represent.
        let exact = |x: f32| match (form.element, site) {
            (_, InputSite::Codes(_)) => x,
            (_, InputSite::Fake(q)) => q.fake(x),
            (InputType::F16, _) => f16::from_f32(x).to_f32(),
            (InputType::Bf16, _) => bf16::from_f32(x).to_f32(),
            _ => x,
        };
        case.lookup.iter_mut().for_each(|table| *table = table.map(exact));
        let factor = if let InputSite::Codes(q) = site { q.scale() } else { 1.0 };
        let values = in_type(&case.values(form.channels_first, factor), form.element);
        let config = case.config.launch(case.tokens());
        let got = case.launch_of(config, form, site, &values).outcome(compiler);
        assert!(got == case.launch().outcome(compiler), "{}, {form:?}, {site:?}", case.what());
    }
}

#[test]
fn a_value_that_is_not_finite_raises_the_flag() {
    let Some(compiler) = Compiler::get() else { return };
    for ((case, site), form) in [ResidualType::F32, ResidualType::F16]
        .into_iter()
        .flat_map(|residual| float_cases(residual).into_iter().skip(2).take(1))
        .flat_map(|case| forms().map(move |form| (case.clone(), form)))
    {
        let mut values = case.values(form.channels_first, 0.0625);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let last = values.len() - 1;
            values[last] = bad;
            let config = case.config.launch(case.tokens());
            let launch = case.launch_of(config, form, site, &in_type(&values, form.element));
            assert_eq!(launch.outcome(compiler).1, 1, "{bad}, {form:?}, {}", case.what());
        }
    }
}
