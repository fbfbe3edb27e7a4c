//! The tile registers in plain Rust, with the results of the instructions. Where an instruction would raise a
//! fault, the emulation panics.

use super::tile::{Config, Element, ROW_BYTES, Shape, TILE_ROWS, TILES, Tiles};

/// The bytes of a tile register. Bytes outside of its shape are zero.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Register([[u8; ROW_BYTES]; TILE_ROWS]);

const ZERO: Register = Register([[0; ROW_BYTES]; TILE_ROWS]);

/// Emulated tile registers.
pub(super) struct Emulated {
    /// `None` unless configured.
    shapes: Option<[Shape; TILES]>,
    registers: [Register; TILES],
}

impl Emulated {
    /// Tiles that are not configured.
    pub(super) fn new() -> Emulated {
        Emulated { shapes: None, registers: [ZERO; TILES] }
    }

    fn shape(&self, tile: usize) -> Shape {
        self.shapes.expect("tiles are configured")[tile]
    }
}

impl Tiles for Emulated {
    fn configure(&mut self, config: &Config) {
        let bytes = &config.0;
        assert!(bytes[0] == 1, "palette 1");
        assert!(bytes[1..16].iter().all(|&b| b == 0), "no interrupted load, and reserved bytes of zero");
        assert!(bytes[32..48].iter().chain(&bytes[56..]).all(|&b| b == 0), "no tiles 8 to 15");
        let shapes = config.shapes();
        for Shape { rows, row_bytes } in shapes {
            assert!(
                rows <= TILE_ROWS && row_bytes <= ROW_BYTES,
                "a tile of {rows} rows by {row_bytes} bytes"
            );
            // Both may be 0, but such a tile could not be used.
            assert!(rows > 0 && row_bytes > 0, "a tile is not configured");
        }
        self.shapes = Some(shapes);
        self.registers = [ZERO; TILES];
    }

    fn release(&mut self) {
        self.shapes = None;
    }

    unsafe fn load<const T: usize, E: Element>(&mut self, from: &[E], at: usize, stride: usize) {
        let Shape { rows, row_bytes } = self.shape(T);
        let from = as_bytes(&from[at..]);
        self.registers[T] = ZERO;
        for (r, row) in self.registers[T].0[..rows].iter_mut().enumerate() {
            row[..row_bytes].copy_from_slice(&from[r * stride..][..row_bytes]);
        }
    }

    #[inline(always)]
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        assert!(C != A && A != B && B != C, "distinct tiles");
        let (c, a, b) = (self.shape(C), self.shape(A), self.shape(B));
        assert_eq!((c.rows, c.row_bytes), (a.rows, b.row_bytes), "rows and columns of the result");
        assert!(a.row_bytes == 4 * b.rows, "{} inputs and {} groups of weights", a.row_bytes, b.rows);
        let groups = b.rows;
        let [acc, a, b] = self.registers.get_disjoint_mut([C, A, B]).expect("distinct tiles");
        // Bytes outside of the shapes are zero in all three tiles and stay so.
        for (acc, a) in acc.0[..c.rows].iter_mut().zip(&a.0) {
            add_row(acc, a, &b.0[..groups]);
        }
    }

    unsafe fn store<const T: usize, E: Element>(&mut self, to: &mut [E], at: usize, stride: usize) {
        let Shape { rows, row_bytes } = self.shape(T);
        let to = as_bytes_mut(&mut to[at..]);
        for (r, row) in self.registers[T].0[..rows].iter().enumerate() {
            to[r * stride..][..row_bytes].copy_from_slice(&row[..row_bytes]);
        }
    }
}

/// Adds the products of one row of A with the groups of B to a row of accumulators.
#[inline(always)]
fn add_row(acc: &mut [u8; ROW_BYTES], a: &[u8; ROW_BYTES], b: &[[u8; ROW_BYTES]]) {
    let mut sums: [i32; ROW_BYTES / 4] = std::array::from_fn(|n| {
        i32::from_le_bytes([acc[4 * n], acc[4 * n + 1], acc[4 * n + 2], acc[4 * n + 3]])
    });
    for (x, weights) in a.as_chunks::<4>().0.iter().zip(b) {
        for (sum, w) in sums.iter_mut().zip(weights.as_chunks::<4>().0) {
            let products: [i32; 4] = std::array::from_fn(|i| i32::from(x[i]) * i32::from(w[i] as i8));
            *sum = sum.wrapping_add(products[0] + products[1] + products[2] + products[3]);
        }
    }
    for (bytes, sum) in acc.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
        *bytes = sum.to_le_bytes();
    }
}

fn as_bytes<E: Element>(from: &[E]) -> &[u8] {
    // SAFETY: the same memory; an `Element` has no padding, and any byte is a valid u8.
    unsafe { std::slice::from_raw_parts(from.as_ptr().cast(), size_of_val(from)) }
}

fn as_bytes_mut<E: Element>(to: &mut [E]) -> &mut [u8] {
    // SAFETY: as in `as_bytes`; any bytes are values of an `Element`, and the borrow is unique.
    unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast(), size_of_val(to)) }
}
