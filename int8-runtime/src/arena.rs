//! The memory slots of a plan's tensors. Tensors that are never alive together share a slot.

use swinq_plan::{Outline, TensorId, TensorSpec};

/// Slot of each tensor, and the bytes that each slot must hold. The image has no slot: it is read from the
/// caller's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) slot: Vec<Option<usize>>,
    pub(crate) bytes: Vec<usize>,
}

impl Layout {
    /// Bytes of all slots.
    pub(crate) fn total(&self) -> usize {
        self.bytes.iter().fold(0, |total: usize, &bytes| total.saturating_add(bytes))
    }

    /// Places the tensors of `plan`. `bytes` returns the bytes of a tensor for one image, and `images` the
    /// number of images for which the tensor needs room. Outputs keep their slots to the end.
    pub(crate) fn of_plan(
        plan: &Outline,
        bytes: impl Fn(&TensorSpec) -> usize,
        images: impl Fn(TensorId) -> usize,
    ) -> Layout {
        let bytes = |(i, tensor)| images(TensorId(i)).saturating_mul(bytes(tensor));
        let bytes: Vec<usize> = plan.tensors.iter().enumerate().map(bytes).collect();
        let uses: Vec<_> = plan.steps.iter().map(|step| (step.input, step.output)).collect();
        let kept: Vec<TensorId> = plan.outputs.iter().map(|output| output.tensor).collect();
        Layout::new(&uses, &bytes, &kept)
    }

    /// Places tensors with the sizes `bytes`. `uses` lists the tensors that each step reads and writes, in
    /// order, and `kept` those that are read after the last step. At its first use a tensor takes the free
    /// slot that must grow least.
    pub(crate) fn new(uses: &[(TensorId, TensorId)], bytes: &[usize], kept: &[TensorId]) -> Layout {
        let mut last_use = last_uses(uses, bytes.len());
        kept.iter().for_each(|tensor| last_use[tensor.0] = uses.len());
        let mut layout = Layout { slot: vec![None; bytes.len()], bytes: Vec::new() };
        let mut free: Vec<usize> = Vec::new();
        for (index, &(input, output)) in uses.iter().enumerate() {
            if layout.slot[output.0].is_none() {
                layout.place(bytes[output.0], output, &mut free);
            }
            if input != output && last_use[input.0] == index {
                free.extend(layout.slot[input.0]);
            }
        }
        layout
    }

    fn place(&mut self, need: usize, tensor: TensorId, free: &mut Vec<usize>) {
        let growth = |slot: &usize| (need.saturating_sub(self.bytes[*slot]), self.bytes[*slot]);
        let best = (0..free.len()).min_by_key(|&i| growth(&free[i]));
        let slot = match best {
            Some(i) => free.swap_remove(i),
            None => {
                self.bytes.push(0);
                self.bytes.len() - 1
            }
        };
        self.bytes[slot] = self.bytes[slot].max(need);
        self.slot[tensor.0] = Some(slot);
    }
}

/// Index of the last step that touches each tensor.
fn last_uses(uses: &[(TensorId, TensorId)], tensors: usize) -> Vec<usize> {
    let mut last = vec![0; tensors];
    for (index, &(input, output)) in uses.iter().enumerate() {
        last[input.0] = index;
        last[output.0] = index;
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_alive_together_never_share_a_slot() {
        // Tensor 1 is a residual stream, which is alive from the first step to the last.
        let uses = [(0, 1), (1, 2), (2, 3), (3, 1), (1, 4), (4, 1), (1, 5)];
        let uses = uses.map(|(input, output)| (TensorId(input), TensorId(output)));
        let layout = Layout::new(&uses, &[36, 16, 32, 64, 8, 4], &[]);
        for index in 0..uses.len() {
            let alive = |t: usize| {
                let touches = |&(input, output): &(TensorId, TensorId)| input.0 == t || output.0 == t;
                uses[..=index].iter().any(touches) && uses[index..].iter().any(touches)
            };
            let mut slots: Vec<_> = (1..6).filter(|&t| alive(t)).map(|t| layout.slot[t]).collect();
            let count = slots.len();
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), count, "step {index}");
        }
        assert_eq!(layout.slot[0], None);
        assert_eq!(layout.bytes.len(), 3);
        // An output is alive to the end: tensor 2 keeps its slot after its last use.
        let kept = Layout::new(&uses, &[36, 16, 32, 64, 8, 4], &[TensorId(2)]);
        assert!((3..6).all(|other| kept.slot[other] != kept.slot[2]), "{:?}", kept.slot);
    }
}
