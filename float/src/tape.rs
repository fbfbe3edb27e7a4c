//! Reverse-mode differentiation for training, by hand-written backward passes.
//!
//! candle's own gradient graph fills a tensor of zeros for every argument of every operation and adds to it, which costs
//! more memory traffic than the passes themselves. A [`Tape`] is the list of what was computed; its backward walks it in
//! reverse, moves gradients where one consumer gives them, and adds only where several do. Everything that is summed
//! is summed in the order of the tape, so gradients are the same bits on every run.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::packed::Workers;
use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Result, Tensor, TensorId, bail};

type Backward = Box<dyn FnOnce(Gradient, &mut Gradients) -> Result<()> + Send>;

/// What was computed since the last backward pass. Clones share one list.
#[derive(Clone, Default)]
pub struct Tape(Arc<Mutex<Record>>);

#[derive(Default)]
struct Record {
    /// Tensors whose gradients are wanted: parameters.
    leaves: HashSet<TensorId>,
    /// Results of recorded operations.
    results: HashSet<TensorId>,
    nodes: Vec<Node>,
    /// Type of the operands of weighted products, if not f32.
    products: Option<DType>,
    passes: Passes,
    /// Threads of weighted products on the host, once there is one.
    workers: Option<Workers>,
}

/// Who computes the passes of a tape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Passes {
    /// Own kernels wherever there are some: on the host, and on CUDA in a build with the feature `cuda`.
    #[default]
    Fused,
    /// The same formulas in candle's operations.
    Composed,
}

/// Who computes one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Single passes on the host.
    Host,
    /// Own kernels on CUDA.
    #[cfg(feature = "cuda")]
    Cuda,
    /// candle's operations.
    Composed,
}

struct Node {
    output: TensorId,
    backward: Backward,
}

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = self.lock();
        write!(f, "Tape({} leaves, {} operations)", record.leaves.len(), record.nodes.len())
    }
}

impl Tape {
    /// An empty tape, whose weighted products take operands of type `products` (f32 by default), forward and backward.
    pub fn with_products(products: Option<DType>) -> Tape {
        Tape(Arc::new(Mutex::new(Record { products, ..Record::default() })))
    }

    /// Chooses who computes the passes from now on: to compare them, and to test those of other devices anywhere.
    pub fn set_passes(&self, passes: Passes) {
        self.lock().passes = passes;
    }

    /// Who computes a pass over `x`.
    pub(super) fn way(&self, x: &Tensor) -> Way {
        match (self.lock().passes, x.device()) {
            (Passes::Fused, Device::Cpu) => Way::Host,
            #[cfg(feature = "cuda")]
            (Passes::Fused, Device::Cuda(_)) if x.dtype() == DType::F32 => Way::Cuda,
            _ => Way::Composed,
        }
    }

    /// Threads of weighted products on the host.
    pub(super) fn workers(&self) -> Result<Workers> {
        let mut record = self.lock();
        if record.workers.is_none() {
            record.workers = Some(Workers::new().map_err(candle_core::Error::wrap)?);
        }
        Ok(record.workers.clone().expect("just set"))
    }

    /// Type of the operands of weighted products, if not f32.
    pub(super) fn products(&self) -> Option<DType> {
        self.lock().products
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wants the gradient of `leaf` from now on.
    pub fn watch(&self, leaf: &Tensor) {
        self.lock().leaves.insert(leaf.id());
    }

    /// Whether a gradient flows to `tensor`.
    pub fn tracks(&self, tensor: &Tensor) -> bool {
        let record = self.lock();
        record.leaves.contains(&tensor.id()) || record.results.contains(&tensor.id())
    }

    /// Notes that `output` was computed from `inputs`. `backward` gets the gradient of `output` and adds those of its
    /// inputs. Without an input that is tracked there is nothing to note.
    pub fn record(
        &self,
        inputs: &[&Tensor],
        output: &Tensor,
        backward: impl FnOnce(Gradient, &mut Gradients) -> Result<()> + Send + 'static,
    ) {
        let mut record = self.lock();
        let tracked = |id| record.leaves.contains(&id) || record.results.contains(&id);
        if inputs.iter().any(|input| tracked(input.id())) {
            record.results.insert(output.id());
            record.nodes.push(Node { output: output.id(), backward: Box::new(backward) });
        }
    }

    /// Operations recorded and not yet walked.
    pub fn len(&self) -> usize {
        self.lock().nodes.len()
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets what was recorded; leaves stay.
    pub fn clear(&self) {
        let mut record = self.lock();
        record.results.clear();
        record.nodes.clear();
    }

    /// The gradients of the leaves, from those of some results (`seeds`), each of its tensor's shape. The tape is empty
    /// afterwards.
    ///
    /// # Errors
    /// Whatever a backward pass met; the tape is empty then, too.
    pub fn backward(&self, seeds: impl IntoIterator<Item = (TensorId, Tensor)>) -> Result<Gradients> {
        let (nodes, wanted, leaves) = {
            let mut record = self.lock();
            let results = std::mem::take(&mut record.results);
            let wanted = results.union(&record.leaves).copied().collect();
            (std::mem::take(&mut record.nodes), wanted, record.leaves.clone())
        };
        let mut gradients = Gradients { wanted, values: HashMap::new() };
        for (id, tensor) in seeds {
            gradients.add_id(id, Gradient { tensor, exclusive: false })?;
        }
        for node in nodes.into_iter().rev() {
            if let Some(gradient) = gradients.values.remove(&node.output) {
                (node.backward)(gradient, &mut gradients)?;
            }
        }
        gradients.values.retain(|id, _| leaves.contains(id));
        Ok(gradients)
    }
}

/// The gradient of a result.
pub struct Gradient {
    tensor: Tensor,
    /// Whether nobody else holds its values.
    exclusive: bool,
}

impl Gradient {
    /// Its tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Its values on the host, to be overwritten: its own where nobody else holds them, else a copy.
    ///
    /// # Errors
    /// Another device or element type.
    pub fn into_values(self) -> Result<Vec<f32>> {
        if !self.exclusive || !self.tensor.is_contiguous() {
            return self.tensor.flatten_all()?.to_vec1();
        }
        let taken = Take(Mutex::default());
        self.tensor.inplace_op1(&taken)?;
        Ok(taken.0.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Moves the values out of a tensor that nobody will read again.
struct Take(Mutex<Vec<f32>>);

impl InplaceOp1 for Take {
    fn name(&self) -> &'static str {
        "take"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let CpuStorage::F32(values) = storage else { bail!("gradients are f32") };
        let (start, len) = (layout.start_offset(), layout.shape().elem_count());
        let taken =
            if len == values.len() { std::mem::take(values) } else { values[start..start + len].to_vec() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = taken;
        Ok(())
    }
}

/// Gradients by tensor.
#[derive(Default)]
pub struct Gradients {
    wanted: HashSet<TensorId>,
    values: HashMap<TensorId, Gradient>,
}

impl Gradients {
    /// Whether the gradient of `tensor` is of use.
    pub fn wants(&self, tensor: &Tensor) -> bool {
        self.wanted.contains(&tensor.id())
    }

    /// Adds a tensor that was made for it, which nobody else holds, to the gradient of `tensor`, if that is of use.
    ///
    /// # Errors
    /// A gradient of another shape than an earlier one.
    pub fn add(&mut self, tensor: &Tensor, gradient: Tensor) -> Result<()> {
        self.add_id(tensor.id(), Gradient { tensor: gradient, exclusive: true })
    }

    /// Adds the gradient of a result to that of `tensor`, as it is.
    ///
    /// # Errors
    /// As [`Gradients::add`].
    pub fn pass(&mut self, tensor: &Tensor, gradient: Gradient) -> Result<()> {
        self.add_id(tensor.id(), gradient)
    }

    /// Adds the gradient of a result to those of two tensors, as it is.
    ///
    /// # Errors
    /// As [`Gradients::add`].
    pub fn pass_both(&mut self, [a, b]: [&Tensor; 2], gradient: Gradient) -> Result<()> {
        let shared = |tensor| Gradient { tensor, exclusive: false };
        self.add_id(a.id(), shared(gradient.tensor.clone()))?;
        self.add_id(b.id(), shared(gradient.tensor))
    }

    fn add_id(&mut self, id: TensorId, gradient: Gradient) -> Result<()> {
        if !self.wanted.contains(&id) {
            return Ok(());
        }
        let sum = match self.values.remove(&id) {
            Some(other) => {
                Gradient { tensor: super::ops::sum(&other.tensor, &gradient.tensor)?, exclusive: true }
            }
            None => gradient,
        };
        self.values.insert(id, sum);
        Ok(())
    }

    /// The gradient of `tensor`; `None` where nothing depends on it.
    pub fn get(&self, tensor: &Tensor) -> Option<&Tensor> {
        self.values.get(&tensor.id()).map(|gradient| &gradient.tensor)
    }
}
