//! Reverse-mode differentiation for training, by hand-written backward passes.
//!
//! candle's own gradient graph fills a tensor of zeros for every argument of every operation and adds to it, which costs
//! more memory traffic than the passes themselves. A [`Tape`] is the list of what was computed; its backward walks it in
//! reverse, moves gradients where one consumer gives them, and adds only where several do. Everything that is summed
//! is summed in the order of the tape, so gradients are the same bits on every run.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Result, Tensor, TensorId};

type Backward = Box<dyn FnOnce(&Tensor, &mut Gradients) -> Result<()> + Send>;

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
    /// Whether passes on the host are candle's operations, too.
    composed: bool,
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

    /// An empty tape whose passes on the host are what they are on other devices: to test those anywhere.
    #[cfg(test)]
    pub(crate) fn composed() -> Tape {
        Tape(Arc::new(Mutex::new(Record { composed: true, ..Record::default() })))
    }

    /// Whether `x` is for the single passes on the host.
    pub(super) fn fuses(&self, x: &Tensor) -> bool {
        x.device().is_cpu() && !self.lock().composed
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
        backward: impl FnOnce(&Tensor, &mut Gradients) -> Result<()> + Send + 'static,
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
        for (id, gradient) in seeds {
            gradients.add_id(id, gradient)?;
        }
        for node in nodes.into_iter().rev() {
            if let Some(gradient) = gradients.values.remove(&node.output) {
                (node.backward)(&gradient, &mut gradients)?;
            }
        }
        gradients.values.retain(|id, _| leaves.contains(id));
        Ok(gradients)
    }
}

/// Gradients by tensor.
#[derive(Default)]
pub struct Gradients {
    wanted: HashSet<TensorId>,
    values: HashMap<TensorId, Tensor>,
}

impl Gradients {
    /// Whether the gradient of `tensor` is of use.
    pub fn wants(&self, tensor: &Tensor) -> bool {
        self.wanted.contains(&tensor.id())
    }

    /// Adds to the gradient of `tensor`, if it is of use.
    ///
    /// # Errors
    /// A gradient of another shape than an earlier one.
    pub fn add(&mut self, tensor: &Tensor, gradient: Tensor) -> Result<()> {
        self.add_id(tensor.id(), gradient)
    }

    fn add_id(&mut self, id: TensorId, gradient: Tensor) -> Result<()> {
        if !self.wanted.contains(&id) {
            return Ok(());
        }
        let sum = match self.values.remove(&id) {
            Some(other) => super::ops::sum(&other, &gradient)?,
            None => gradient,
        };
        self.values.insert(id, sum);
        Ok(())
    }

    /// The gradient of `tensor`; `None` where nothing depends on it.
    pub fn get(&self, tensor: &Tensor) -> Option<&Tensor> {
        self.values.get(&tensor.id())
    }
}
