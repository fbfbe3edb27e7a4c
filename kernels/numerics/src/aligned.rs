//! Numbers that start on a cache line.

use std::fmt;
use std::ops::Deref;

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// Numbers that start on a cache line. A load of a register, or of a row of a tile, that crosses cache lines takes twice the
/// time.
pub struct Aligned<T> {
    /// Less than a line of zeros, then the values.
    memory: Vec<T>,
    /// The first value, which starts on a line.
    start: usize,
}

impl<T: Copy + Default> From<&[T]> for Aligned<T> {
    fn from(values: &[T]) -> Aligned<T> {
        const { assert!(size_of::<T>() == align_of::<T>() && size_of::<T>() <= LINE, "a number") };
        let mut memory: Vec<T> = Vec::with_capacity(values.len() + LINE / size_of::<T>());
        // Less than a line, so that the values fit the memory and it stays where it is.
        let start = memory.as_ptr().align_offset(LINE);
        memory.resize(start, T::default());
        memory.extend_from_slice(values);
        Aligned { memory, start }
    }
}

impl<T: Copy + Default> From<Vec<T>> for Aligned<T> {
    fn from(values: Vec<T>) -> Aligned<T> {
        Aligned::from(values.as_slice())
    }
}

impl<T: Copy + Default> FromIterator<T> for Aligned<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Aligned<T> {
        values.into_iter().collect::<Vec<T>>().into()
    }
}

impl<T: Copy + Default> Clone for Aligned<T> {
    fn clone(&self) -> Aligned<T> {
        Aligned::from(&**self)
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.memory[self.start..]
    }
}

impl<T: fmt::Debug> fmt::Debug for Aligned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: PartialEq> PartialEq for Aligned<T> {
    fn eq(&self, other: &Aligned<T>) -> bool {
        **self == **other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts_on_a_line<T>(values: &[T]) -> bool {
        values.as_ptr().addr().is_multiple_of(LINE)
    }

    #[test]
    fn aligned_values_are_those_given() {
        for len in [0, 1, 15, 16, 17, 1000] {
            let values: Vec<i32> = (0..len).map(|i| 7 - i * i).collect();
            let (aligned, clone) = (Aligned::from(values.clone()), Aligned::from(values.as_slice()).clone());
            assert!(*aligned == values && aligned == clone);
            assert!(starts_on_a_line(&aligned) && starts_on_a_line(&clone), "{len} values");
        }
    }

    #[test]
    fn values_of_every_size_start_on_a_line() {
        for len in [1, 63, 64, 65] {
            assert!(starts_on_a_line(&Aligned::from(vec![1u8; len])), "{len} bytes");
            assert!(starts_on_a_line(&Aligned::from(vec![1u16; len])), "{len} numbers of 2 bytes");
        }
    }
}
