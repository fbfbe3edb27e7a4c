//! Types that may be copied to and from a device.

mod sealed {
    pub trait Sealed {}
}

/// A type without padding for which every bit pattern is a valid value.
///
/// # Safety
/// Sealed: this module implements it for the numbers that kernels use, and for arrays of them.
pub unsafe trait Plain: sealed::Sealed + Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl sealed::Sealed for $type {}
        // SAFETY: a primitive number has no padding, and every bit pattern is a valid value.
        unsafe impl Plain for $type {}
    )*};
}

plain!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl<T: Plain, const N: usize> sealed::Sealed for [T; N] {}
// SAFETY: the elements have no padding, so the array has none, and any bit pattern is a valid value.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
