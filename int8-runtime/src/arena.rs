//! Where each tensor of a plan lives: slots shared by tensors that are never alive together.

use crate::plan::{Plan, TensorId};

/// Slot of each tensor, and the bytes that each slot must hold. The image has no slot: it is read where
/// the caller has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) slot: Vec<Option<usize>>,
    pub(crate) bytes: Vec<usize>,
}

impl Layout {
    /// Places the tensors of `plan`, each for as many images as `images` says.
    pub(crate) fn of_plan(plan: &Plan, images: impl Fn(TensorId) -> usize) -> Layout {
        let bytes = plan
            .tensors
            .iter()
            .enumerate()
            .map(|(i, tensor)| images(TensorId(i)).saturating_mul(tensor.bytes()));
        let uses: Vec<_> = plan.steps.iter().map(|step| (step.input, step.output)).collect();
        Layout::new(&uses, &bytes.collect::<Vec<_>>())
    }

    /// Places tensors of these many `bytes`, which steps read and write in turn, first come, first served: a tensor takes
    /// the free slot that must grow least.
    pub(crate) fn new(uses: &[(TensorId, TensorId)], bytes: &[usize]) -> Layout {
        let last_use = last_uses(uses, bytes.len());
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
    use crate::plan::{Element, Op, Step, Store, TensorSpec};

    fn step(input: usize, output: usize) -> Step {
        let (input, output) = (TensorId(input), TensorId(output));
        Step { name: String::new(), op: Op::Pool, store: Store::F32, input, output, macs: 0 }
    }

    #[test]
    fn tensors_alive_together_never_share_a_slot() {
        let spec = |rows| TensorSpec { rows, columns: 1, element: Element::F32 };
        let plan = Plan {
            tensors: vec![spec(9), spec(4), spec(8), spec(16), spec(2), spec(1)],
            // 1 is a stream that lives from the first step to the last but one.
            steps: vec![step(0, 1), step(1, 2), step(2, 3), step(3, 1), step(1, 4), step(4, 1), step(1, 5)],
        };
        let layout = Layout::of_plan(&plan, |_| 1);
        for (index, step) in plan.steps.iter().enumerate() {
            let alive = |t: usize| {
                let uses = |s: &Step| s.input.0 == t || s.output.0 == t;
                plan.steps[..=index].iter().any(uses) && plan.steps[index..].iter().any(uses)
            };
            let mut slots: Vec<_> = (1..6).filter(|&t| alive(t)).map(|t| layout.slot[t]).collect();
            let count = slots.len();
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), count, "step {index} ({})", step.name);
        }
        assert_eq!(layout.slot[0], None);
        assert_eq!(layout.bytes.len(), 3);
    }
}
