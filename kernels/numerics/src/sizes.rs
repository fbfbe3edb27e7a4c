//! Sizes of operands. Every size that the constructor or the run of an op derives from its arguments is
//! computed here, so that a product that overflows is an error and not a smaller number.

/// The product of `shape`, if the product of the sizes that are not 0 is at most `isize::MAX`: no slice has
/// more elements. The product of some of the sizes cannot overflow then, nor can
/// [`code_stride`](crate::code_stride).
fn volume(shape: &[usize]) -> Option<usize> {
    let product = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size.max(1)))?;
    let volume = if shape.contains(&0) { 0 } else { product };
    (product <= isize::MAX as usize).then_some(volume)
}

/// The number of elements of `what`, whose shape is `shape`.
///
/// # Panics
/// If it exceeds `isize::MAX`, or would without the sizes that are 0.
pub fn elements(op: &str, what: &str, shape: &[usize]) -> usize {
    volume(shape).unwrap_or_else(|| too_large(op, what, shape))
}

#[cold]
#[inline(never)]
fn too_large(op: &str, what: &str, shape: &[usize]) -> ! {
    panic!("{op}: {what} of {shape:?} elements is too large")
}

/// Checks the length of an op's slice against its shape.
///
/// # Panics
/// Unless `len` is the product of `shape`.
pub fn check_len(op: &str, what: &str, len: usize, shape: &[usize]) {
    assert!(volume(shape) == Some(len), "{op}: {what} of {len} elements is not {shape:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_never_overflows() {
        let most = isize::MAX as usize;
        assert_eq!(volume(&[]), Some(1));
        assert_eq!(volume(&[2, 3, 4]), Some(24));
        assert_eq!(volume(&[2, 0, 4]), Some(0));
        assert_eq!(volume(&[most]), Some(most));
        assert_eq!(volume(&[most + 1]), None);
        assert_eq!(volume(&[most, 2]), None);
        // 2^64 and 2^66 wrap to 0; a size of 0 hides no overflow.
        assert_eq!(volume(&[1 << 32, 1 << 32]), None);
        assert_eq!(volume(&[1 << 33, 1 << 33]), None);
        assert_eq!(volume(&[0, 1 << 33, 1 << 33]), None);
    }
}
