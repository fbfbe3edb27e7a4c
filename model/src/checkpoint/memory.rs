//! Float models whose parameters another library holds in memory: its state dictionary and its description.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::describe::Bytes;
use super::file::sha256;
use super::json::Json;
use super::raw::{DType, RawDict, RawTensor};
use super::stored::Stored;
use super::{LoadOptions, Loaded, directory, hf};
use crate::arch::WindowPolicy;
use crate::batch::Transform;
use crate::error::ModelError;

/// Element type of a [`TensorView`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision, which is rounded to single precision.
    F64,
    /// A type that no parameter has. The tensor's name counts, and its bytes are not read.
    Other,
}

/// A tensor in memory, row-major and contiguous, in little-endian bytes.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Type of the elements.
    pub element: ElementType,
    /// Sizes, outermost first.
    pub shape: &'a [usize],
    /// The elements: exactly as many bytes as `shape` and `element` say.
    pub bytes: &'a [u8],
}

/// A model's description, in the JSON that its library writes beside a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    /// `config.json` of Hugging Face transformers or timm.
    pub config: String,
    /// `preprocessor_config.json` of transformers.
    pub preprocessor: Option<String>,
}

/// A float model in memory.
#[derive(Clone, Debug)]
pub struct InMemory<'a> {
    /// Name of the model in messages and in the provenance of a model that is made from it.
    pub name: String,
    /// The state dictionary, in the names of any [`Dialect`](super::Dialect). Buffers may be among it.
    pub tensors: BTreeMap<String, TensorView<'a>>,
    /// The description. Without it, `cfg` of the options or the shapes describe the model.
    pub documents: Option<Documents>,
    /// The preprocessing, if it does not come from the description.
    pub transform: Option<Transform>,
    /// The rule for windows of the code that runs the model, if it is not that of the library that reads such
    /// names.
    pub window_policy: Option<WindowPolicy>,
}

impl InMemory<'_> {
    /// SHA-256 of the tensors in the order of their names, hexadecimal: of each, its name, its element type,
    /// its sizes and its bytes, the first three in text.
    fn sha256(&self) -> String {
        sha256(self.tensors.iter().flat_map(|(name, TensorView { element, shape, bytes })| {
            let about = format!("{name:?} {element:?} {shape:?}\n").into_bytes();
            [Cow::Owned(about), Cow::Borrowed(*bytes)]
        }))
    }

    /// The tensors as those of a file.
    ///
    /// # Errors
    /// The errors of [`TensorView::raw`].
    fn raw(&self) -> Result<RawDict<'_>, ModelError> {
        self.tensors.iter().map(|(name, view)| Ok((name.clone(), view.raw(name)?))).collect()
    }
}

impl<'a> TensorView<'a> {
    /// The tensor `name` as that of a file.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if the bytes are not as many as the sizes say.
    fn raw(&self, name: &str) -> Result<RawTensor<'a>, ModelError> {
        let dtype = match self.element {
            ElementType::F16 => DType::F16,
            ElementType::Bf16 => DType::Bf16,
            ElementType::F32 => DType::F32,
            ElementType::F64 => DType::F64,
            ElementType::Other => return Ok(RawTensor::unreadable()),
        };
        let bytes = self.shape.iter().try_fold(dtype.size(), |all, &size| all.checked_mul(size));
        if bytes != Some(self.bytes.len()) {
            let problem = format!(
                "has {} bytes, but {:?} elements of shape {:?} have another number",
                self.bytes.len(),
                self.element,
                self.shape
            );
            return Err(ModelError::tensor(name, problem));
        }
        let tensor = RawTensor::contiguous(dtype, self.shape.to_vec(), self.bytes);
        tensor.map_err(|problem| ModelError::tensor(name, problem))
    }
}

/// Loads a float Swin whose parameters are in memory, as
/// [`load_float_with_remarks`](super::load_float_with_remarks) loads a file.
///
/// The source that the result records has the name of the model and the SHA-256 of its tensors.
///
/// # Errors
/// Those of [`load_float`](super::load_float), and [`ModelError::Tensor`] for a tensor with a wrong number of
/// bytes.
pub fn load_float_from_memory(model: &InMemory<'_>, options: &LoadOptions) -> Result<Loaded, ModelError> {
    let name = Path::new(&model.name);
    let any_transform = options.any_transform || model.transform.is_some();
    let options = &LoadOptions {
        any_transform,
        window_policy: model.window_policy.or(options.window_policy),
        ..options.clone()
    };
    let described = model.documents.as_ref().map(|documents| {
        // There is no file, so errors name the model.
        let config = Json::parse(name, documents.config.as_bytes())?;
        let of_processor = PathBuf::from(format!("{}, image processor", model.name));
        let processor = |file: &str| {
            let text = documents.preprocessor.as_ref().filter(|_| file == hf::PREPROCESSOR);
            text.map(|text| Json::parse(&of_processor, text.as_bytes())).transpose()
        };
        directory::read(name, &config, processor, options)
    });
    let described = described.transpose()?;
    let file = Bytes { path: name, folder: None, sha256: model.sha256() };
    let stored = Stored { file, tensors: model.raw()? };
    let mut loaded = stored.model(described, options)?;
    if let Some(transform) = &model.transform {
        if transform.size != loaded.model.config.image_size {
            let problem = format!(
                "the preprocessing gives images of {} pixels, but the model takes {}",
                transform.size.short(),
                loaded.model.config.image_size.short()
            );
            return Err(ModelError::config("transform.size", problem));
        }
        let check = transform.check();
        check.map_err(|(field, problem)| ModelError::config(format!("transform.{field}"), problem))?;
        loaded.model.transform = transform.clone();
    }
    Ok(loaded)
}
