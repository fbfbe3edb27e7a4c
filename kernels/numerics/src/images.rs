//! The images that a network reads: bytes before normalisation, or normalised values.

use std::ops::Range;

use half::f16;

use crate::windows::Size;

/// Images of one size.
#[derive(Clone, Copy, Debug)]
pub struct Images<'a> {
    /// Height and width in pixels.
    pub size: Size,
    /// The values of all images, one image after the other.
    pub pixels: Pixels<'a>,
    /// The order of the values of one image.
    pub layout: ImageLayout,
}

impl<'a> Images<'a> {
    /// Images whose channels come last.
    pub fn new(size: Size, pixels: impl Into<Pixels<'a>>) -> Images<'a> {
        Images { size, pixels: pixels.into(), layout: ImageLayout::ChannelsLast }
    }

    /// The images whose values are `range`.
    ///
    /// # Panics
    /// Outside the values.
    pub fn of_values(self, range: Range<usize>) -> Images<'a> {
        Images { pixels: self.pixels.slice(range), ..self }
    }
}

/// The values of images.
#[derive(Clone, Copy, Debug)]
pub enum Pixels<'a> {
    /// 8-bit pixels, which the network normalises.
    U8(&'a [u8]),
    /// Normalised values: the network reads them as they are, without a mean, a deviation or a factor.
    F32(&'a [f32]),
    /// Normalised values, which are converted to f32 without a change.
    F16(&'a [f16]),
}

impl<'a> Pixels<'a> {
    /// The number of values.
    pub fn len(self) -> usize {
        match self {
            Pixels::U8(values) => values.len(),
            Pixels::F32(values) => values.len(),
            Pixels::F16(values) => values.len(),
        }
    }

    /// Whether there is no value.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The index of the first value that is not finite, and the value.
    pub fn first_not_finite(self) -> Option<(usize, f32)> {
        match self {
            Pixels::U8(_) => None,
            Pixels::F32(values) => {
                values.iter().position(|value| !value.is_finite()).map(|at| (at, values[at]))
            }
            Pixels::F16(values) => {
                values.iter().position(|value| !value.is_finite()).map(|at| (at, values[at].to_f32()))
            }
        }
    }

    fn slice(self, range: Range<usize>) -> Pixels<'a> {
        match self {
            Pixels::U8(values) => Pixels::U8(&values[range]),
            Pixels::F32(values) => Pixels::F32(&values[range]),
            Pixels::F16(values) => Pixels::F16(&values[range]),
        }
    }
}

impl<'a> From<&'a [u8]> for Pixels<'a> {
    fn from(values: &'a [u8]) -> Pixels<'a> {
        Pixels::U8(values)
    }
}

impl<'a> From<&'a [f32]> for Pixels<'a> {
    fn from(values: &'a [f32]) -> Pixels<'a> {
        Pixels::F32(values)
    }
}

impl<'a> From<&'a [f16]> for Pixels<'a> {
    fn from(values: &'a [f16]) -> Pixels<'a> {
        Pixels::F16(values)
    }
}

/// The treatment of pixels at the right and at the bottom of an image that fill no whole patch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageEdge {
    /// Their patches are filled with pixels whose normalised value is 0.
    #[default]
    Padded,
    /// They are left out, as by a convolution without padding.
    Cut,
}

impl ImageEdge {
    /// The patches of `patch` by `patch` pixels of an image of `image` pixels.
    pub fn grid(self, image: Size, patch: usize) -> Size {
        match self {
            ImageEdge::Padded => image.map(|side| side.div_ceil(patch)),
            ImageEdge::Cut => image.map(|side| side / patch),
        }
    }
}

/// The order of the values of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageLayout {
    /// `[height, width, channels]`.
    #[default]
    ChannelsLast,
    /// `[channels, height, width]`.
    ChannelsFirst,
}

impl ImageLayout {
    /// Row, column and channel of the value `index` of an image of `size` with `channels` channels.
    pub fn place(self, index: usize, size: Size, channels: usize) -> (usize, usize, usize) {
        match self {
            ImageLayout::ChannelsLast => {
                let pixel = index / channels;
                (pixel / size.width, pixel % size.width, index % channels)
            }
            ImageLayout::ChannelsFirst => {
                let pixel = index % size.area();
                (pixel / size.width, pixel % size.width, index / size.area())
            }
        }
    }
}
