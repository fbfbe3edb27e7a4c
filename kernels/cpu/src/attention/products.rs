//! The inner loop of both products, `QK^T` and `PV`, which all vector paths share.

use super::operands::Rows;
use crate::lanes::Lanes;

/// The arithmetic of a product: integers or f32.
pub(super) trait Product<L: Lanes> {
    /// An element of a left row.
    type Left: Copy;
    /// An element of the right operand.
    type Right: Copy;
    /// A register of right elements, of a broadcast left group, or of sums.
    type Register: Copy;
    /// Left elements that are multiplied with one register.
    const GROUP: usize;
    /// Right elements of a register.
    const REGISTER: usize;
    /// Whether the sums are integers.
    const INTEGER: bool;

    /// The initial sums of register `block` of keys.
    fn initial(lanes: L, offsets: &[f32], block: usize) -> Self::Register;
    /// Zeros.
    fn zero(lanes: L) -> Self::Register;
    /// A register of right elements.
    ///
    /// # Safety
    /// `REGISTER` elements at `at` are readable.
    unsafe fn right(lanes: L, at: *const Self::Right) -> Self::Register;
    /// A left group in every lane.
    ///
    /// # Safety
    /// `GROUP` elements at `at` are readable.
    unsafe fn left(lanes: L, at: *const Self::Left) -> Self::Register;
    /// Adds the products of each lane.
    fn add(lanes: L, sums: Self::Register, left: Self::Register, right: Self::Register) -> Self::Register;
    /// Sums as f32.
    fn float(lanes: L, sums: Self::Register) -> L::F;
}

/// Unsigned codes times signed codes, four to a lane, exactly.
pub(super) struct Integer;

impl<L: Lanes> Product<L> for Integer {
    type Left = u8;
    type Right = u8;
    type Register = L::I;
    const GROUP: usize = 4;
    const REGISTER: usize = 4 * L::N;
    const INTEGER: bool = true;

    /// The offset of each key.
    #[inline(always)]
    fn initial(lanes: L, offsets: &[f32], block: usize) -> L::I {
        let offsets = &offsets[block * L::N..][..L::N];
        // SAFETY: N values of four bytes.
        unsafe { lanes.read_i(offsets.as_ptr().cast()) }
    }

    #[inline(always)]
    fn zero(lanes: L) -> L::I {
        lanes.splat_i(0)
    }

    #[inline(always)]
    unsafe fn right(lanes: L, at: *const u8) -> L::I {
        // SAFETY: the caller's promise.
        unsafe { lanes.read_i(at) }
    }

    #[inline(always)]
    unsafe fn left(lanes: L, at: *const u8) -> L::I {
        // SAFETY: the caller's promise: four bytes.
        lanes.splat_i(unsafe { at.cast::<i32>().read_unaligned() })
    }

    #[inline(always)]
    fn add(lanes: L, sums: L::I, left: L::I, right: L::I) -> L::I {
        lanes.dot(sums, left, right)
    }

    #[inline(always)]
    fn float(lanes: L, sums: L::I) -> L::F {
        lanes.float(sums)
    }
}

/// Fused multiply-adds of f32 in the order of the left elements.
pub(super) struct Float;

impl<L: Lanes> Product<L> for Float {
    type Left = f32;
    type Right = f32;
    type Register = L::F;
    const GROUP: usize = 1;
    const REGISTER: usize = L::N;
    const INTEGER: bool = false;

    /// Zeros.
    #[inline(always)]
    fn initial(lanes: L, _: &[f32], _: usize) -> L::F {
        lanes.splat(0.0)
    }

    #[inline(always)]
    fn zero(lanes: L) -> L::F {
        lanes.splat(0.0)
    }

    #[inline(always)]
    unsafe fn right(lanes: L, at: *const f32) -> L::F {
        // SAFETY: the caller's promise.
        unsafe { lanes.read(at) }
    }

    #[inline(always)]
    unsafe fn left(lanes: L, at: *const f32) -> L::F {
        // SAFETY: the caller's promise.
        lanes.splat(unsafe { *at })
    }

    #[inline(always)]
    fn add(lanes: L, sums: L::F, left: L::F, right: L::F) -> L::F {
        lanes.fma(left, right, sums)
    }

    #[inline(always)]
    fn float(_: L, sums: L::F) -> L::F {
        sums
    }
}

/// The right operand of a product: register `group` of block `block` starts at
/// `block * per_block + group * per_group`.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a, T> {
    pub(super) data: &'a [T],
    pub(super) per_block: usize,
    pub(super) per_group: usize,
}

impl<'a, T> Blocks<'a, T> {
    /// The operand from block `block` on.
    #[inline(always)]
    pub(super) fn from(self, block: usize) -> Blocks<'a, T> {
        Blocks { data: &self.data[block * self.per_block..], ..self }
    }
}

/// `initial` plus the products of the first `R` of `rows` and the first `T` of `blocks`, over `groups`
/// groups.
#[inline(always)]
pub(super) fn products<L: Lanes, P: Product<L>, const R: usize, const T: usize>(
    lanes: L,
    groups: usize,
    rows: Rows<'_, P::Left>,
    blocks: Blocks<'_, P::Right>,
    initial: [P::Register; T],
) -> [[P::Register; T]; R] {
    let Blocks { data, per_block, per_group } = blocks;
    assert!(groups == 0 || data.len() >= (T - 1) * per_block + (groups - 1) * per_group + P::REGISTER);
    assert!(rows.data.len() >= (R - 1) * rows.stride + P::GROUP * groups);
    let mut sums = [initial; R];
    for group in 0..groups {
        let mut right = initial;
        for (t, right) in right.iter_mut().enumerate() {
            // SAFETY: register `group` of block `t` is inside `data`, by the assertion above.
            *right = unsafe { P::right(lanes, data.as_ptr().add(t * per_block + group * per_group)) };
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: group `group` of row `r` is inside `rows`, by the assertion above.
            let left = unsafe { P::left(lanes, rows.data.as_ptr().add(r * rows.stride + P::GROUP * group)) };
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = P::add(lanes, *sum, left, right);
            }
        }
    }
    sums
}
