//! Tensors in the arena: their places, and typed views of their memory.

use swinq_kernels::linear::LinearOut;
use swinq_kernels::{AlignedBuf, RowOut};
use swinq_numerics::{RowMap, code_stride};
use swinq_plan::{Element, TensorId, TensorSpec};

use crate::arena::Layout;
use crate::error::RuntimeError;
use crate::trace::TracedValues;

/// Bytes per image of a tensor as the CPU kernels hold it: rows of codes are padded.
pub(super) fn tensor_bytes(spec: &TensorSpec) -> usize {
    match spec.element {
        Element::Pixel => spec.rows * spec.columns,
        Element::F32 => spec.rows * spec.columns * 4,
        Element::Code => spec.rows * code_stride(spec.columns),
    }
}

/// The memory of all tensors except the image.
pub(super) struct Arena {
    slot: Vec<Option<usize>>,
    buffers: Vec<AlignedBuf>,
}

impl Arena {
    /// Memory for batches of `images` images, with the slots of `layout`, whose sizes are in bytes.
    pub(super) fn new(layout: Layout, images: usize) -> Result<Arena, RuntimeError> {
        let buffer = |bytes: usize| {
            AlignedBuf::try_new(bytes).map_err(|_| RuntimeError::OutOfMemory { bytes, images })
        };
        let buffers = layout.bytes.into_iter().map(buffer).collect::<Result<_, _>>()?;
        Ok(Arena { slot: layout.slot, buffers })
    }

    fn slot(&self, place: &Place) -> usize {
        self.slot[place.tensor.0].expect("only the image has no slot")
    }

    pub(super) fn buffer(&self, place: &Place) -> &AlignedBuf {
        &self.buffers[self.slot(place)]
    }

    pub(super) fn buffer_mut(&mut self, place: &Place) -> &mut AlignedBuf {
        let slot = self.slot(place);
        &mut self.buffers[slot]
    }

    /// The memory of two tensors that are alive together.
    pub(super) fn pair(&mut self, read: &Place, write: &Place) -> (&AlignedBuf, &mut AlignedBuf) {
        let slots = [self.slot(read), self.slot(write)];
        let [read, write] = self.buffers.get_disjoint_mut(slots).expect("the layout gave two slots");
        (read, write)
    }
}

/// A tensor in the arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) tensor: TensorId,
    pub(super) spec: TensorSpec,
    pub(super) residual: bool,
}

impl Place {
    pub(super) fn values(&self, images: usize) -> usize {
        images * self.spec.rows * self.spec.columns
    }

    /// Bytes of the tensor.
    pub(super) fn bytes(&self, images: usize) -> usize {
        images * tensor_bytes(&self.spec)
    }

    pub(super) fn f32<'a>(&self, images: usize, arena: &'a AlignedBuf) -> &'a [f32] {
        &arena.as_f32()[..self.values(images)]
    }

    pub(super) fn codes<'a>(&self, images: usize, arena: &'a AlignedBuf) -> &'a [u8] {
        &arena.as_u8()[..self.bytes(images)]
    }

    /// The tensor's values.
    pub(super) fn traced(&self, images: usize, arena: &Arena) -> TracedValues {
        let slot = arena.buffer(self);
        match self.spec.element {
            Element::Code => TracedValues::cpu_codes(self.codes(images, slot), self.spec.columns),
            Element::F32 | Element::Pixel => TracedValues::Float(self.f32(images, slot).to_vec()),
        }
    }

    pub(super) fn row_out<'a>(&self, images: usize, arena: &'a mut AlignedBuf) -> RowOut<'a> {
        match self.spec.element {
            Element::Code => RowOut::Codes(&mut arena.as_u8_mut()[..self.bytes(images)]),
            Element::F32 | Element::Pixel => RowOut::F32(&mut arena.as_f32_mut()[..self.values(images)]),
        }
    }

    pub(super) fn linear_out<'a>(
        &self,
        images: usize,
        arena: &'a mut AlignedBuf,
        map: &'a RowMap,
    ) -> LinearOut<'a> {
        if self.residual {
            return LinearOut::Residual { stream: &mut arena.as_f32_mut()[..self.values(images)], map };
        }
        self.row_out(images, arena).into()
    }
}
