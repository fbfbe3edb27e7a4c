//! Types that may be copied to a device and back.

mod sealed {
    pub trait Sealed {}
}

/// A type without padding for which every pattern of bits is a value.
///
/// # Safety
/// Sealed: implemented here for the numbers that kernels use, and for arrays of them.
pub unsafe trait Plain: sealed::Sealed + Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl sealed::Sealed for $type {}
        // SAFETY: a primitive number: no padding, every pattern of bits is a value.
        unsafe impl Plain for $type {}
    )*};
}

plain!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl<T: Plain, const N: usize> sealed::Sealed for [T; N] {}
// SAFETY: an array has the padding of its elements, which is none, and any values of them.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
