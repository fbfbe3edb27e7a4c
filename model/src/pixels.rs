//! How an image file becomes the pixels of a network, beside their resize: their orientation and the order of
//! their channels.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Whether images are turned as their files state it (tag Orientation of EXIF).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Orientation {
    /// Images stay as they are stored, as in torchvision's `ImageFolder` and timm. TIFF files are turned
    /// nevertheless, because Pillow turns them as it decodes them.
    #[default]
    Stored,
    /// Images are turned, as by transformers, detectron2 and mmcv.
    Exif,
}

/// The order of the three channels of pixels before a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChannelOrder {
    /// Red, green, blue.
    #[default]
    Rgb,
    /// Blue, green, red.
    Bgr,
}

impl Orientation {
    /// Whether this is the rule of files that state none.
    pub(crate) fn is_default(&self) -> bool {
        *self == Orientation::default()
    }
}

impl ChannelOrder {
    /// Whether this is the order of files that state none.
    pub(crate) fn is_default(&self) -> bool {
        *self == ChannelOrder::default()
    }
}

impl fmt::Display for Orientation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Orientation::Stored => "stored",
            Orientation::Exif => "exif",
        })
    }
}

impl fmt::Display for ChannelOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChannelOrder::Rgb => "rgb",
            ChannelOrder::Bgr => "bgr",
        })
    }
}

impl FromStr for Orientation {
    type Err = String;

    fn from_str(name: &str) -> Result<Orientation, String> {
        let found =
            [Orientation::Stored, Orientation::Exif].into_iter().find(|rule| rule.to_string() == name);
        found.ok_or_else(|| format!("`{name}` is neither stored nor exif"))
    }
}

impl FromStr for ChannelOrder {
    type Err = String;

    fn from_str(name: &str) -> Result<ChannelOrder, String> {
        let found =
            [ChannelOrder::Rgb, ChannelOrder::Bgr].into_iter().find(|order| order.to_string() == name);
        found.ok_or_else(|| format!("`{name}` is neither rgb nor bgr"))
    }
}
