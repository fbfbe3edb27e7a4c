//! Compares the training kernels with scalar versions in f64 and with finite differences.

mod attention;
mod iteration;
mod loss;

use swinq_cuda::training::{
    FakeProgram, NormProgram, column_sums_launch, column_sums_program, gather_launch, gather_program,
    pointwise_launch, pointwise_program, table_launch, table_program,
};
use swinq_numerics::{PAD, Quantizer, reference};
use swinq_testing::{Rng, assert_same, step};

use super::compiler::Compiler;
use super::launch::{Launch, floats};

/// Asserts that `got` differs from `want` by at most `tolerance` times the largest magnitude.
#[track_caller]
fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let largest = want.iter().fold(0f64, |max, v| max.max(v.abs()));
    assert!(largest > 0.0, "{what}: zeros prove nothing");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let off = (f64::from(g) - w).abs();
        assert!(off <= tolerance * largest, "{what}: {g} instead of {w} at {i}");
    }
}

/// A fake-quantized value, and its derivatives with respect to the value and to the scale.
fn faked(x: f32, q: Quantizer, (low, high): (f32, f32)) -> (f32, bool, f32) {
    let scaled = x * q.recip();
    let clamped = scaled.clamp(low, high);
    let edge = 1.0 + 1.0 / (1 << 20) as f32;
    let inside = scaled.clamp(low * edge, high * edge) == scaled;
    let slope = clamped.round_ties_even() - if inside { scaled } else { 0.0 };
    (clamped.round_ties_even() * q.scale(), inside, slope)
}

#[test]
fn fake_quantization() {
    let Some(compiler) = Compiler::get() else { return };
    for (rows, columns, vector, table) in
        [(1, 4100, 4, false), (1, 77, 1, false), (3, 52, 4, true), (2, 7, 1, true)]
    {
        let mut rng = Rng((rows * columns) as u64);
        let count = rows * columns;
        let (x, grad) = (rng.floats(count, 2.0), rng.floats(count, 1.0));
        let quantizers: Vec<Quantizer> = (0..rows).map(|i| step(0.01 + 0.003 * i as f32)).collect();
        let range = if table { (-127.0, 127.0) } else { (-128.0, 127.0) };
        let scales = quantizers.iter().map(|q| q.scale());
        let steps: Vec<f32> = scales
            .chain(quantizers.iter().map(|q| q.recip()))
            .chain((0..rows).map(|i| 0.5 + i as f32))
            .collect();
        let parts = columns.div_ceil(16 * 256);
        let compiled = FakeProgram { vector, table, factors: false, steps: true, out: 0 };
        let launch = |entry, config, out: &[f32], partial: &[f32]| {
            let launch = Launch::new(&compiled.program(entry), config).array(&x).array(&grad);
            let launch = launch.optional(table.then_some(&steps[..])).null().array(out).array(partial);
            let launch = launch.int(rows).int(columns).int(parts).float(range.0).float(range.1);
            let launch = launch.float(quantizers[0].scale()).float(quantizers[0].recip()).float(0.25);
            let mut buffers = launch.run(compiler);
            let partial = floats(&buffers.pop().unwrap());
            (floats(&buffers.pop().unwrap()), partial)
        };
        let config = FakeProgram::launch(rows, columns);
        let zeros = vec![0.0; count];
        let (values, _) = launch("fake_forward", config, &zeros, &[0.0]);
        let (dx, partial) = launch("fake_backward", config, &zeros, &vec![0.0; rows * parts]);
        let (dsteps, _) = launch("fake_steps", FakeProgram::launch_steps(rows), &vec![0.0; rows], &partial);
        let each = |i: usize| faked(x[i], quantizers[i / columns], range);
        assert_same(&values, &(0..count).map(|i| each(i).0).collect::<Vec<_>>(), "fake_forward");
        let passed: Vec<f32> = (0..count).map(|i| if each(i).1 { grad[i] } else { 0.0 }).collect();
        assert!(dx.iter().zip(&passed).all(|(a, b)| a == b), "fake_backward");
        let of_row = |row: usize| {
            let terms = (row * columns..(row + 1) * columns).map(|i| f64::from(grad[i] * each(i).2));
            terms.sum::<f64>() * if table { 0.5 + row as f64 } else { 0.25 }
        };
        close("fake_steps", &dsteps, &(0..rows).map(of_row).collect::<Vec<_>>(), 1e-4);
    }
}

/// LayerNorm of a row, and the gradients of row, weight and bias.
fn normalised(x: &[f32], [weight, bias, grad]: [&[f32]; 3]) -> [Vec<f64>; 4] {
    let n = x.len() as f64;
    let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let variance = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    let r = 1.0 / (variance + 1e-5).sqrt();
    let unit: Vec<f64> = x.iter().map(|&v| (f64::from(v) - mean) * r).collect();
    let g: Vec<f64> = grad.iter().zip(weight).map(|(g, w)| f64::from(*g) * f64::from(*w)).collect();
    let mean_g = g.iter().sum::<f64>() / n;
    let along = g.iter().zip(&unit).map(|(g, u)| g * u).sum::<f64>() / n;
    let y = unit.iter().zip(weight.iter().zip(bias)).map(|(u, (w, b))| u * f64::from(*w) + f64::from(*b));
    let dx = g.iter().zip(&unit).map(|(g, u)| r * (g - mean_g - u * along));
    let dweight = grad.iter().zip(&unit).map(|(g, u)| f64::from(*g) * u);
    let dbias = grad.iter().map(|&g| f64::from(g));
    [y.collect(), dx.collect(), dweight.collect(), dbias.collect()]
}

#[test]
fn layer_norm() {
    let Some(compiler) = Compiler::get() else { return };
    for (rows, columns) in [(19, 5), (21, 96), (3, 400)] {
        let mut rng = Rng((rows + columns) as u64);
        let (x, grad) = (rng.floats(rows * columns, 2.0), rng.floats(rows * columns, 1.0));
        let (weight, bias) = (rng.floats(columns, 1.0), rng.floats(columns, 1.0));
        let norm = NormProgram { columns };
        let config = norm.backward_launch(rows);
        let blocks = config.grid[0] as usize;
        let launch = |entry, config| {
            let launch = Launch::new(&norm.program(entry), config).array(&x).array(&weight).array(&bias);
            let launch = launch.array(&grad).array(&vec![0.0f32; rows * columns]);
            let launch = launch.array(&vec![0.0f32; blocks * 2 * columns]).int(rows).int(columns);
            let mut buffers = launch.int(norm.rows_of_block(rows)).float(1e-5).run(compiler);
            let partial = floats(&buffers.pop().unwrap());
            (floats(&buffers.pop().unwrap()), partial)
        };
        let mut want: [Vec<f64>; 4] = Default::default();
        (want[2], want[3]) = (vec![0.0; columns], vec![0.0; columns]);
        for (x, grad) in x.chunks_exact(columns).zip(grad.chunks_exact(columns)) {
            let [y, dx, dweight, dbias] = normalised(x, [&weight, &bias, grad]);
            want[0].extend(y);
            want[1].extend(dx);
            want[2].iter_mut().zip(dweight).for_each(|(sum, v)| *sum += v);
            want[3].iter_mut().zip(dbias).for_each(|(sum, v)| *sum += v);
        }
        close("norm", &launch("norm_forward", norm.forward_launch(rows)).0, &want[0], 1e-6);
        let (dx, partial) = launch("norm_backward", config);
        close("norm, dx", &dx, &want[1], 2e-6);
        let mut sums = vec![0.0; 2 * columns];
        for part in partial.chunks_exact(2 * columns) {
            sums.iter_mut().zip(part).for_each(|(sum, v)| *sum += v);
        }
        close("norm, dweight", &sums[..columns], &want[2], 2e-6);
        close("norm, dbias", &sums[columns..], &want[3], 2e-6);
    }
}

#[test]
fn rows_and_columns() {
    let Some(compiler) = Compiler::get() else { return };
    let index = [4, PAD, 0, 5, 1, 3, PAD, 2];
    for (columns, vector) in [(12, 4), (7, 1)] {
        let (images, source) = (70, 6);
        let x = Rng(columns as u64).floats(images * source * columns, 1.0);
        let total = images * index.len() * columns;
        let launch = |entry, x: &[f32], [rows, sources, out]: [usize; 3]| {
            let bias: Vec<f32> = (0..columns).map(|i| i as f32).collect();
            let pieces = out / vector;
            let launch = Launch::new(&gather_program(entry, vector), gather_launch(pieces)).array(x);
            let launch = launch.array(&index).array(&bias).array(&vec![9.0f32; out]);
            let launch = launch.int(rows).int(sources).int(columns).int(pieces);
            floats(launch.run(compiler).last().unwrap())
        };
        let row = |i: usize| match index[i % 8] {
            PAD => vec![0.0; columns],
            from => x[(i / 8 * source + from as usize) * columns..][..columns].to_vec(),
        };
        let want: Vec<f32> = (0..images * 8).flat_map(row).collect();
        assert_same(&launch("gather", &x, [8, source, total]), &want, "gather");
        let want: Vec<f32> = x.iter().enumerate().map(|(i, v)| v + (i % columns) as f32).collect();
        assert_same(&launch("add_bias", &x, [0, 0, x.len()]), &want, "add_bias");
        let rows = images * source;
        for part in [rows, 64] {
            let parts = rows.div_ceil(part);
            let config = column_sums_launch(columns, parts);
            let launch = Launch::new(&column_sums_program(), config).array(&x);
            let launch = launch.array(&vec![0.0f32; parts * columns]).int(rows).int(columns).int(part);
            let sums = floats(launch.run(compiler).last().unwrap());
            let sum = |i: usize| {
                let rows = x.chunks_exact(columns).skip(i / columns * part).take(part);
                rows.map(|row| f64::from(row[i % columns])).sum()
            };
            close("column_sums", &sums, &(0..parts * columns).map(sum).collect::<Vec<f64>>(), 1e-6);
        }
    }
}

#[test]
fn table_gradients() {
    let Some(compiler) = Compiler::get() else { return };
    let (rows, heads, pairs) = (5, 3, 200);
    let index: Vec<u32> = (0..pairs as u32).map(|i| i * i % 7 % 5).collect();
    let grad = Rng(3).floats(heads * pairs, 1.0);
    let launch = Launch::new(&table_program(), table_launch(rows, heads)).array(&grad).array(&index);
    let launch = launch.array(&vec![9.0f32; rows * heads]).int(pairs).int(heads);
    let got = floats(launch.run(compiler).last().unwrap());
    let of = |i: usize| {
        let grad = &grad[i % heads * pairs..][..pairs];
        let terms = grad.iter().zip(&index).filter(|(_, row)| **row as usize == i / heads);
        terms.map(|(g, _)| f64::from(*g)).sum()
    };
    close("table", &got, &(0..rows * heads).map(of).collect::<Vec<f64>>(), 1e-6);
}

#[test]
fn value_by_value() {
    let Some(compiler) = Compiler::get() else { return };
    let mut rng = Rng(1);
    let count = 600;
    let (x, grad) = (rng.floats(count, 7.0), rng.floats(count, 1.0));
    let (first, second) =
        (rng.floats(count, 1.0), rng.bytes(count).into_iter().map(f32::from).collect::<Vec<_>>());
    let constants = [0.9f32, 0.1, 0.99, 0.01, 1e-6, 0.5, 0.998, 0.02, 1.5];
    let run = |entry| {
        let launch = Launch::new(&pointwise_program(entry), pointwise_launch(count)).array(&x).array(&grad);
        let launch = launch.array(&x).array(&first).array(&second).int(count);
        let launch = constants.iter().fold(launch, |launch, c| launch.float(*c));
        launch.run(compiler).iter().skip(2).map(|b| floats(b)).collect::<Vec<_>>()
    };
    let gelu: Vec<f32> = x.iter().map(|x| reference::gelu(*x)).collect();
    assert_same(&run("gelu_forward")[0], &gelu, "gelu");
    let slope = |(x, g): (&f32, &f32)| f64::from(*g) * f64::from(reference::gelu_derivative(*x));
    close(
        "gelu_backward",
        &run("gelu_backward")[0],
        &x.iter().zip(&grad).map(slope).collect::<Vec<_>>(),
        2e-6,
    );
    let [k1, a1, k2, a2, eps, factor, keep, rate, unbias] = constants;
    let updated = run("adamw");
    for i in 0..count {
        let g = grad[i] * factor;
        let (m, v) = (first[i] * k1 + g * a1, second[i] * k2 + g * g * a2);
        let p = x[i] * keep - rate * (m / ((v * unbias).sqrt() + eps));
        assert_eq!([updated[0][i], updated[1][i], updated[2][i]], [p, m, v], "adamw at {i}");
    }
}
