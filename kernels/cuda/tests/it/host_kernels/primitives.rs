//! Compares collectives and copies with their definitions.

use swinq_cuda::{LaunchConfig, Program};
use swinq_testing::{Rng, assert_varied};

use super::compiler::Compiler;
use super::launch::{Launch, bytes, floats, words};

/// A program of `primitives.cu`.
pub fn program(entry: &'static str, threads: u32) -> Program {
    Program::new("primitives.cu", entry).define("THREADS", i64::from(threads))
}

/// A launch of such a program, with the parameters `in`, `n` and `out` of `primitives.cu`.
pub fn launch(program: &Program, blocks: u32, n: usize, input: &[u8], output: &[u8]) -> Launch {
    let threads = program.defines.iter().find(|(name, _)| *name == "THREADS").unwrap().1;
    let config = LaunchConfig { shared: 4096, ..LaunchConfig::linear(blocks, threads as u32) };
    Launch::new(program, config).array(input).array(output).int(n)
}

/// A launch of `dependent`, whose input an earlier launch writes.
pub fn dependent(fault: i64) -> Launch {
    let config = LaunchConfig { shared: 0, ..LaunchConfig::linear(1, 64) };
    let launch = Launch::new(&program("dependent", 64).define("FAULT", fault), config);
    let input: Vec<u32> = (0..64).collect();
    launch.activation(&input).array(&[0_u32; 64]).int(64)
}

/// The output of `launch`.
fn output(compiler: &Compiler, launch: &Launch) -> Vec<u8> {
    launch.run(compiler).swap_remove(1)
}

#[test]
fn lanes_exchange_values() {
    let Some(compiler) = Compiler::get() else { return };
    let bytes = Rng(1).bytes(4 * 192);
    let input = words(&bytes);
    let got = words(&output(compiler, &launch(&program("shuffle", 96), 2, 192, &bytes, &[0; 4 * 6 * 192])));
    for t in 0..192 {
        for k in 0..5 {
            assert_eq!(got[k * 192 + t], input[t ^ (1 << k)], "thread {t}, mask {}", 1 << k);
        }
        let warp = &input[t / 32 * 32..][..32];
        assert_eq!(got[5 * 192 + t], warp.iter().map(|x| x & 0xffff).sum::<u32>());
    }
}

#[test]
fn matrices_are_loaded_by_rows_and_by_columns() {
    let Some(compiler) = Compiler::get() else { return };
    let input = Rng(2).bytes(512);
    let got = words(&output(compiler, &launch(&program("matrix", 32), 1, 512, &input, &[0; 1024])));
    let element = |matrix: usize, row: usize, column: usize| {
        let at = 16 * (8 * matrix + row) + 2 * column;
        u32::from(input[at]) | u32::from(input[at + 1]) << 8
    };
    for lane in 0..32 {
        for matrix in 0..4 {
            let (row, column) = (lane / 4, lane % 4 * 2);
            let by_row = element(matrix, row, column) | element(matrix, row, column + 1) << 16;
            let by_column = element(matrix, column, row) | element(matrix, column + 1, row) << 16;
            assert_eq!(got[4 * lane + matrix], by_row, "lane {lane}, matrix {matrix}");
            assert_eq!(got[128 + 4 * lane + matrix], by_column, "lane {lane}, matrix {matrix}, transposed");
        }
    }
}

#[test]
fn blocks_know_their_place() {
    let Some(compiler) = Compiler::get() else { return };
    let program = program("places", 32);
    let config = LaunchConfig { grid: [3, 5, 1], ..LaunchConfig::linear(1, 32) };
    let launch = Launch::new(&program, config).array(&[0_u8; 4]).array(&[77_u32; 60]).int(0);
    let want = (0..15).flat_map(|block| [block % 3, block / 3, 3, 5]);
    assert_eq!(words(&output(compiler, &launch)), want.collect::<Vec<u32>>());
}

/// `c[row][column] += sum of a[row] * b[column]` over 32 bytes, for both integer products.
#[test]
fn integer_products_are_their_definition() {
    let Some(compiler) = Compiler::get() else { return };
    for unsigned in [false, true] {
        let program = program("product", 32).define("PRODUCT", i64::from(unsigned));
        let mut input = Rng(3).bytes(768);
        // Sums with the extreme values of both operands.
        input[..32].fill(if unsigned { 255 } else { 0x80 });
        input[512..544].fill(0x80);
        let start = Rng(4).bytes(512);
        let got = words(&output(compiler, &launch(&program, 1, 0, &input, &start)));
        let signed = |b: u8| i32::from(b.cast_signed());
        let want = words(&start).into_iter().enumerate().map(|(i, c)| {
            let pairs = input[i / 8 * 32..][..32].iter().zip(&input[512 + i % 8 * 32..][..32]);
            let sum = pairs.map(|(&a, &b)| if unsigned { i32::from(a) } else { signed(a) } * signed(b));
            c.wrapping_add(sum.sum::<i32>().cast_unsigned())
        });
        assert_eq!(got, want.collect::<Vec<u32>>(), "unsigned: {unsigned}");
    }
}

/// Halves are small integers, so every sum is exact.
#[test]
fn the_product_of_halves_is_its_definition() {
    let Some(compiler) = Compiler::get() else { return };
    let mut rng = Rng(5);
    let values: Vec<i16> = (0..384).map(|_| (rng.next() % 33) as i16 - 16).collect();
    let half = |x: i16| super::functions::nearest_half(f32::from(x));
    let input = bytes(&values.iter().map(|&x| half(x)).collect::<Vec<u16>>());
    let start: Vec<f32> = (0..128).map(|i| i as f32 * 0.25).collect();
    let start_bytes = bytes(&start);
    let program = program("product", 32).define("PRODUCT", 2);
    let got = floats(&output(compiler, &launch(&program, 1, 0, &input, &start_bytes)));
    for (i, (got, start)) in got.iter().zip(start).enumerate() {
        let pairs = values[i / 8 * 16..][..16].iter().zip(&values[256 + i % 8 * 16..][..16]);
        let sum: i32 = pairs.map(|(&a, &b)| i32::from(a) * i32::from(b)).sum();
        assert_eq!(*got, start + sum as f32, "element {i}");
    }
    assert_varied(&got, "product of halves");
}

#[test]
fn memory_of_earlier_launches_may_be_touched_after_the_wait() {
    let Some(compiler) = Compiler::get() else { return };
    let got = words(&output(compiler, &dependent(0)));
    assert_eq!(got, (0..64).collect::<Vec<u32>>());
}

#[test]
fn copies_land_with_zeros_behind_the_last_byte() {
    let Some(compiler) = Compiler::get() else { return };
    for bytes in [1, 15, 16, 17, 1000, 1024] {
        let input = Rng(6).bytes(bytes);
        let got = output(compiler, &launch(&program("copies", 32), 1, bytes, &input, &[1; 1024]));
        assert_eq!(got[..bytes], input);
        assert!(got[bytes..].iter().all(|b| *b == 0), "{bytes} bytes");
    }
}
