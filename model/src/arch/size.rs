//! Sizes in files: a number if both sides are equal, else `[height, width]`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use swinq_numerics::Size;

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Stored {
    Square(usize),
    Pair([usize; 2]),
}

pub(crate) fn serialize<S: Serializer>(size: &Size, serializer: S) -> Result<S::Ok, S::Error> {
    let stored = match size.side() {
        Some(side) => Stored::Square(side),
        None => Stored::Pair([size.height, size.width]),
    };
    stored.serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
    Ok(match Stored::deserialize(deserializer)? {
        Stored::Square(side) => Size::square(side),
        Stored::Pair([height, width]) => Size::new(height, width),
    })
}
