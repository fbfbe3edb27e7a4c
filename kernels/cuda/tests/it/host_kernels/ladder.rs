//! The kernels of the ladder (`ladder_*.cu`): matrix products in f32, softmax, elementwise ops.

use swinq_cuda::ladder::{ElementwiseOp, FloatRung, SoftmaxRung, from_half, half_sum, to_half};
use swinq_numerics::reference::{attention_row_exp, attention_row_u8, code, gelu};
use swinq_testing::{Rng, assert_same};

use super::compiler::Compiler;
use super::launch::{Launch, floats, halves, words};

fn values(rng: &mut Rng, count: usize) -> Vec<f32> {
    rng.bytes(count).into_iter().map(|b| (f32::from(b) - 127.0) / 16.0).collect()
}

#[test]
fn products() {
    let Some(compiler) = Compiler::get() else { return };
    let shapes = [(1, 1, 1), (3, 5, 7), (17, 40, 33), (70, 66, 32), (129, 131, 20), (130, 260, 49)];
    for (i, (m, n, k)) in shapes.into_iter().enumerate() {
        let mut rng = Rng(i as u64 + 1);
        let (a, w) = (values(&mut rng, m * k), values(&mut rng, n * k));
        let dot = |a: &[f32], w: &[f32]| a.iter().zip(w).fold(0.0_f32, |sum, (a, w)| a.mul_add(*w, sum));
        let want: Vec<f32> = a.chunks(k).flat_map(|a| w.chunks(k).map(move |w| dot(a, w))).collect();
        for rung in FloatRung::ALL {
            let launch = Launch::new(&rung.program(), rung.launch(m, n)).array(&a).array(&w);
            let got = launch.array(&vec![77.0_f32; m * n]).int(m).int(n).int(k).run(compiler);
            assert_same(&floats(&got[2]), &want, &format!("{rung:?} {m} {n} {k}"));
        }
    }
    // Nine rows of tiles: one full group of eight, and a partial group.
    let (m, n, k) = (1100, 129, 3);
    let mut rng = Rng(9);
    let (a, w) = (values(&mut rng, m * k), values(&mut rng, n * k));
    let dot = |a: &[f32], w: &[f32]| a.iter().zip(w).fold(0.0_f32, |sum, (a, w)| a.mul_add(*w, sum));
    let want: Vec<f32> = a.chunks(k).flat_map(|a| w.chunks(k).map(move |w| dot(a, w))).collect();
    let launch = Launch::new(&FloatRung::Grouped.program(), FloatRung::Grouped.launch(m, n));
    let launch = launch.array(&a).array(&w).array(&vec![77.0_f32; m * n]).int(m).int(n).int(k);
    assert_same(&floats(&launch.run(compiler)[2]), &want, "two groups");
}

#[test]
fn softmax_of_rows() {
    let Some(compiler) = Compiler::get() else { return };
    let shapes = [(1, 1), (9, 49), (131, 49), (5, 7), (70, 50), (17, 64), (3, 300), (2, 1030), (2, 1028)];
    for (i, (rows, columns)) in shapes.into_iter().enumerate() {
        let x = values(&mut Rng(i as u64 + 5), rows * columns);
        for rung in SoftmaxRung::ALL {
            let program = rung.program(columns).unwrap();
            let launch = Launch::new(&program, rung.launch(rows, columns)).array(&x);
            let what = format!("{rung:?} {rows} {columns}");
            if rung == SoftmaxRung::Codes {
                let launch = launch.array(&vec![77_u8; rows * columns]).array(&vec![77_u32; rows]);
                let got = launch.int(rows).int(columns).run(compiler);
                let mut codes = vec![0; rows * columns];
                let each = x.chunks(columns).zip(codes.chunks_mut(columns));
                let sums: Vec<u32> = each.map(|(x, codes)| attention_row_u8(x, codes)).collect();
                assert_eq!((&got[1], words(&got[2])), (&codes, sums), "{what}");
                continue;
            }
            let launch = launch.array(&vec![77.0_f32; rows * columns]).null();
            let got = floats(&launch.int(rows).int(columns).run(compiler)[1]);
            for (got, x) in got.chunks(columns).zip(x.chunks(columns)) {
                let mut want = x.to_vec();
                let sum = attention_row_exp(&mut want);
                let near = got.iter().zip(&want).all(|(got, want)| (got - want / sum).abs() < 1e-6);
                assert!(near, "{what}: {got:?}");
            }
        }
    }
}

#[test]
fn elementwise_ops() {
    let Some(compiler) = Compiler::get() else { return };
    let scale = 23.75;
    for (i, count) in [1, 7, 8, 1030, 9001].into_iter().enumerate() {
        let mut rng = Rng(i as u64 + 50);
        let (x, y) = (values(&mut rng, count), values(&mut rng, count));
        let (x_half, y_half) = (to_half(&x), to_half(&y));
        for op in ElementwiseOp::ALL {
            let launch = Launch::new(&op.program(), op.launch(count, 1));
            let launch = match op {
                ElementwiseOp::HalfAdd => launch.array(&x_half).array(&y_half),
                _ => launch.array(&x).array(&y),
            };
            let bytes = op.element_bytes().1 * count;
            let launch = launch.array(&vec![77_u8; bytes]).int(count).int(0).float(scale);
            let got = &launch.run(compiler)[2];
            let what = format!("{op:?} {count}");
            let of = |each: &dyn Fn(usize) -> f32| (0..count).map(each).collect::<Vec<f32>>();
            match op {
                ElementwiseOp::Copy | ElementwiseOp::CopyVector => assert_same(&floats(got), &x, &what),
                ElementwiseOp::ScaleAdd | ElementwiseOp::ScaleAddVector => {
                    assert_same(&floats(got), &of(&|i| x[i].mul_add(scale, y[i])), &what);
                }
                ElementwiseOp::Gelu => assert_same(&floats(got), &of(&|i| gelu(x[i])), &what),
                ElementwiseOp::Quantize => {
                    let want: Vec<u8> = x.iter().map(|&x| code(x * scale).cast_unsigned()).collect();
                    assert_eq!(*got, want, "{what}");
                }
                ElementwiseOp::HalfAdd => {
                    let want: Vec<u16> = (0..count).map(|i| half_sum(x_half[i], y_half[i])).collect();
                    assert_same(&from_half(&halves(got)), &from_half(&want), &what);
                }
            }
        }
    }
}
