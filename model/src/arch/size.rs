//! Sizes in files: a number if both sides are equal, else `[height, width]`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use swinq_numerics::Size;

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Stored {
    Square(usize),
    Pair([usize; 2]),
}

impl From<Size> for Stored {
    fn from(size: Size) -> Stored {
        match size.side() {
            Some(side) => Stored::Square(side),
            None => Stored::Pair([size.height, size.width]),
        }
    }
}

impl From<Stored> for Size {
    fn from(stored: Stored) -> Size {
        match stored {
            Stored::Square(side) => Size::square(side),
            Stored::Pair([height, width]) => Size::new(height, width),
        }
    }
}

pub(crate) fn serialize<S: Serializer>(size: &Size, serializer: S) -> Result<S::Ok, S::Error> {
    Stored::from(*size).serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
    Stored::deserialize(deserializer).map(Size::from)
}
