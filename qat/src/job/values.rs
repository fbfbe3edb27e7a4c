//! The types of values that are neither numbers nor texts.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The device that runs the training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The CPU.
    #[default]
    Cpu,
    /// The CUDA device with this number.
    Cuda(usize),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl FromStr for Device {
    type Err = String;

    /// Parses `cpu`, `cuda` (the first device) or `cuda:N`.
    fn from_str(text: &str) -> Result<Device, String> {
        let unknown = || format!("`{text}` is not a device; give cpu, cuda or cuda:N");
        match text {
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            _ => {
                let number = text.strip_prefix("cuda:").ok_or_else(unknown)?;
                number.parse().map(Device::Cuda).map_err(|_| unknown())
            }
        }
    }
}

impl Serialize for Device {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Device {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Device, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The number format of matrix products in forward and backward passes; parameters and the optimizer are
/// always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// 32 bits, of which tensor cores use 10 of the mantissa; on a GPU only.
    Tf32,
    /// bfloat16; on a GPU only.
    Bf16,
    /// Half precision with a scaled loss; on a GPU only.
    F16,
}

/// A split of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// `train`
    Train,
    /// `val`
    Val,
}

/// The learning rate after the warmup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// It falls to `min_lr` along half a cosine.
    #[default]
    Cosine,
    /// It stays at its highest value.
    Constant,
}

/// The treatment of the scales of activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivationScales {
    /// They stay as calibrated.
    #[default]
    Fixed,
    /// They are trained (LSQ).
    Learned,
}

/// The treatment of the scales of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightScales {
    /// They are recomputed from the weights at every iteration.
    #[default]
    Recomputed,
    /// They are trained (LSQ).
    Learned,
}

/// The treatment of the scales of a site during training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scales {
    /// They stay as calibrated; activations only.
    Fixed,
    /// They are trained (LSQ).
    Learned,
    /// They are recomputed from the weights at every iteration; weights only.
    Recomputed,
}

impl From<ActivationScales> for Scales {
    fn from(scales: ActivationScales) -> Scales {
        match scales {
            ActivationScales::Fixed => Scales::Fixed,
            ActivationScales::Learned => Scales::Learned,
        }
    }
}

impl From<WeightScales> for Scales {
    fn from(scales: WeightScales) -> Scales {
        match scales {
            WeightScales::Recomputed => Scales::Recomputed,
            WeightScales::Learned => Scales::Learned,
        }
    }
}

/// `on` and `off`. Some YAML parsers read them as booleans, others as texts; both are accepted.
pub(super) mod on_off {
    use super::*;

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Switch {
        Bool(bool),
        Text(String),
    }

    pub fn serialize<S: Serializer>(on: &bool, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if *on { "on" } else { "off" })
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
        let switch = Switch::deserialize(deserializer);
        match switch.as_ref().map_err(|_| serde::de::Error::custom("is neither on nor off"))? {
            Switch::Bool(on) => Ok(*on),
            Switch::Text(text) if text == "on" || text == "true" => Ok(true),
            Switch::Text(text) if text == "off" || text == "false" => Ok(false),
            Switch::Text(text) => Err(serde::de::Error::custom(format!("`{text}` is neither on nor off"))),
        }
    }
}

/// A required path. A file may omit it, as shipped jobs do, so that an override sets it; an absent path is
/// empty.
pub(super) fn optional_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    Ok(Option::<PathBuf>::deserialize(deserializer)?.unwrap_or_default())
}
