//! Decibels in JSON: a number, or the text `inf` or `-inf`, because JSON has no infinity.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Decibel {
    Number(f64),
    Text(String),
}

pub fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    let infinite = |value: f64| if value > 0.0 { "inf" } else { "-inf" };
    let value = value.map(|value| match value.is_infinite() {
        true => Decibel::Text(infinite(value).to_owned()),
        false => Decibel::Number(value),
    });
    value.serialize(serializer)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    match Option::<Decibel>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Decibel::Number(value)) => Ok(Some(value)),
        Some(Decibel::Text(text)) => match text.as_str() {
            "inf" => Ok(Some(f64::INFINITY)),
            "-inf" => Ok(Some(f64::NEG_INFINITY)),
            _ => Err(D::Error::custom(format!("sqnr_db: `{text}` is neither a number nor `inf` nor `-inf`"))),
        },
    }
}
