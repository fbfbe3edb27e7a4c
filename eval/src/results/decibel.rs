//! Decibels in JSON: a number, or the text `inf` or `-inf`, because JSON has no infinity.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Decibel {
    Number(f64),
    Text(String),
}

impl Decibel {
    fn of(value: f64) -> Decibel {
        let infinite = |value: f64| if value > 0.0 { "inf" } else { "-inf" };
        match value.is_infinite() {
            true => Decibel::Text(infinite(value).to_owned()),
            false => Decibel::Number(value),
        }
    }

    fn value<E: Error>(self) -> Result<f64, E> {
        match self {
            Decibel::Number(value) => Ok(value),
            Decibel::Text(text) => match text.as_str() {
                "inf" => Ok(f64::INFINITY),
                "-inf" => Ok(f64::NEG_INFINITY),
                _ => Err(E::custom(format!("sqnr_db: `{text}` is neither a number nor `inf` nor `-inf`"))),
            },
        }
    }
}

pub fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    value.map(Decibel::of).serialize(serializer)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    Option::<Decibel>::deserialize(deserializer)?.map(Decibel::value).transpose()
}

/// The same for a value that is always present.
pub mod plain {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Decibel;

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        Decibel::of(*value).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Decibel::deserialize(deserializer)?.value()
    }
}
