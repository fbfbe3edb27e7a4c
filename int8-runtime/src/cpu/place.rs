//! Tensors in the arena: their places, and typed views of their memory.

use swinq_kernels::linear::LinearOut;
use swinq_kernels::{AlignedBuf, RowOut};
use swinq_model::Size;
use swinq_numerics::{RowMap, code_stride};
use swinq_plan::{Element, Geometry, Grids, TensorId, TensorSpec};

use crate::arena::Layout;
use crate::error::RuntimeError;
use crate::trace::TracedValues;

/// Some images of one size.
#[derive(Clone, Copy)]
pub(super) struct Images<'a> {
    pub(super) count: usize,
    pub(super) geometry: &'a Geometry,
}

/// Bytes per image of a tensor as the CPU kernels hold it: rows of codes are padded.
pub(super) fn tensor_bytes(spec: &TensorSpec, grids: &Grids) -> usize {
    let rows = grids.rows(spec.rows);
    match spec.element {
        Element::Pixel => rows * spec.columns,
        Element::F32 => rows * spec.columns * 4,
        Element::Code => rows * code_stride(spec.columns),
    }
}

/// The memory of an engine's tensors. It grows with the images that it must hold, and never shrinks.
#[derive(Default)]
pub(super) struct Memory {
    buffers: Vec<AlignedBuf>,
}

impl Memory {
    /// Makes room for `layout`, whose sizes are in bytes, for `images` images of `size`. The contents of
    /// buffers that grow are lost.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`]; the memory is as before then.
    pub(super) fn reserve(&mut self, layout: &Layout, images: usize, size: Size) -> Result<(), RuntimeError> {
        for (index, &bytes) in layout.bytes.iter().enumerate() {
            if self.buffers.get(index).is_some_and(|buffer| buffer.as_u8().len() >= bytes) {
                continue;
            }
            let refused = |_| RuntimeError::OutOfMemory { bytes, images, size };
            let buffer = AlignedBuf::try_new(bytes).map_err(refused)?;
            match self.buffers.get_mut(index) {
                Some(old) => *old = buffer,
                None => self.buffers.push(buffer),
            }
        }
        Ok(())
    }

    /// Bytes of all buffers.
    pub(super) fn bytes(&self) -> usize {
        self.buffers.iter().map(|buffer| buffer.as_u8().len()).sum()
    }

    /// The memory as that of the tensors that `layout` places.
    pub(super) fn arena<'a>(&'a mut self, layout: &'a Layout) -> Arena<'a> {
        Arena { slot: &layout.slot, buffers: &mut self.buffers }
    }
}

/// The memory of all tensors except the image.
pub(super) struct Arena<'a> {
    slot: &'a [Option<usize>],
    buffers: &'a mut [AlignedBuf],
}

impl Arena<'_> {
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
    /// The tensor's rows.
    pub(super) fn rows(&self, images: Images<'_>) -> usize {
        images.count * images.geometry.rows(self.spec.rows)
    }

    pub(super) fn values(&self, images: Images<'_>) -> usize {
        self.rows(images) * self.spec.columns
    }

    /// Bytes of the tensor.
    pub(super) fn bytes(&self, images: Images<'_>) -> usize {
        images.count * tensor_bytes(&self.spec, images.geometry.grids())
    }

    pub(super) fn f32<'a>(&self, images: Images<'_>, arena: &'a AlignedBuf) -> &'a [f32] {
        &arena.as_f32()[..self.values(images)]
    }

    pub(super) fn codes<'a>(&self, images: Images<'_>, arena: &'a AlignedBuf) -> &'a [u8] {
        &arena.as_u8()[..self.bytes(images)]
    }

    /// The tensor's values.
    pub(super) fn traced(&self, images: Images<'_>, arena: &Arena<'_>) -> TracedValues {
        let slot = arena.buffer(self);
        match self.spec.element {
            Element::Code => TracedValues::cpu_codes(self.codes(images, slot), self.spec.columns),
            Element::F32 | Element::Pixel => TracedValues::Float(self.f32(images, slot).to_vec()),
        }
    }

    pub(super) fn row_out<'a>(&self, images: Images<'_>, arena: &'a mut AlignedBuf) -> RowOut<'a> {
        match self.spec.element {
            Element::Code => RowOut::Codes(&mut arena.as_u8_mut()[..self.bytes(images)]),
            Element::F32 | Element::Pixel => RowOut::F32(&mut arena.as_f32_mut()[..self.values(images)]),
        }
    }

    pub(super) fn linear_out<'a>(
        &self,
        images: Images<'_>,
        arena: &'a mut AlignedBuf,
        map: &'a RowMap,
    ) -> LinearOut<'a> {
        if self.residual {
            return LinearOut::Residual { residual: &mut arena.as_f32_mut()[..self.values(images)], map };
        }
        self.row_out(images, arena).into()
    }
}
