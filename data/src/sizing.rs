//! The size that images of any size get before a network that takes any size.

use std::fmt;
use std::str::FromStr;

use swinq_model::Size;

/// How the size to which an image is resized follows from its own size. Nothing is cropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sizing {
    /// The image's own size.
    #[default]
    Keep,
    /// This size, whatever the proportions of the image.
    Exact(Size),
    /// The shorter side becomes `short` pixels and the longer one follows in proportion. If that were more
    /// than `long` pixels, the longer side becomes `long` pixels and the shorter one follows.
    ///
    /// Sides are those of detectron2 (`ResizeShortestEdge`), which rounds to the nearest number and halves
    /// up. OpenMMLab (`rescale_size`) does the same, but for a pixel where its f64 arithmetic sees a half
    /// that detectron2's does not. transformers truncates the longer side, so that its images may be a pixel
    /// smaller.
    Shorter {
        /// The shorter side in pixels.
        short: usize,
        /// The most pixels of the longer side.
        long: usize,
    },
}

impl Sizing {
    /// The size to which an image of `image` pixels is resized. No side is 0. With a `divisor`
    /// ([`Transform::size_divisor`](swinq_model::Transform)), sides are rounded up to its multiples, unless
    /// the image keeps its size.
    pub fn apply(self, image: Size, divisor: Option<usize>) -> Size {
        let size = match self {
            Sizing::Keep => return image,
            Sizing::Exact(size) => size,
            Sizing::Shorter { short, long } => in_proportion(image, short as f64, long as f64),
        };
        size.map(|side| side.next_multiple_of(divisor.unwrap_or(1)))
    }
}

/// [`Sizing::Shorter`], in the order of detectron2's operations, which decides about halves.
fn in_proportion(image: Size, short: f64, long: f64) -> Size {
    let (height, width) = (image.height as f64, image.width as f64);
    let scale = short / height.min(width);
    let resized = if height < width { [short, scale * width] } else { [scale * height, short] };
    let longest = resized[0].max(resized[1]);
    let [height, width] = if longest > long { resized.map(|side| side * (long / longest)) } else { resized };
    let rounded = |side: f64| ((side + 0.5) as usize).max(1);
    Size::new(rounded(height), rounded(width))
}

/// The text that [`Sizing::from_str`] reads.
impl fmt::Display for Sizing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sizing::Keep => f.write_str("keep"),
            Sizing::Exact(Size { height, width }) => write!(f, "{height}x{width}"),
            Sizing::Shorter { short, long } => write!(f, "short:{short},long:{long}"),
        }
    }
}

/// The error for a text that is no [`Sizing`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a size; write `keep`, HEIGHTxWIDTH as in 800x1344, or `short:800,long:1333`, with sides of 1 to 65535"
)]
pub struct ParseSizingError(String);

impl FromStr for Sizing {
    type Err = ParseSizingError;

    /// Reads `keep`, `800x1344` (height and width) or `short:800,long:1333`.
    fn from_str(text: &str) -> Result<Sizing, ParseSizingError> {
        let side = |text: &str| text.parse::<u16>().ok().filter(|&side| side > 0).map(usize::from);
        let sizing = match text.split_once(',') {
            _ if text == "keep" => Some(Sizing::Keep),
            Some((short, long)) => short
                .strip_prefix("short:")
                .zip(long.strip_prefix("long:"))
                .and_then(|(short, long)| Some(Sizing::Shorter { short: side(short)?, long: side(long)? })),
            None => text
                .split_once('x')
                .and_then(|(height, width)| Some(Sizing::Exact(Size::new(side(height)?, side(width)?)))),
        };
        sizing.ok_or_else(|| ParseSizingError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_written() {
        for text in ["keep", "800x1344", "short:800,long:1333"] {
            assert_eq!(text.parse::<Sizing>().unwrap().to_string(), text);
        }
        assert_eq!("5x7".parse(), Ok(Sizing::Exact(Size::new(5, 7))));
        for text in [
            "",
            "Keep",
            "800",
            "0x8",
            "8x",
            "8x8x8",
            "short:800",
            "long:9,short:8",
            "short:0,long:1",
            "70000x1",
        ] {
            assert!(
                text.parse::<Sizing>().unwrap_err().to_string().contains("short:800,long:1333"),
                "{text}"
            );
        }
    }

    /// Sizes of detectron2's `ResizeShortestEdge.get_output_shape`. mmcv's `rescale_size` has them too, but
    /// 667 for 91 x 182.
    #[test]
    fn proportions_are_those_of_the_detectors() {
        let sizing = Sizing::Shorter { short: 800, long: 1333 };
        for (image, expected) in [
            ((480, 640), (800, 1067)),
            ((640, 480), (1067, 800)),
            ((427, 640), (800, 1199)),
            ((426, 640), (800, 1202)),
            ((500, 333), (1201, 800)),
            ((333, 640), (694, 1333)),
            ((1080, 1920), (750, 1333)),
            ((800, 800), (800, 800)),
            ((320, 640), (667, 1333)),
            ((91, 182), (666, 1333)),
            ((1, 5000), (1, 1333)),
        ] {
            let found = sizing.apply(Size::new(image.0, image.1), None);
            assert_eq!(found, Size::new(expected.0, expected.1), "{image:?}");
        }
        assert_eq!(Sizing::Keep.apply(Size::new(3, 9), None), Size::new(3, 9));
        assert_eq!(Sizing::Exact(Size::new(4, 5)).apply(Size::new(3, 9), None), Size::new(4, 5));
    }

    /// As by transformers' processor of Mask2Former, which resizes to multiples of 32.
    #[test]
    fn a_divisor_rounds_the_sides_of_resized_images_up() {
        let sizing = Sizing::Shorter { short: 800, long: 1333 };
        assert_eq!(sizing.apply(Size::new(480, 640), Some(32)), Size::new(800, 1088));
        assert_eq!(sizing.apply(Size::new(333, 640), Some(32)), Size::new(704, 1344));
        assert_eq!(Sizing::Exact(Size::new(64, 65)).apply(Size::new(3, 9), Some(32)), Size::new(64, 96));
        assert_eq!(Sizing::Keep.apply(Size::new(3, 9), Some(32)), Size::new(3, 9));
    }
}
