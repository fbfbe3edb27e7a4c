//! Typed access to a JSON file's fields, with errors that name the file and the field.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use swinq_numerics::Size;

use crate::arch::Windows;
use crate::batch::Filter;
use crate::error::ModelError;
use crate::json_keys;

/// Largest JSON file accepted, in bytes; ample for the class names of ImageNet-22k.
const MAX_JSON: u64 = 64 << 20;

/// A JSON object and the file that holds it.
#[derive(Clone, Debug)]
pub(super) struct Json {
    path: PathBuf,
    fields: Map<String, Value>,
}

impl Json {
    /// Reads the object in the file at `path`.
    pub(super) fn read(path: &Path) -> Result<Json, ModelError> {
        let size = std::fs::metadata(path).map_err(|e| ModelError::io(path, e))?.len();
        if size > MAX_JSON {
            return Err(ModelError::file(
                path,
                format!("has {size} bytes, too many for a model's description"),
            ));
        }
        Json::parse(path, &std::fs::read(path).map_err(|e| ModelError::io(path, e))?)
    }

    /// The object in `text`; messages name it `path`.
    pub(super) fn parse(path: &Path, text: &[u8]) -> Result<Json, ModelError> {
        json_keys::check(text, json_keys::MAX_KEYS)
            .map_err(|problem| ModelError::file(path, format!("is not readable JSON: {problem}")))?;
        match serde_json::from_slice(text) {
            Ok(Value::Object(fields)) => Ok(Json { path: path.to_owned(), fields }),
            Ok(_) => Err(ModelError::file(path, "is not a JSON object")),
            Err(error) => Err(ModelError::file(path, format!("is not readable JSON: {error}"))),
        }
    }

    /// An error about `field`.
    pub(super) fn error(&self, field: &str, problem: impl std::fmt::Display) -> ModelError {
        ModelError::file(&self.path, format!("field {field}: {problem}"))
    }

    /// The value of a field; `null` counts as absent.
    pub(super) fn get(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    /// The names of the fields.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.keys().map(String::as_str)
    }

    /// The object in `field`.
    pub(super) fn object(&self, field: &str) -> Result<Option<Json>, ModelError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(Json { path: self.path.clone(), fields: fields.clone() })),
            Some(_) => Err(self.error(field, "is not an object")),
        }
    }

    fn typed<T>(
        &self,
        field: &str,
        wanted: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        let typed = |value| read(value).ok_or_else(|| self.error(field, format!("{value} is not {wanted}")));
        self.get(field).map(typed).transpose()
    }

    pub(super) fn bool(&self, field: &str) -> Result<Option<bool>, ModelError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    pub(super) fn float(&self, field: &str) -> Result<Option<f64>, ModelError> {
        self.typed(field, "a number", Value::as_f64)
    }

    pub(super) fn text(&self, field: &str) -> Result<Option<String>, ModelError> {
        self.typed(field, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// The side of a square: a whole number, or a list of equal whole numbers.
    pub(super) fn side(&self, field: &str) -> Result<Option<usize>, ModelError> {
        self.typed(field, "a whole number or a list of equal ones", |value| match value {
            Value::Array(sides) => {
                let first = sides.first().and_then(as_size)?;
                sides.iter().all(|side| as_size(side) == Some(first)).then_some(first)
            }
            value => as_size(value),
        })
    }

    /// A height and a width: a whole number for both, or a list of two.
    pub(super) fn size(&self, field: &str) -> Result<Option<Size>, ModelError> {
        self.typed(field, "a whole number or a height and a width", extent)
    }

    /// Windows: one for all stages, or a list with one for each. Two whole numbers are always a height and a
    /// width, as in timm.
    pub(super) fn windows(&self, field: &str) -> Result<Option<Windows>, ModelError> {
        self.typed(field, "a whole number, a height and a width, or a window for each stage", |value| {
            if let Some(window) = extent(value) {
                return Some(window.into());
            }
            Windows::of_stages(value.as_array()?.iter().map(extent).collect::<Option<_>>()?)
        })
    }

    pub(super) fn sizes(&self, field: &str) -> Result<Option<Vec<usize>>, ModelError> {
        self.typed(field, "a list of whole numbers", |value| value.as_array()?.iter().map(as_size).collect())
    }

    pub(super) fn texts(&self, field: &str) -> Result<Option<Vec<String>>, ModelError> {
        let read = |value: &Value| {
            value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        };
        self.typed(field, "a list of strings", read)
    }

    /// A finite number for each of `channels` channels.
    pub(super) fn means(&self, field: &str, channels: usize) -> Result<Option<Vec<f32>>, ModelError> {
        let wanted = if channels == 3 {
            "three finite numbers".to_owned()
        } else {
            format!("a list of {channels}: a finite number for each channel")
        };
        self.typed(field, &wanted, |value| {
            let values: Vec<f32> =
                value.as_array()?.iter().map(|v| v.as_f64().map(|v| v as f32)).collect::<Option<_>>()?;
            (values.len() == channels && values.iter().all(|v| v.is_finite())).then_some(values)
        })
    }

    /// A positive standard deviation for each of `channels` channels.
    pub(super) fn deviations(&self, field: &str, channels: usize) -> Result<Option<Vec<f32>>, ModelError> {
        match self.means(field, channels)? {
            Some(values) if values.iter().any(|v| *v <= 0.0) => Err(self.error(field, "is not positive")),
            other => Ok(other),
        }
    }

    /// A resampling filter, given by name or by Pillow's number.
    pub(super) fn filter(&self, field: &str) -> Result<Option<Filter>, ModelError> {
        self.typed(field, "a supported filter (bicubic or bilinear)", |value| match value {
            Value::Number(number) => match number.as_u64()? {
                2 => Some(Filter::Bilinear),
                3 => Some(Filter::Bicubic),
                _ => None,
            },
            value => match value.as_str()? {
                "bicubic" => Some(Filter::Bicubic),
                "bilinear" => Some(Filter::Bilinear),
                _ => None,
            },
        })
    }
}

/// A whole number for both sides, or a list of a height and a width.
fn extent(value: &Value) -> Option<Size> {
    match value {
        Value::Array(sides) => match sides.as_slice() {
            [height, width] => Some(Size::new(as_size(height)?, as_size(width)?)),
            _ => None,
        },
        value => as_size(value).map(Size::square),
    }
}

fn as_size(value: &Value) -> Option<usize> {
    let whole = |v: f64| (v.fract() == 0.0 && (0.0..1e15).contains(&v)).then_some(v as usize);
    value.as_u64().and_then(|v| usize::try_from(v).ok()).or_else(|| value.as_f64().and_then(whole))
}
