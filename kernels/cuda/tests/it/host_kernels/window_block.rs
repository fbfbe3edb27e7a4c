//! `window_block.cu`: the attention branch of a transformer block.

use swinq_cuda::ops::Int8Linear;
use swinq_cuda::ops::attention::HEAD_DIM;
use swinq_cuda::ops::window_block::{
    WindowBlockConfig, WindowBlockSpec, WindowForm, constants, hi_lo, scales,
};
use swinq_numerics::{
    AttentionQuant, AttentionSpec, HeadScores, MASKS, PAD, Probs, Quantizer, RowStore, reference,
};
use swinq_testing::{Rng, assert_varied, step, window_map};

use super::compiler::Compiler;
use super::launch::{Launch, words};
use super::rows::{half_floats, to_halves};

const EPSILON: f32 = 1e-5;
const SCALE: f32 = 0.176_776_7;
/// Shared memory of a block on sm_90.
const SHARED: u32 = 227 << 10;

/// An INT8 linear layer.
#[derive(Clone)]
struct Layer {
    codes: Vec<i8>,
    multiplier: Vec<f32>,
    bias: Vec<f32>,
}

impl Layer {
    /// Results for random codes have a standard deviation of about 1.
    fn new(rng: &mut Rng, n: usize, k: usize) -> Layer {
        let codes = rng.bytes(n * k).into_iter().map(u8::cast_signed).collect();
        let multiplier =
            rng.floats(n, 1.0).iter().map(|x| (0.5 + x.abs()) * 3e-4 / (k as f32).sqrt()).collect();
        Layer { codes, multiplier, bias: rng.floats(n, 0.5) }
    }

    fn int8(&self, input: Quantizer) -> Int8Linear<'_> {
        Int8Linear { codes: &self.codes, multiplier: &self.multiplier, bias: Some(&self.bias), input }
    }

    fn apply(&self, x: &[i8]) -> Vec<f32> {
        let column = |(c, weight): (usize, &[i8])| {
            let sum = reference::accumulate_i8(x, weight);
            reference::epilogue_i8(sum, self.multiplier[c], self.bias[c], None, None)
        };
        self.codes.chunks_exact(x.len()).enumerate().map(column).collect()
    }
}

/// Windows of several images, with padding, and the parameters of a block.
#[derive(Clone)]
struct Case {
    form: WindowForm,
    heads: usize,
    /// The factor of `QK^T` of each head.
    scales: Vec<f32>,
    /// Whether each head has hi and lo codes for each query and key; empty if none has.
    hi_lo: Vec<bool>,
    /// Number of tokens of a window, of windows of an image, and of images.
    n: usize,
    windows: usize,
    images: usize,
    /// Token of each row of an image's windows, and the number of tokens.
    map: Vec<u32>,
    tokens: usize,
    residual: Vec<f32>,
    norm: (Vec<f32>, Vec<f32>),
    qkv: Layer,
    proj: Layer,
    bias: Vec<f32>,
    /// The region of each token under each mask, `[MASKS, n]`.
    regions: Option<Vec<u8>>,
    /// The mask of each window of an image, if one is masked.
    masks: Option<Vec<u8>>,
}

impl Case {
    /// The first window is not masked, and the others have the other masks in turn.
    fn new(heads: usize, n: usize, windows: usize, images: usize, masked: bool) -> Case {
        let mut rng = Rng((100 * heads + n) as u64);
        let channels = heads * HEAD_DIM;
        // The map is that of one of two equal images.
        let (map, _) = window_map(2 * windows * n);
        let values: Vec<f32> =
            (0..images * map.tokens() * channels).map(|_| rng.float() * 3.0 + 5.0).collect();
        Case {
            form: WindowForm::PreNorm,
            heads,
            scales: vec![SCALE; heads],
            hi_lo: Vec::new(),
            n,
            windows,
            images,
            tokens: map.tokens(),
            residual: half_floats(&super::launch::bytes(&to_halves(&values))),
            norm: (rng.floats(channels, 1.5), rng.floats(channels, 0.3)),
            qkv: Layer::new(&mut rng, 3 * channels, channels),
            proj: Layer::new(&mut rng, channels, channels),
            bias: rng.floats(heads * n * n, 2.0),
            regions: masked.then(|| {
                (0..MASKS * n).map(|i| if i < n { 3 } else { (i % (4 + i / n) / 2) as u8 }).collect()
            }),
            masks: masked.then(|| (0..windows).map(|window| (3 * window % MASKS) as u8).collect()),
            map: map.rows().to_vec(),
        }
    }

    /// The same in the form of Swin V2; every second head has hi and lo codes if `hi_lo`.
    fn cosine(self, hi_lo: bool) -> Case {
        let of_head = |head: usize| hi_lo && head.is_multiple_of(2);
        let scales = (0..self.heads).map(|head| if of_head(head) { 40.0 } else { 9.0 }).collect();
        let low = (0..self.heads).filter(|_| hi_lo).map(of_head).collect();
        Case { form: WindowForm::PostNorm { hi_lo }, scales, hi_lo: low, ..self }
    }

    fn post_norm(&self) -> bool {
        self.form != WindowForm::PreNorm
    }

    fn spec(&self) -> WindowBlockSpec<'_> {
        WindowBlockSpec {
            post_norm: self.post_norm(),
            norm: (&self.norm.0, &self.norm.1),
            epsilon: EPSILON,
            qkv: self.qkv.int8(self.input()),
            attention: AttentionSpec {
                heads: self.heads,
                head_dim: HEAD_DIM,
                tokens: self.n,
                scales: &self.scales,
                hi_lo: &self.hi_lo,
                mask: -100.0,
                bias: &self.bias,
                regions: self.regions.as_deref(),
                quant: self.quant(),
                store: RowStore::F32,
            },
            proj: self.proj.int8(projection_input()),
        }
    }

    /// Runs the kernel on a device with one multiprocessor: the groups of a block loop over the windows.
    fn run(&self, compiler: &Compiler, residual: &[u16]) -> (Vec<f32>, u32) {
        let config = WindowBlockConfig::new(self.form, self.heads, self.n, SHARED).unwrap();
        let (spec, total) = (self.spec(), self.images * self.windows);
        let padded = |mask: &[u8]| [mask, &vec![0; 64 - self.n]].concat();
        let regions: Option<Vec<u8>> =
            self.regions.as_ref().map(|regions| regions.chunks_exact(self.n).flat_map(padded).collect());
        let launch = Launch::new(&config.program(), config.launch(total, 1))
            .activation(residual)
            .array(&self.map)
            .array(&constants(&config, &spec))
            .optional(regions.as_deref())
            .optional(self.masks.as_deref())
            .activation(&[0_u32]);
        let launch = launch.int(total).int(self.windows).int(self.tokens).float(EPSILON);
        let launch = scales(&spec).into_iter().fold(launch, Launch::float);
        let out = launch.int(hi_lo(&spec.attention) as usize).run(compiler);
        (half_floats(&out[0]), words(&out[out.len() - 1])[0])
    }

    /// The branch that the block adds to each token, computed by the reference.
    fn branch(&self) -> Vec<f32> {
        let channels = self.heads * HEAD_DIM;
        let mut branch = vec![0.0; self.residual.len()];
        for window in 0..self.images * self.windows {
            let (image, of_image) = (window / self.windows, window % self.windows);
            let map = &self.map[of_image * self.n..][..self.n];
            let row = |&token: &u32| match token {
                PAD => self.qkv.apply(&vec![0; channels]),
                token => self.qkv.apply(&self.input_codes(image * self.tokens + token as usize)),
            };
            let qkv: Vec<Vec<f32>> = map.iter().map(row).collect();
            let heads: Vec<Vec<f32>> =
                (0..self.heads).map(|head| self.attend(&qkv, of_image, head)).collect();
            for (i, &token) in map.iter().enumerate().filter(|(_, token)| **token != PAD) {
                let rows = heads.iter().flat_map(|head| &head[i * HEAD_DIM..][..HEAD_DIM]);
                let codes: Vec<i8> = rows.map(|&y| projection_input().code(y)).collect();
                let at = (image * self.tokens + token as usize) * channels;
                branch[at..][..channels].copy_from_slice(&self.projected(&codes));
            }
        }
        branch
    }

    /// The codes of a token, in Swin V1 after the norm.
    fn input_codes(&self, token: usize) -> Vec<i8> {
        let channels = self.heads * HEAD_DIM;
        let x = &self.residual[token * channels..][..channels];
        let y = if self.post_norm() { x.to_vec() } else { self.normalised(x) };
        y.into_iter().map(|y| self.input().code(y)).collect()
    }

    fn normalised(&self, x: &[f32]) -> Vec<f32> {
        let mut y = vec![0.0; x.len()];
        reference::layer_norm_row(x, &self.norm.0, &self.norm.1, EPSILON, &mut y);
        y
    }

    /// The projection of a row of codes, in Swin V2 before the norm.
    fn projected(&self, codes: &[i8]) -> Vec<f32> {
        let y = self.proj.apply(codes);
        if self.post_norm() { self.normalised(&y) } else { y }
    }

    /// Attention of a head of a window.
    fn attend(&self, qkv: &[Vec<f32>], of_image: usize, head: usize) -> Vec<f32> {
        let (n, channels) = (self.n, self.heads * HEAD_DIM);
        let part = |part: usize| -> Vec<f32> {
            let row = |row: &Vec<f32>| row[part * channels + head * HEAD_DIM..][..HEAD_DIM].to_vec();
            qkv.iter().flat_map(row).collect()
        };
        let (mut q, mut k) = (part(0), part(1));
        if self.post_norm() {
            [&mut q, &mut k]
                .into_iter()
                .for_each(|x| x.chunks_exact_mut(HEAD_DIM).for_each(reference::normalize));
        }
        let mut bias = self.bias[head * n * n..][..n * n].to_vec();
        if let (Some(regions), Some(masks)) = (&self.regions, &self.masks) {
            let regions = &regions[usize::from(masks[of_image]) * n..][..n];
            for (i, bias) in bias.iter_mut().enumerate() {
                *bias += if regions[i / n] == regions[i % n] { 0.0 } else { -100.0 };
            }
        }
        let mut out = vec![0.0; n * HEAD_DIM];
        let hi_lo = self.hi_lo.get(head).copied().unwrap_or(false);
        let scores = HeadScores { scale: self.scales[head], hi_lo };
        let operands = (&q[..], &k[..], &part(2)[..]);
        reference::attention_window(n, HEAD_DIM, operands, scores, &bias, &self.quant(), &mut out);
        out
    }

    /// The quantizer of the input of QKV. Some values saturate.
    fn input(&self) -> Quantizer {
        step(if self.post_norm() { 0.055 } else { 0.012 })
    }

    fn quant(&self) -> AttentionQuant {
        let of_vectors = if self.post_norm() { [1.0 / 127.0; 2] } else { [0.02, 0.021] };
        let [q, k, v] = [of_vectors[0], of_vectors[1], 0.019].map(|scale| Some(step(scale)));
        AttentionQuant { q, k, v, scores: None, probs: Probs::U8 }
    }
}

/// The quantizer of the input of the projection.
fn projection_input() -> Quantizer {
    step(0.008)
}

/// A code of the result of a head may be off by one, because exponentials and statistics of rows are not
/// exact; this bounds the effect on the branch.
fn check(compiler: &Compiler, case: &Case) {
    let what =
        format!("{:?}, {} heads, {} windows of {} tokens", case.form, case.heads, case.windows, case.n);
    let (got, overflow) = case.run(compiler, &to_halves(&case.residual));
    assert_eq!(overflow, 0, "{what}");
    let branch = case.branch();
    let (mut error, mut power) = (0.0, 0.0);
    for ((got, old), branch) in got.iter().zip(&case.residual).zip(&branch) {
        let rounding = (old + branch).abs() / 2048.0;
        let off = f64::from(((got - old - branch).abs() - rounding).max(0.0));
        assert!(off < 0.1, "{what}: {got} from {old} + {branch}");
        error += off * off;
        power += f64::from(branch * branch);
    }
    println!("{what}: relative error {:.1e}", (error / power).sqrt());
    assert!(error < 1e-5 * power, "{what}: relative error {:.1e}", (error / power).sqrt());
    assert_varied(&got, &what);
}

#[test]
fn the_branch_is_near_the_reference() {
    let Some(compiler) = Compiler::get() else { return };
    let cases = [
        Case::new(2, 49, 5, 2, true),
        Case::new(1, 64, 2, 1, true),
        Case::new(2, 64, 3, 1, true).cosine(false),
        Case::new(3, 49, 3, 1, true).cosine(true),
    ];
    cases.iter().for_each(|case| check(compiler, case));
}

/// The windows of one image are not masked, although the block has regions.
#[test]
fn one_program_computes_images_of_several_sizes() {
    let Some(compiler) = Compiler::get() else { return };
    let first = Case::new(1, 49, 4, 1, true);
    for (windows, images, masked) in [(4, 1, true), (1, 2, false), (3, 2, true)] {
        let Case { map, tokens, residual, masks, .. } = Case::new(1, 49, windows, images, true);
        let masks = masks.filter(|_| masked);
        check(compiler, &Case { windows, images, map, tokens, residual, masks, ..first.clone() });
    }
}

#[test]
fn a_value_that_is_not_finite_raises_the_flag() {
    let Some(compiler) = Compiler::get() else { return };
    for case in [Case::new(1, 64, 1, 1, false), Case::new(1, 64, 1, 1, false).cosine(false)] {
        let mut residual = to_halves(&case.residual);
        residual[case.map[40] as usize * HEAD_DIM + 31] = 0x7c00;
        assert_eq!(case.run(compiler, &residual).1, 1, "{:?}", case.form);
    }
}

#[test]
fn a_branch_that_overflows_halves_raises_the_flag() {
    let Some(compiler) = Compiler::get() else { return };
    let mut case = Case::new(1, 64, 1, 1, false).cosine(false);
    case.proj.bias[5] = 1e5;
    assert_eq!(case.run(compiler, &to_halves(&case.residual)).1, 1);
}

#[test]
fn blocks_of_wide_residuals_have_fewer_groups_or_none() {
    let new = |form, heads, tokens, shared| WindowBlockConfig::new(form, heads, tokens, shared);
    let groups = |form| [3, 4, 6, 7].map(|heads| new(form, heads, 49, SHARED).map(|config| config.groups));
    assert_eq!(groups(WindowForm::PreNorm), [Some(5), Some(5), Some(4), None]);
    assert_eq!(groups(WindowForm::PostNorm { hi_lo: true }), [Some(4), Some(3), Some(3), None]);
    assert!([48, 65].iter().all(|&tokens| new(WindowForm::PreNorm, 3, tokens, SHARED).is_none()));
    assert!(new(WindowForm::PreNorm, 3, 49, 48 << 10).is_none(), "a small multiprocessor");
}
