//! Outputs in memory of the caller: their shapes, types and layouts.

use half::f16;
use swinq_model::Size;
use swinq_numerics::Pixels;
use swinq_plan::{Output, OutputKind};

use super::{Engine, MOST_OUTPUTS};
use crate::error::RuntimeError;

/// Memory for an output of a network.
#[derive(Debug)]
pub struct OutputMut<'a> {
    /// The name of the output ([`Engine::outputs`]).
    pub name: &'a str,
    /// `[images, rows, columns]` ([`Engine::output_shape`]), or in the order of `layout`.
    pub values: OutputValues<'a>,
    /// The order of the values of one image.
    pub layout: OutputLayout,
}

impl<'a> OutputMut<'a> {
    /// Memory for the output `name`, in the order of rows.
    pub fn new(name: &'a str, values: impl Into<OutputValues<'a>>) -> OutputMut<'a> {
        OutputMut { name, values: values.into(), layout: OutputLayout::Rows }
    }

    /// The memory in the order of `layout`.
    #[must_use]
    pub fn in_layout(self, layout: OutputLayout) -> OutputMut<'a> {
        OutputMut { layout, ..self }
    }
}

/// Values of an output. f16 are rounded to the nearest, ties to even; a value that f16 cannot hold is an
/// error as one that is not finite.
#[derive(Debug)]
pub enum OutputValues<'a> {
    /// f32.
    F32(&'a mut [f32]),
    /// f16.
    F16(&'a mut [f16]),
}

impl Default for OutputValues<'_> {
    fn default() -> Self {
        OutputValues::F32(&mut [])
    }
}

impl<'a> From<&'a mut [f32]> for OutputValues<'a> {
    fn from(values: &'a mut [f32]) -> Self {
        OutputValues::F32(values)
    }
}

impl<'a> From<&'a mut Vec<f32>> for OutputValues<'a> {
    fn from(values: &'a mut Vec<f32>) -> Self {
        OutputValues::F32(values)
    }
}

impl<'a> From<&'a mut [f16]> for OutputValues<'a> {
    fn from(values: &'a mut [f16]) -> Self {
        OutputValues::F16(values)
    }
}

impl<'a> From<&'a mut Vec<f16>> for OutputValues<'a> {
    fn from(values: &'a mut Vec<f16>) -> Self {
        OutputValues::F16(values)
    }
}

impl<'a> OutputValues<'a> {
    /// The number of values.
    pub fn len(&self) -> usize {
        match self {
            OutputValues::F32(values) => values.len(),
            OutputValues::F16(values) => values.len(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `count` values, and the others.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_at(self, count: usize) -> (OutputValues<'a>, OutputValues<'a>) {
        match self {
            OutputValues::F32(values) => {
                let (first, others) = values.split_at_mut(count);
                (first.into(), others.into())
            }
            OutputValues::F16(values) => {
                let (first, others) = values.split_at_mut(count);
                (first.into(), others.into())
            }
        }
    }

    fn element(&self) -> OutputElement {
        match self {
            OutputValues::F32(_) => OutputElement::F32,
            OutputValues::F16(_) => OutputElement::F16,
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self {
            OutputValues::F32(values) => bytemuck::cast_slice_mut(values),
            OutputValues::F16(values) => bytemuck::cast_slice_mut(values),
        }
    }
}

/// Element type of an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OutputElement {
    #[default]
    F32,
    F16,
}

impl OutputElement {
    /// The first of the values in `bytes` that is not finite, and its index.
    fn first_not_finite(self, bytes: &[u8]) -> Option<(usize, f32)> {
        match self {
            OutputElement::F32 => Pixels::F32(bytemuck::cast_slice(bytes)).first_not_finite(),
            OutputElement::F16 => Pixels::F16(bytemuck::cast_slice(bytes)).first_not_finite(),
        }
    }

    /// Bytes of a value.
    pub(crate) fn bytes(self) -> usize {
        match self {
            OutputElement::F32 => 4,
            OutputElement::F16 => 2,
        }
    }
}

/// The shape of an output for one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputShape {
    /// Height and width of a feature map; `None` for logits.
    pub grid: Option<Size>,
    /// The channels of a feature map, or the classes of logits.
    pub columns: usize,
}

impl OutputShape {
    /// The number of rows: those of the tokens of a feature map, row by row of the grid, or one.
    pub fn rows(self) -> usize {
        self.grid.map_or(1, Size::area)
    }

    /// The number of values.
    pub fn values(self) -> usize {
        self.rows() * self.columns
    }
}

/// The order of the values of an output of one image. It makes no difference for logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputLayout {
    /// `[rows, columns]`. For a feature map that is `[height, width, channels]`.
    #[default]
    Rows,
    /// `[columns, rows]`. For a feature map that is `[channels, height, width]`.
    ChannelsFirst,
}

/// The facts about the values of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finite {
    /// Whether all values of the images are finite.
    pub(crate) input: bool,
    /// Whether all values of the outputs are.
    pub(crate) outputs: bool,
}

/// Type and order of the values of an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutputForm {
    pub(crate) element: OutputElement,
    pub(crate) layout: OutputLayout,
}

/// The bytes of each output of a network that is asked for, or `None`.
pub(crate) type OutputBytes<'a> = [Option<&'a mut [u8]>; MOST_OUTPUTS];

/// The memory of the outputs that are asked for.
pub(super) struct OutputMemory<'a> {
    pub(super) bytes: OutputBytes<'a>,
    pub(super) forms: [OutputForm; MOST_OUTPUTS],
}

impl OutputMemory<'_> {
    /// Refuses values of `outputs`, of `images` images, that are not finite.
    pub(super) fn check_finite(&self, outputs: &[Output], images: usize) -> Result<(), RuntimeError> {
        for ((output, bytes), form) in outputs.iter().zip(&self.bytes).zip(&self.forms) {
            let Some(bytes) = bytes.as_deref() else { continue };
            let Some((at, value)) = form.element.first_not_finite(bytes) else { continue };
            let each = bytes.len() / form.element.bytes() / images;
            let image = at / each;
            if form.element == OutputElement::F16 && value.is_infinite() {
                return Err(RuntimeError::OutputOverflow { name: output.name.clone(), image });
            }
            return Err(match output.kind {
                OutputKind::Logits => RuntimeError::NotFinite { image, class: at % each, value },
                OutputKind::Stage(_) => {
                    RuntimeError::MapNotFinite { name: output.name.clone(), image, value }
                }
            });
        }
        Ok(())
    }
}

impl Engine {
    /// The index of the output `name`, for which there is memory of so many `values`, if it was not asked for
    /// before (`taken`) and has these for `count` images of `size`.
    pub(super) fn index_of(
        &self,
        name: &str,
        taken: impl Fn(usize) -> bool,
        values: usize,
        (size, count): (Size, usize),
    ) -> Result<usize, RuntimeError> {
        let known = self.outputs().iter().position(|output| output.name == name);
        let index = known.filter(|&index| !taken(index)).ok_or_else(|| self.no_output(name))?;
        let shape = self.output_shape(&self.outputs()[index], size);
        if values == count * shape.values() {
            return Ok(index);
        }
        let (name, shape) = (name.to_owned(), [count, shape.rows(), shape.columns]);
        Err(RuntimeError::OutputLength { name, values, shape })
    }

    /// The memory of each output of the network for `count` images of `size`.
    pub(super) fn memory_of<'o>(
        &self,
        outputs: &'o mut [OutputMut<'_>],
        size: Size,
        count: usize,
    ) -> Result<OutputMemory<'o>, RuntimeError> {
        let mut memory = OutputMemory {
            bytes: [const { None }; MOST_OUTPUTS],
            forms: [OutputForm::default(); MOST_OUTPUTS],
        };
        for OutputMut { name, values, layout } in outputs {
            let taken = |index: usize| memory.bytes[index].is_some();
            let index = self.index_of(name, taken, values.len(), (size, count))?;
            memory.forms[index] = OutputForm { element: values.element(), layout: *layout };
            memory.bytes[index] = Some(values.bytes());
        }
        Ok(memory)
    }
}
