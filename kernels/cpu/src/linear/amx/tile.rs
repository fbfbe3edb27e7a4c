//! The tile registers of AMX as a trait: eight registers of up to 16 rows by 64 bytes, whose sizes a thread
//! configures before it uses them.
//!
//! [`Real`](super::real::Real) executes the instructions, [`Emulated`](super::emulated::Emulated) computes
//! the same results in plain Rust. Everything above this layer is generic over it. The instructions are those
//! of the Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.

pub(super) use crate::buffer::Element;

/// Tile registers.
pub(super) const TILES: usize = 8;

/// The most rows of a tile.
pub(super) const TILE_ROWS: usize = 16;

/// The most bytes of a row of a tile.
pub(super) const ROW_BYTES: usize = 64;

/// The size of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// 1 to 16.
    pub(super) rows: usize,
    /// Bytes of a row: 4 to 64, a multiple of 4.
    pub(super) row_bytes: usize,
}

impl Shape {
    /// A tile of 16 rows by 64 bytes.
    pub(super) const FULL: Shape = Shape { rows: TILE_ROWS, row_bytes: ROW_BYTES };

    /// Checks that rows of this shape, `stride` bytes apart, lie within `bytes` bytes.
    ///
    /// # Panics
    /// If it does not.
    #[inline(always)]
    pub(super) fn check(self, stride: usize, bytes: usize) {
        let last = (self.rows - 1).checked_mul(stride);
        let within = last.is_some_and(|last| last <= bytes && self.row_bytes <= bytes - last);
        assert!(within, "{self:?} lies within its memory");
    }
}

/// The operand of `ldtilecfg`: palette 1, row 0 of an interrupted load, 14 reserved bytes, bytes of a row of
/// 16 tiles in 16 bits each, rows of 16 tiles in 8 bits each. Tiles 8 to 15 do not exist.
#[repr(C, align(64))]
#[derive(Clone)]
pub(super) struct Config(pub(super) [u8; 64]);

impl Config {
    /// All tiles in use, in the shapes `shapes`.
    ///
    /// # Panics
    /// If a tile cannot have that shape.
    pub(super) fn new(shapes: [Shape; TILES]) -> Config {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        for (tile, Shape { rows, row_bytes }) in shapes.into_iter().enumerate() {
            assert!((1..=TILE_ROWS).contains(&rows), "a tile of {rows} rows");
            assert!(
                (4..=ROW_BYTES).contains(&row_bytes) && row_bytes.is_multiple_of(4),
                "a tile with rows of {row_bytes} bytes"
            );
            bytes[16 + 2 * tile] = row_bytes as u8;
            bytes[48 + tile] = rows as u8;
        }
        Config(bytes)
    }

    /// The shape of each tile.
    pub(super) fn shapes(&self) -> [Shape; TILES] {
        std::array::from_fn(|tile| {
            let row_bytes = u16::from_le_bytes([self.0[16 + 2 * tile], self.0[17 + 2 * tile]]);
            Shape { rows: usize::from(self.0[48 + tile]), row_bytes: usize::from(row_bytes) }
        })
    }
}

/// The tile registers of one thread. Strides are in bytes.
///
/// The methods that use tiles are unsafe because the processor's tiles check nothing in a release build: the
/// checks of each call took as many instructions as the loop around them. The emulation panics where a call
/// is wrong.
pub(super) trait Tiles {
    /// `ldtilecfg`: sets the shapes of all tiles, and all values to zero.
    fn configure(&mut self, config: &Config);

    /// `tilerelease`: no tile is configured, and the thread has no tile state that the operating system would
    /// save.
    fn release(&mut self);

    /// `tileloadd`: loads tile `T` from element `at` of `from` on. With a stride of 0 all rows are the same.
    ///
    /// # Safety
    /// The tiles are configured, and the tile lies within `from`.
    unsafe fn load<const T: usize, E: Element>(&mut self, from: &[E], at: usize, stride: usize);

    /// `tileloaddt1`: as [`Tiles::load`], of bytes that displace nothing in the first-level cache. Tiles
    /// without a cache load them as others.
    ///
    /// # Safety
    /// As for [`Tiles::load`].
    unsafe fn load_passing<const T: usize, E: Element>(&mut self, from: &[E], at: usize, stride: usize) {
        // SAFETY: promised by the caller.
        unsafe { self.load::<T, _>(from, at, stride) };
    }

    /// `tdpbusd`: adds the products of tile `A`, unsigned bytes, with tile `B`, signed bytes in groups of
    /// four, to tile `C`, i32 that wrap around.
    ///
    /// ```text
    /// C[m][n] += sum_k sum_i A[m][4 k + i] * B[k][4 n + i]     i = 0, 1, 2, 3
    /// ```
    ///
    /// # Safety
    /// The tiles are configured, with as many rows in C as in A, columns in C as in B, and groups in A as in
    /// B.
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self);

    /// `tilestored`: stores tile `T` from element `at` of `to` on.
    ///
    /// # Safety
    /// The tiles are configured, and the tile lies within `to`.
    unsafe fn store<const T: usize, E: Element>(&mut self, to: &mut [E], at: usize, stride: usize);
}

/// Configured tiles, which are released when this is dropped, so that a thread between two blocks has no tile
/// state.
pub(super) struct Configured<T: Tiles>(T);

impl<T: Tiles> Configured<T> {
    pub(super) fn new(mut tiles: T, config: &Config) -> Configured<T> {
        tiles.configure(config);
        Configured(tiles)
    }

    #[inline(always)]
    pub(super) fn tiles(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Tiles> Drop for Configured<T> {
    fn drop(&mut self) {
        self.0.release();
    }
}
