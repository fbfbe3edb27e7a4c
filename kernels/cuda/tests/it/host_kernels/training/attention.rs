//! Window attention in training: `train_attention_*.cu`.

use swinq_cuda::training::AttentionProgram;
use swinq_numerics::Quantizer;
use swinq_testing::{Rng, step};

use super::{close, faked};
use crate::host_kernels::compiler::Compiler;
use crate::host_kernels::launch::{Launch, floats};

/// A test case of attention: sizes, sites and operands.
struct Case {
    windows: usize,
    n: usize,
    heads: usize,
    program: AttentionProgram,
    steps: [Quantizer; 5],
    mask_windows: usize,
    qkv: Vec<f32>,
    bias: Vec<f32>,
    mask: Vec<f32>,
    grad: Vec<f32>,
}

const SCALE: f32 = 0.4;

impl Case {
    fn new(n: usize, heads: usize, sites: u32, probs: u32) -> Case {
        let (windows, mask_windows) = (4, 2);
        let mut rng = Rng((n + heads) as u64);
        let masked = |x: u8| if x > 200 { -100.0 } else { 0.0 };
        Case {
            windows,
            n,
            heads,
            program: AttentionProgram { tokens: n, sites, probs },
            steps: [0.011, 0.012, 0.013, 0.1, 0.004].map(step),
            mask_windows,
            qkv: rng.floats(windows * n * 3 * heads * 32, 1.5),
            bias: rng.floats(heads * n * n, 1.0),
            mask: rng.bytes(mask_windows * n * n).into_iter().map(masked).collect(),
            grad: rng.floats(windows * n * heads * 32, 1.0),
        }
    }

    fn run(&self, compiler: &Compiler, backward: bool) -> [Vec<f32>; 3] {
        let (windows, n, heads) = (self.windows, self.n, self.heads);
        let (program, config) = match backward {
            true => (self.program.backward(true), self.program.backward_launch(windows, heads)),
            false => (self.program.forward(), self.program.forward_launch(windows, heads)),
        };
        let parts = if backward { config.grid[1] as usize } else { 1 };
        let out = if backward { self.qkv.len() } else { self.grad.len() };
        let launch = Launch::new(&program, config).array(&self.qkv).array(&self.bias).array(&self.mask);
        let launch = launch.array(&self.grad).array(&vec![7.0f32; out]);
        let launch =
            launch.array(&vec![7.0f32; parts * heads * n * n]).array(&vec![7.0f32; parts * heads * 5]);
        let launch = launch.int(windows).int(heads).int(self.mask_windows).int(parts).float(SCALE);
        let launch = self.steps.iter().fold(launch, |l, q| l.float(q.recip()).float(q.scale()));
        let buffers = launch.run(compiler);
        let sums = |values: Vec<f32>, size: usize| {
            let mut sums = vec![0.0; size];
            values.iter().enumerate().for_each(|(i, v)| sums[i % size] += v);
            sums
        };
        let (dbias, dsteps) = (floats(&buffers[5]), floats(&buffers[6]));
        [floats(&buffers[4]), sums(dbias, heads * n * n), sums(dsteps, 5)]
    }

    /// The fake-quantized value of a site, its derivative, and its derivative with respect to the scale.
    fn site(&self, i: usize, x: f64) -> (f64, f64, f64) {
        let on = if i == 4 { self.program.probs == 2 } else { self.program.sites >> i & 1 == 1 };
        if !on {
            return (x, 1.0, 0.0);
        }
        let (value, inside, slope) = faked(x as f32, self.steps[i], (-128.0, 127.0));
        (f64::from(value), if inside { 1.0 } else { 0.0 }, f64::from(slope))
    }

    /// The result, and the gradients of qkv, of the bias and of the scales.
    fn want(&self) -> [Vec<f64>; 4] {
        let sizes = [self.grad.len(), self.qkv.len(), self.bias.len(), 5];
        let mut sums = sizes.map(|size| vec![0.0; size]);
        for (window, head) in (0..self.windows).flat_map(|w| (0..self.heads).map(move |h| (w, h))) {
            let head = Head { case: self, window, head };
            let mut after = vec![[[0.0; 32]; 3]; self.n];
            (0..self.n).for_each(|query| head.query(query, &mut after, &mut sums));
            head.store(&after, &mut sums);
        }
        sums
    }
}

/// One head of one window.
struct Head<'a> {
    case: &'a Case,
    window: usize,
    head: usize,
}

/// A query with all keys.
struct Pairs {
    scores: Vec<f64>,
    /// The softmax; for unsigned codes, the derivative of a code divided by the sum of the codes.
    slope: Vec<f64>,
    /// The weights of the values, before their site.
    weights: Vec<f64>,
}

/// The dot product.
fn dot(a: &[f64; 32], b: &[f64; 32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Head<'_> {
    /// The index of channel `d` of a query (0), key (1) or value (2).
    fn place(&self, which: usize, token: usize, d: usize) -> usize {
        let c = self.case.heads * 32;
        (self.window * self.case.n + token) * 3 * c + which * c + self.head * 32 + d
    }

    /// A query, key or value after its site.
    fn part(&self, which: usize, token: usize) -> [f64; 32] {
        let value = |d: usize| f64::from(self.case.qkv[self.place(which, token, d)]);
        std::array::from_fn(|d| self.case.site(which, value(d)).0)
    }

    /// The index of a token's first channel in the result.
    fn row(&self, token: usize) -> usize {
        (self.window * self.case.n + token) * self.case.heads * 32 + self.head * 32
    }

    fn pairs(&self, query: usize) -> Pairs {
        let Case { n, mask_windows, .. } = *self.case;
        let q = self.part(0, query);
        let scores: Vec<f64> = (0..n).map(|key| dot(&q, &self.part(1, key))).collect();
        let logit = |key: usize| {
            let pair = query * n + key;
            let mask = self.case.mask[self.window % mask_windows * n * n + pair];
            let added = self.case.bias[self.head * n * n + pair] + mask;
            self.case.site(3, scores[key]).0 * f64::from(SCALE) + f64::from(added)
        };
        let logits: Vec<f64> = (0..n).map(logit).collect();
        let max = logits.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
        let exp: Vec<f64> = logits.iter().map(|x| (x - max).max(-60.0).exp()).collect();
        let unsigned = self.case.program.probs == 1;
        let codes = |e: &f64| if unsigned { (255.0 * e).round_ties_even() } else { *e };
        let total: f64 = exp.iter().map(codes).sum();
        let weights: Vec<f64> = exp.iter().map(|e| codes(e) / total).collect();
        let slope = exp.iter().map(|e| if unsigned { 255.0 * e / total } else { e / total }).collect();
        Pairs { scores, slope, weights }
    }

    /// Computes the result of a query. Adds its contributions to the gradients after the sites and to the
    /// sums.
    fn query(&self, query: usize, after: &mut [[[f64; 32]; 3]], sums: &mut [Vec<f64>; 4]) {
        let n = self.case.n;
        let pairs = self.pairs(query);
        let probs: Vec<_> = pairs.weights.iter().map(|p| self.case.site(4, *p)).collect();
        let at = self.row(query);
        let grad: [f64; 32] = std::array::from_fn(|d| f64::from(self.case.grad[at + d]));
        let dprobs: Vec<f64> = (0..n).map(|key| dot(&grad, &self.part(2, key))).collect();
        let passed: Vec<f64> = dprobs.iter().zip(&probs).map(|(d, p)| d * p.1).collect();
        sums[3][4] += dprobs.iter().zip(&probs).map(|(d, p)| d * p.2).sum::<f64>();
        let mean: f64 = passed.iter().zip(&pairs.weights).map(|(d, p)| d * p).sum();
        let q = self.part(0, query);
        for key in 0..n {
            let dlogit = pairs.slope[key] * (passed[key] - mean);
            sums[2][(self.head * n + query) * n + key] += dlogit;
            let site = self.case.site(3, pairs.scores[key]);
            sums[3][3] += dlogit * f64::from(SCALE) * site.2;
            let dscore = dlogit * f64::from(SCALE) * site.1;
            let add = |to: &mut [f64; 32], x: &[f64; 32], factor: f64| {
                to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
            };
            add(&mut after[query][0], &self.part(1, key), dscore);
            add(&mut after[key][1], &q, dscore);
            add(&mut after[key][2], &grad, probs[key].0);
            let out = sums[0][at..at + 32].iter_mut();
            out.zip(self.part(2, key)).for_each(|(out, v)| *out += probs[key].0 * v);
        }
    }

    /// Turns the gradients after the sites into gradients before them.
    fn store(&self, after: &[[[f64; 32]; 3]], sums: &mut [Vec<f64>; 4]) {
        for (token, which, d) in (0..self.case.n * 96).map(|i| (i / 96, i / 32 % 3, i % 32)) {
            let at = self.place(which, token, d);
            let (_, slope, dstep) = self.case.site(which, f64::from(self.case.qkv[at]));
            sums[1][at] = after[token][which][d] * slope;
            sums[3][which] += after[token][which][d] * dstep;
        }
    }
}

#[test]
fn attention() {
    let Some(compiler) = Compiler::get() else { return };
    for (n, heads, sites, probs) in [
        (9, 2, 0, 0),
        (9, 2, 7, 1),
        (9, 2, 15, 2),
        (49, 1, 7, 1),
        (64, 1, 0, 0),
        (70, 1, 7, 0),
        (100, 1, 5, 1),
    ] {
        let what = format!("attention of {n} tokens, sites {sites}, probabilities {probs}");
        let case = Case::new(n, heads, sites, probs);
        let want = case.want();
        close(&what, &case.run(compiler, false)[0], &want[0], 1e-4);
        let [dqkv, dbias, dsteps] = case.run(compiler, true);
        close(&format!("{what}: dqkv"), &dqkv, &want[1], 1e-3);
        close(&format!("{what}: dbias"), &dbias, &want[2], 1e-3);
        if sites != 0 {
            close(&format!("{what}: steps"), &dsteps, &want[3], 2e-3);
        }
    }
}
