//! The windows of the stages of a network.

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use swinq_numerics::Size;

use super::size::Stored;

/// The attention windows of the stages of a network, in tokens: one for all stages, or one for each.
///
/// In files one window is a number or `[height, width]`, and the windows of stages are a list of
/// `[height, width]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// One for all stages, or one for each: then they are not all equal.
    sizes: Vec<Size>,
}

impl Windows {
    /// A window for each stage, in order; `None` if there is none. Equal windows are one for all stages.
    pub fn of_stages(mut sizes: Vec<Size>) -> Option<Windows> {
        let first = *sizes.first()?;
        if sizes.iter().all(|&size| size == first) {
            sizes.truncate(1);
        }
        Some(Windows { sizes })
    }

    /// The window of stage `stage`.
    pub fn of(&self, stage: usize) -> Size {
        self.sizes[stage.min(self.sizes.len() - 1)]
    }

    /// The window of all stages; `None` if the stages have windows of their own.
    pub fn common(&self) -> Option<Size> {
        if let [size] = self.sizes[..] { Some(size) } else { None }
    }

    /// Each window that is stated, in the order of the stages.
    pub fn stated(&self) -> &[Size] {
        &self.sizes
    }

    /// Those of the first `stages` stages.
    pub(super) fn of_first(&self, stages: usize) -> Windows {
        let sizes = self.sizes.iter().take(stages.max(1)).copied().collect();
        Windows::of_stages(sizes).expect("there is a window")
    }

    /// In a message: one number for each square, `7/7/14/7`.
    pub fn short(&self) -> String {
        let words: Vec<String> = self.sizes.iter().map(|size| size.short()).collect();
        words.join("/")
    }
}

impl From<Size> for Windows {
    fn from(size: Size) -> Windows {
        Windows { sizes: vec![size] }
    }
}

/// The value of a setting: a number, `[height, width]`, or a list of these pairs.
impl fmt::Display for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pair = |size: &Size| format!("[{}, {}]", size.height, size.width);
        match &self.sizes[..] {
            [size] if size.side().is_some() => write!(f, "{}", size.height),
            [size] => f.write_str(&pair(size)),
            sizes => write!(f, "[{}]", sizes.iter().map(pair).collect::<Vec<_>>().join(", ")),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    One(Stored),
    Each(Vec<[usize; 2]>),
}

impl Serialize for Windows {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = match self.common() {
            Some(size) => Form::One(size.into()),
            None => Form::Each(self.sizes.iter().map(|size| [size.height, size.width]).collect()),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Windows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Windows, D::Error> {
        let sizes = match Form::deserialize(deserializer)? {
            Form::One(stored) => vec![stored.into()],
            Form::Each(pairs) => pairs.into_iter().map(|[height, width]| Size::new(height, width)).collect(),
        };
        Windows::of_stages(sizes).ok_or_else(|| D::Error::custom("window_size has no window"))
    }
}
