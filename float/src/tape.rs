//! Reverse-mode differentiation for training, by hand-written backward passes.
//!
//! candle's gradient graph allocates a tensor of zeros for every argument of every operation and adds to it,
//! which causes more memory traffic than the passes themselves. A [`Tape`] is the list of recorded
//! operations. Its backward pass walks the list in reverse; it moves a gradient that has one source, and adds
//! gradients only for a tensor that has several. Sums follow the order of the tape, so gradients have the
//! same bits in every run.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, TensorId, bail};

type Backward = Box<dyn FnOnce(Gradient, &mut Gradients) -> Result<()> + Send>;

/// The operations recorded since the last backward pass. Clones share one list.
#[derive(Clone, Default)]
pub struct Tape(Arc<Mutex<Record>>);

#[derive(Default)]
struct Record {
    /// The parameters: tensors whose gradients are returned.
    leaves: HashSet<TensorId>,
    /// Results of recorded operations.
    results: HashSet<TensorId>,
    /// The parameters that recorded operations use.
    used: HashSet<TensorId>,
    nodes: Vec<Node>,
    /// Whether operations are not recorded.
    paused: bool,
}

struct Node {
    output: TensorId,
    backward: Backward,
    /// The parameters that no earlier operation uses. Their gradients are complete when this operation's
    /// backward pass is done.
    first_uses: Vec<TensorId>,
}

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = self.lock();
        write!(f, "Tape({} leaves, {} operations)", record.leaves.len(), record.nodes.len())
    }
}

impl Tape {
    fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `leaf` a parameter: later backward passes return its gradient.
    pub fn watch(&self, leaf: &Tensor) {
        self.lock().leaves.insert(leaf.id());
    }

    /// Makes `leaf` an ordinary tensor again.
    pub fn unwatch(&self, leaf: &Tensor) {
        self.lock().leaves.remove(&leaf.id());
    }

    /// Whether later operations are recorded, as they are at first. What is not recorded keeps no tensor
    /// alive.
    pub fn set_recording(&self, recording: bool) {
        self.lock().paused = !recording;
    }

    /// Whether `tensor` is a parameter or depends on one.
    pub fn tracks(&self, tensor: &Tensor) -> bool {
        let record = self.lock();
        record.leaves.contains(&tensor.id()) || record.results.contains(&tensor.id())
    }

    /// Records that `output` was computed from `inputs`. `backward` receives the gradient of `output` and
    /// adds the gradients of the inputs. Nothing is recorded if no input is tracked, or while the recording
    /// is off.
    pub fn record(
        &self,
        inputs: &[&Tensor],
        output: &Tensor,
        backward: impl FnOnce(Gradient, &mut Gradients) -> Result<()> + Send + 'static,
    ) {
        let mut guard = self.lock();
        let record = &mut *guard;
        let tracked = |id| record.leaves.contains(&id) || record.results.contains(&id);
        if !record.paused && inputs.iter().any(|input| tracked(input.id())) {
            record.results.insert(output.id());
            let leaves = inputs.iter().map(|input| input.id()).filter(|id| record.leaves.contains(id));
            let first_uses = leaves.filter(|id| record.used.insert(*id)).collect();
            record.nodes.push(Node { output: output.id(), backward: Box::new(backward), first_uses });
        }
    }

    /// Number of recorded operations.
    pub fn len(&self) -> usize {
        self.lock().nodes.len()
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes the recorded operations; parameters stay.
    pub fn clear(&self) {
        let mut record = self.lock();
        record.results.clear();
        record.used.clear();
        record.nodes.clear();
    }

    /// The gradients of the parameters, from the gradients of some results (`seeds`), which have the shapes
    /// of these results. The tape is empty afterwards.
    ///
    /// # Errors
    /// An error of a backward pass; the tape is empty after an error, too.
    pub fn backward(&self, seeds: impl IntoIterator<Item = (TensorId, Tensor)>) -> Result<Gradients> {
        self.backward_with(seeds, |_, _| Ok(()))
    }

    /// [`Tape::backward`], which calls `complete` with each parameter that has a gradient and with this
    /// gradient, as soon as no other operation adds to it.
    ///
    /// # Errors
    /// The errors of [`Tape::backward`] and of `complete`.
    pub fn backward_with(
        &self,
        seeds: impl IntoIterator<Item = (TensorId, Tensor)>,
        mut complete: impl FnMut(TensorId, &Tensor) -> Result<()>,
    ) -> Result<Gradients> {
        let (nodes, wanted, leaves) = {
            let mut record = self.lock();
            record.used.clear();
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
            for leaf in node.first_uses {
                if let Some(gradient) = gradients.values.get(&leaf) {
                    complete(leaf, &gradient.tensor)?;
                }
            }
        }
        gradients.values.retain(|id, _| leaves.contains(id));
        Ok(gradients)
    }
}

/// The gradient of a result.
pub struct Gradient {
    tensor: Tensor,
    /// Whether no other tensor shares the values.
    exclusive: bool,
}

impl Gradient {
    /// The gradient as a tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// The values on the host, for overwriting: moved out if no other tensor shares them, else copied.
    ///
    /// # Errors
    /// The gradient is on another device or has another element type.
    pub fn into_values(self) -> Result<Vec<f32>> {
        if !self.exclusive || !self.tensor.is_contiguous() {
            return self.tensor.flatten_all()?.to_vec1();
        }
        let taken = Take(Mutex::default());
        self.tensor.inplace_op1(&taken)?;
        Ok(taken.0.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Moves the values out of a tensor that is not read again.
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
    /// Whether the gradient of `tensor` is needed.
    pub fn wants(&self, tensor: &Tensor) -> bool {
        self.wanted.contains(&tensor.id())
    }

    /// Adds `gradient`, which no other tensor may share, to the gradient of `tensor`, if that is needed.
    ///
    /// # Errors
    /// `gradient` has another shape than an earlier one.
    pub fn add(&mut self, tensor: &Tensor, gradient: Tensor) -> Result<()> {
        self.add_id(tensor.id(), Gradient { tensor: gradient, exclusive: true })
    }

    /// Passes the gradient of a result on to `tensor`, unchanged.
    ///
    /// # Errors
    /// The errors of [`Gradients::add`].
    pub fn pass(&mut self, tensor: &Tensor, gradient: Gradient) -> Result<()> {
        self.add_id(tensor.id(), gradient)
    }

    /// Passes the gradient of a result on to two tensors, unchanged.
    ///
    /// # Errors
    /// The errors of [`Gradients::add`].
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

    /// Removes and returns the gradient of `tensor`; `None` if nothing depends on it.
    pub fn take(&mut self, tensor: &Tensor) -> Option<Tensor> {
        self.values.remove(&tensor.id()).map(|gradient| gradient.tensor)
    }

    /// Adopts the gradients of `others`.
    ///
    /// # Errors
    /// Both have a gradient of the same tensor.
    pub fn merge(&mut self, others: Gradients) -> Result<()> {
        for (id, gradient) in others.values {
            if self.values.insert(id, gradient).is_some() {
                bail!("a parameter is used by two segments")
            }
        }
        Ok(())
    }

    /// The gradient of `tensor`; `None` if nothing depends on it.
    pub fn get(&self, tensor: &Tensor) -> Option<&Tensor> {
        self.values.get(&tensor.id()).map(|gradient| &gradient.tensor)
    }
}
