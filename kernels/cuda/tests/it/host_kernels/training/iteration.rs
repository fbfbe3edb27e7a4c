//! The kernels of iterations without the host: operations on columns, scales of weights, images, loss and
//! update.

use half::{bf16, f16};
use swinq_cuda::training::{
    ColumnsProgram, FakeProgram, Kind, Patches, ScalesProgram, UpdateProgram, patches_launch, patches_program,
};
use swinq_numerics::{ColumnQuantizers, reference};
use swinq_testing::{Rng, assert_same, step};

use super::close;
use crate::host_kernels::compiler::Compiler;
use crate::host_kernels::launch::{Launch, bytes, floats, halves};

/// Numbers in f64, as the bytes of their halves of 32 bits.
pub fn doubles(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|&word| f64::from_le_bytes(word)).collect()
}

pub fn words_of(values: &[f64]) -> Vec<u32> {
    values.iter().flat_map(|x| [x.to_bits() as u32, (x.to_bits() >> 32) as u32]).collect()
}

#[test]
fn columns() {
    let Some(compiler) = Compiler::get() else { return };
    for (rows, width, vector) in [(37, 132, 4), (21, 7, 1)] {
        let mut rng = Rng(rows as u64);
        let count = rows * width;
        let (x, grad, bias) = (rng.floats(count, 3.0), rng.floats(count, 1.0), rng.floats(width, 0.5));
        let factors: Vec<f32> = (0..width).map(|i| 0.5 + (i % 5) as f32 / 5.0).collect();
        let zero_points: Vec<i8> = (0..width).map(|i| (i % 50) as i8 - 20).collect();
        let common = step(0.02);
        let quantizers = ColumnQuantizers::channels(common.scale(), &factors, &zero_points).unwrap();
        let table = [quantizers.recips(), quantizers.zero_points(), quantizers.scales()].concat();
        for gelu in [false, true] {
            for fake in [0, 1, 2] {
                let compiled = ColumnsProgram { vector, out: 0, gelu, fake, steps: fake > 0 };
                let config = compiled.launch(rows, width);
                let [blocks, parts, _] = config.grid.map(|n| n as usize);
                let launch = |entry| {
                    let launch = Launch::new(&compiled.program(entry), config).array(&x).array(&grad);
                    let launch = launch.array(&bias).array(&table).array(&vec![9.0f32; count]);
                    let launch =
                        launch.array(&vec![9.0f32; parts * width]).array(&vec![9.0f32; blocks * parts]);
                    let launch = launch.int(rows).int(width).int(compiled.rows_of_part(rows, width));
                    let mut found = launch.float(common.recip()).float(common.scale()).run(compiler);
                    found.drain(..4);
                    found.iter().map(|values| floats(values)).collect::<Vec<_>>()
                };
                let value = |i: usize| if gelu { reference::gelu(x[i] + bias[i % width]) } else { x[i] };
                let want = (0..count).map(|i| match fake {
                    0 => value(i),
                    1 => common.fake(value(i)),
                    _ => quantizers.fake(i % width, value(i)),
                });
                let what = format!("columns, gelu {gelu}, fake {fake}");
                // The sign of a zero is not part of the definition.
                let found: Vec<f32> = launch("columns_forward")[0].iter().map(|x| x + 0.0).collect();
                assert_same(&found, &want.map(|x| x + 0.0).collect::<Vec<_>>(), &what);
                let (mut dx, mut sums, mut slope) = (vec![0.0; count], vec![0.0; width], 0.0);
                for i in 0..count {
                    let (c, v) = (i % width, value(i));
                    let (recip, zero, scale) = match fake {
                        2 => (quantizers.recips()[c], quantizers.zero_points()[c], quantizers.scales()[c]),
                        _ => (common.recip(), 0.0, common.scale()),
                    };
                    let scaled = v.mul_add(recip, zero);
                    let inside = fake == 0 || (-128.0..=127.0).contains(&scaled);
                    let code = scaled.clamp(-128.0, 127.0).round_ties_even() - zero;
                    let rest = if inside { scaled - zero } else { 0.0 };
                    slope += f64::from(grad[i] * (scale / common.scale()) * (code - rest));
                    let derivative = if gelu { reference::gelu_derivative(x[i] + bias[c]) } else { 1.0 };
                    dx[i] = if inside { f64::from(grad[i]) * f64::from(derivative) } else { 0.0 };
                    sums[c] += dx[i];
                }
                let found = launch("columns_backward");
                close(&what, &found[0], &dx, 2e-6);
                let columns = |c: usize| found[1].iter().skip(c).step_by(width).sum::<f32>();
                close(&format!("{what}, sums"), &(0..width).map(columns).collect::<Vec<_>>(), &sums, 1e-5);
                if fake > 0 {
                    close(&format!("{what}, step"), &[found[2].iter().sum()], &[slope], 1e-3);
                }
            }
        }
    }
}

/// Results in bf16 and f16 are those of f32, rounded to nearest even.
#[test]
fn operands_are_rounded() {
    let Some(compiler) = Compiler::get() else { return };
    let mut x = Rng(5).floats(60, 3.0);
    x.extend([1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::INFINITY, f32::NAN]);
    for vector in [1, 4] {
        for (out, rounded) in
            [(1, (|x| bf16::from_f32(x).to_bits()) as fn(f32) -> u16), (2, |x| f16::from_f32(x).to_bits())]
        {
            let compiled = ColumnsProgram { vector, out, gelu: false, fake: 0, steps: false };
            let launch = Launch::new(&compiled.program("columns_forward"), compiled.launch(4, 16)).array(&x);
            let launch = launch.null().null().null().array(&[0u16; 64]).null().null();
            let launch = launch.int(4).int(16).int(compiled.rows_of_part(4, 16)).float(1.0).float(1.0);
            let found = halves(launch.run(compiler).last().unwrap());
            for (&found, &x) in found.iter().zip(&x).filter(|(_, x)| !x.is_nan()) {
                assert_eq!(found, rounded(x), "{x}");
            }
            let nan = if out == 1 {
                bf16::from_bits(found[63]).is_nan()
            } else {
                f16::from_bits(found[63]).is_nan()
            };
            assert!(nan);
        }
    }
}

#[test]
fn weights_with_factors() {
    let Some(compiler) = Compiler::get() else { return };
    for (rows, columns, vector) in [(3, 4100, 4), (5, 7, 1)] {
        let mut rng = Rng(columns as u64);
        let (w, grad) = (rng.floats(rows * columns, 1.0), rng.floats(rows * columns, 1.0));
        let factors: Vec<f32> = (0..columns).map(|i| 0.25 + (i % 4) as f32).collect();
        let both = [factors.clone(), factors.iter().map(|f| 1.0 / f).collect()].concat();
        let parts = ScalesProgram::parts(columns) as usize;
        let launch = |entry, config, maxima: &[f32], table: &[f32]| {
            let launch = Launch::new(&ScalesProgram::program(entry), config).array(&w).array(&both).null();
            let launch = launch.array(maxima).array(table).int(rows).int(columns).int(parts);
            let mut found = launch.float(127.0).float(1.0).run(compiler);
            let table = floats(&found.pop().unwrap());
            (floats(&found.pop().unwrap()), table)
        };
        let maxima = vec![0.0; rows * parts];
        let (maxima, _) = launch("row_maxima", ScalesProgram::maxima_launch(rows, columns), &maxima, &[0.0]);
        let (_, table) =
            launch("scale_table", ScalesProgram::table_launch(rows), &maxima, &vec![0.0; 3 * rows]);
        let scale = |row: usize| {
            let terms = w[row * columns..][..columns].iter().zip(&factors);
            terms.fold(0f32, |most, (w, f)| most.max((w * f).abs())) / 127.0
        };
        let scales: Vec<f32> = (0..rows).map(scale).collect();
        assert_same(&table[..rows], &scales, "scales");
        assert_same(
            &table[rows..2 * rows],
            &scales.iter().map(|s| 1.0 / s).collect::<Vec<_>>(),
            "reciprocals",
        );
        let fake = FakeProgram { vector, table: true, factors: true, steps: false, out: 0 };
        let launch = |entry| {
            let launch = Launch::new(&fake.program(entry), FakeProgram::launch(rows, columns)).array(&w);
            let launch = launch.array(&grad).array(&table).array(&both).array(&vec![0.0f32; rows * columns]);
            let launch = launch.array(&vec![0.0f32; rows * parts]).int(rows).int(columns).int(parts);
            let launch = launch.float(-127.0).float(127.0).float(1.0).float(1.0).float(1.0);
            let mut found = launch.run(compiler);
            found.pop();
            floats(&found.pop().unwrap())
        };
        let each = |i: usize| {
            let (recip, scale) = (table[rows + i / columns], table[i / columns]);
            (w[i] * factors[i % columns] * recip).clamp(-127.0, 127.0).round_ties_even()
                * scale
                * both[columns + i % columns]
        };
        assert_same(&launch("fake_forward"), &(0..w.len()).map(each).collect::<Vec<_>>(), "weights");
        let passed = |i: usize| grad[i] * both[columns + i % columns] * factors[i % columns];
        assert_same(&launch("fake_backward"), &(0..w.len()).map(passed).collect::<Vec<_>>(), "gradients");
    }
}

#[test]
fn learned_scales_of_weights() {
    let Some(compiler) = Compiler::get() else { return };
    let (ratios, base) = ([0.5f32, 2.0, 1.25], [0.01f32, 0.02, 0.04]);
    let launch = Launch::new(&ScalesProgram::program("scale_table"), ScalesProgram::table_launch(3));
    let launch = launch.array(&ratios).null().array(&base).null().array(&[0.0f32; 9]);
    let table = floats(launch.int(3).int(1).int(1).float(7.0).float(0.25).run(compiler).last().unwrap());
    let scales: Vec<f32> = ratios.iter().zip(&base).map(|(r, b)| b * r).collect();
    let want: Vec<f32> =
        [scales.clone(), scales.iter().map(|s| 1.0 / s).collect(), base.map(|b| b * 0.25).to_vec()].concat();
    assert_same(&table, &want, "learned scales");
}

/// Images that patches fill, of one and of three channels; images that lack pixels of the last patches, which
/// are zero; and images with more pixels than the patches.
#[test]
fn patches_of_images() {
    let Some(compiler) = Compiler::get() else { return };
    for (size, channels, grid) in
        [([12, 12], 3, [3, 3]), ([8, 12], 1, [2, 3]), ([11, 6], 3, [3, 2]), ([9, 14], 3, [2, 3])]
    {
        let of = Patches { images: 2, size, channels, patch: 4, grid };
        let ([height, width], [rows, columns]) = (size, grid);
        let pixels = Rng(1).bytes(of.bytes());
        let table: Vec<f32> = (0..256 * channels).map(|i| i as f32 * 0.5 - 60.0).collect();
        let launch = Launch::new(&patches_program(), patches_launch(of.count())).array(&pixels).array(&table);
        let launch = launch.array(&vec![7.0f32; of.count()]).int(height).int(width).int(channels).int(4);
        let launch = launch.int(rows).int(columns).int(of.count());
        let found = floats(launch.run(compiler).last().unwrap());
        let mut want = Vec::new();
        for (image, place) in (0..2).flat_map(|i| (0..rows * columns).map(move |p| (i, p))) {
            for (channel, inside) in (0..channels).flat_map(|c| (0..16).map(move |i| (c, i))) {
                let (y, x) = (4 * (place / columns) + inside / 4, 4 * (place % columns) + inside % 4);
                let at = ((image * height + y) * width + x) * channels + channel;
                let inside = y < height && x < width;
                want.push(if inside { table[256 * channel + usize::from(pixels[at])] } else { 0.0 });
            }
        }
        assert_same(&found, &want, &format!("patches of {size:?}, {channels} channels"));
    }
}

#[test]
fn updates() {
    let Some(compiler) = Compiler::get() else { return };
    let count = 700;
    let mut rng = Rng(2);
    let (grad, values) = (rng.floats(count, 1.0), rng.floats(count, 1.0));
    let (first, average) = (rng.floats(count, 1.0), rng.floats(count, 1.0));
    let second: Vec<f32> = rng.floats(count, 1.0).iter().map(|x| x * x).collect();
    let kinds: Vec<u8> =
        (0..count).map(|i| [0, Kind::DECAYS, Kind::SCALE, Kind::NO_GRADIENT][i % 4]).collect();
    let [loss_scale, rates, keep, unbias] = [[4.0, 0.0], [0.02, 0.5], [0.99, 0.0], [1.5, 0.0]];
    let rule = [0.9f32, 0.1, 0.99, 0.01, 1e-6, 1.0, 0.75, 1.25];
    let run = |grad: &[f32], values: &[f32], loss: f64| {
        let controls = words_of(&[loss_scale[0], 1.0, 10.0, rates[0], rates[1], keep[0], unbias[0]]);
        let config = UpdateProgram::launch(count);
        let blocks = config.grid[0] as usize;
        let launch = |entry, config, partial: &[u32], outcome: &[u32]| {
            let launch = Launch::new(&UpdateProgram::program(entry), config).array(grad).array(values);
            let launch = launch.array(&first).array(&second).array(&average).array(&kinds).array(partial);
            let launch = launch.array(&controls).array(outcome).int(count).int(blocks);
            rule.iter().fold(launch, |launch, x| launch.float(*x)).run(compiler)
        };
        let words = |bytes: &[u8]| crate::host_kernels::launch::words(bytes);
        let outcome = words_of(&[0.0, 0.0, 0.0, loss, 0.0, 0.0, 0.0, 0.0]);
        let partial = words(&launch("measure", config, &vec![0; 4 * blocks], &outcome)[6]);
        let outcome = words(&launch("decide", UpdateProgram::decide_launch(), &partial, &outcome)[8]);
        let found = launch("update", config, &partial, &outcome);
        (found[1..5].iter().map(|values| floats(values)).collect::<Vec<_>>(), doubles(&bytes(&outcome)))
    };
    let (found, outcome) = run(&grad, &values, 1.0);
    let with_gradient = |i: usize| kinds[i] != Kind::NO_GRADIENT;
    let squares = (0..count).filter(|i| with_gradient(*i)).map(|i| f64::from(grad[i]).powi(2)).sum::<f64>();
    let norm = squares.sqrt() / loss_scale[0];
    assert!((outcome[5] - norm).abs() < 1e-9 && norm > 1.0, "{norm}");
    assert_eq!(outcome[6..], [1.0, 0.0]);
    let factor = (1.0 / norm / loss_scale[0]) as f32;
    let mut want: [Vec<f32>; 4] = [values.clone(), first.clone(), second.clone(), average.clone()];
    for i in 0..count {
        if with_gradient(i) {
            let g = grad[i] * factor;
            let (m, v) = (first[i] * 0.9 + g * 0.1, second[i] * 0.99 + g * g * 0.01);
            let is_scale = kinds[i] == Kind::SCALE;
            let rate = if is_scale { 0.5f32 } else { 0.02 };
            let keep = if kinds[i] == Kind::DECAYS { 0.99f32 } else { 1.0 };
            let moved = values[i] * keep - rate * (m / ((v * 1.5).sqrt() + 1e-6));
            want[0][i] = if is_scale { moved.clamp(0.8, 1.25) } else { moved };
            (want[1][i], want[2][i]) = (m, v);
        }
        want[3][i] = average[i] * 0.75 + want[0][i] * 0.25;
    }
    for (found, want) in found.iter().zip(&want) {
        let want: Vec<f64> = want.iter().map(|x| f64::from(*x)).collect();
        close("update", found, &want, 1e-6);
    }
    // Nothing changes if anything is not finite, or the loss is too high.
    let spoilt = |values: &[f32], at: usize| {
        let mut spoilt = values.to_vec();
        spoilt[at] = f32::NAN;
        spoilt
    };
    let cases = [
        (spoilt(&grad, 0), values.clone(), 1.0, 0.0),
        (grad.clone(), spoilt(&values, 699), 1.0, 1.0),
        (grad.clone(), values.clone(), 11.0, 0.0),
        (grad.clone(), values.clone(), f64::NAN, 0.0),
    ];
    for (grad, values, loss, unusable) in cases {
        let (found, outcome) = run(&grad, &values, loss);
        assert_eq!((outcome[6], outcome[7] > 0.0), (0.0, unusable > 0.0));
        assert_eq!((&found[1], &found[3]), (&first, &average));
    }
    // A parameter without a gradient does not count.
    assert_eq!(run(&spoilt(&grad, 3), &values, 1.0).1[6], 1.0);
    let launch = Launch::new(&UpdateProgram::program("add"), UpdateProgram::launch(count)).array(&grad);
    let launch = launch.array(&values).null().null().null().null().null().null().null().int(count).int(0);
    let found = rule.iter().fold(launch, |launch, x| launch.float(*x)).run(compiler);
    assert_same(&floats(&found[1]), &values.iter().zip(&grad).map(|(v, g)| v + g).collect::<Vec<_>>(), "add");
}
