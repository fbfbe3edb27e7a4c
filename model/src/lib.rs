//! Swin Transformers: architecture, checkpoints, parameters, sites, recipes, and the
//! quantized-checkpoint format.

pub mod arch;
pub mod atomic;
pub mod batch;
pub mod checkpoint;
pub mod config;
pub mod draws;
pub mod error;
mod family;
mod json_keys;
pub mod nearest;
pub mod params;
pub mod part;
mod pattern;
mod pixels;
pub mod position;
mod printable;
pub mod quantized;
pub mod recipe;
pub mod site;
pub mod tensor;
pub mod tensor_file;
pub mod text_file;
pub mod yaml;

pub use swinq_numerics::{Int8, Size};

pub use arch::{
    Grid, GridRule, Input, Lengths, Limit, PositionSizes, Problem, Scores, Shifted, Side, SizeRules, Stage,
    StageOutput, SwinConfig, SwinVersion, Task, WindowPolicy, Windows,
};
pub use batch::{
    Batch, BatchSource, BoxError, Classifier, Filter, LoaderWork, Logits, PixelFormat, Resize, Transform,
};
pub use checkpoint::{
    ClassOrder, Dialect, Documents, ElementType, InMemory, LoadOptions, Loaded, StoredParameter, TensorView,
    Values, ft_key, ft_site, import_ft_amax, is_quantized_file, load_float, load_float_from_memory,
    load_float_with_remarks, random_model,
};
pub use config::{ConfigOverrides, LoadedConfig, load_config, shipped_backbones, shipped_configs};
pub use draws::Draws;
pub use error::ModelError;
pub use family::Family;
pub use nearest::{nearest_key, nearest_name};
pub use pattern::{SitePattern, nearest_patterns, nearest_sites};
pub use pixels::{ChannelOrder, Orientation};
pub use position::AttentionParameters;
pub use printable::{printable, printable_name};
pub use quantized::QuantizedModel;
pub use recipe::{Calibrator, Granularity, Kind, Ptq, Recipe, Rule, SiteSpec};
pub use site::{BlockId, Branch, Linear, Operand, Site, all_blocks, all_linears, all_sites};
pub use tensor::{HostTensor, StateDict};
