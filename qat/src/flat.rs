//! Tensors of several parameters one after the other in one piece of memory, so that one kernel updates all
//! of them and one exchange adds many gradients.

use std::collections::BTreeMap;
use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use crate::ranks::Layout;

/// The first value of each parameter lies at a multiple of this number of values, so that every access is
/// aligned.
const ALIGNMENT: usize = 64;

/// The values of an f32 tensor, in row-major order. candle copies all the memory in which a tensor of a GPU
/// lies, so a view such as [`Flat::view`] is first copied on the GPU: else each parameter of a checkpoint
/// would cost a transfer of all of them.
pub(crate) fn host_values(tensor: &Tensor) -> Result<Vec<f32>> {
    let flat = tensor.flatten_all()?;
    if flat.device().is_cpu() { flat.to_vec1() } else { flat.force_contiguous()?.to_vec1() }
}

/// Where each parameter lies.
#[derive(Clone, Debug)]
pub(crate) struct Flat {
    slots: BTreeMap<String, Slot>,
    /// The parameters that are exchanged together, in the order in which the backward pass completes them.
    buckets: Vec<Bucket>,
    len: usize,
}

#[derive(Clone, Debug)]
struct Slot {
    start: usize,
    shape: Vec<usize>,
}

/// Parameters that follow each other.
#[derive(Clone, Debug)]
#[cfg_attr(
    not(any(test, feature = "cuda")),
    expect(dead_code, reason = "only CUDA updates all parameters together")
)]
pub(crate) struct Bucket {
    /// Their names.
    pub names: Vec<String>,
    /// Their values, with what lies between them.
    pub range: Range<usize>,
}

impl Flat {
    /// Places for `parameters`.
    pub fn new(parameters: &BTreeMap<String, Tensor>) -> Flat {
        let mut flat = Flat { slots: BTreeMap::new(), buckets: Vec::new(), len: 0 };
        for names in Layout::new(parameters).names() {
            let start = flat.len;
            for name in &names {
                let shape = parameters[name].dims().to_vec();
                let len: usize = shape.iter().product();
                let slot = Slot { start: flat.len, shape };
                flat.slots.insert(name.clone(), slot);
                flat.len += len.next_multiple_of(ALIGNMENT);
            }
            flat.buckets.push(Bucket { names, range: start..flat.len });
        }
        flat
    }

    /// Zeros for all parameters.
    pub fn zeros(&self, device: &Device) -> Result<Tensor> {
        Tensor::zeros(self.len, DType::F32, device)
    }

    /// The values of `tensors`, one after the other.
    pub fn gathered(&self, tensors: &BTreeMap<String, Tensor>, device: &Device) -> Result<Tensor> {
        let mut values = vec![0.0; self.len];
        for (name, slot) in &self.slots {
            let tensor = host_values(&tensors[name])?;
            values[slot.start..slot.start + tensor.len()].copy_from_slice(&tensor);
        }
        Tensor::from_vec(values, self.len, device)
    }

    /// The tensors that lie in `values`.
    pub fn views(&self, values: &Tensor) -> Result<BTreeMap<String, Tensor>> {
        self.slots.keys().map(|name| Ok((name.clone(), self.view(values, name)?))).collect()
    }

    /// The tensor of the parameter `name` in `values`.
    pub fn view(&self, values: &Tensor, name: &str) -> Result<Tensor> {
        let Slot { start, shape, .. } = &self.slots[name];
        values.narrow(0, *start, shape.iter().product())?.reshape(shape.as_slice())
    }
}

#[cfg(any(test, feature = "cuda"))]
impl Flat {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The parameters that are exchanged together.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// The number of the bucket of a parameter.
    pub fn bucket_of(&self, name: &str) -> Option<usize> {
        let start = self.slots.get(name)?.start;
        self.buckets.iter().position(|bucket| bucket.range.contains(&start))
    }

    /// For each value what `of` says of its parameter; `between` for what lies between parameters.
    pub fn each(&self, between: u8, of: impl Fn(&str) -> u8) -> Vec<u8> {
        let mut kinds = vec![between; self.len];
        for (name, Slot { start, shape, .. }) in &self.slots {
            kinds[*start..start + shape.iter().product::<usize>()].fill(of(name));
        }
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_hold_the_values_of_their_parameters() {
        let tensor = |first: f32, shape: (usize, usize)| {
            (Tensor::arange(0f32, (shape.0 * shape.1) as f32, &Device::Cpu).unwrap() + f64::from(first))
                .unwrap()
                .reshape(shape)
                .unwrap()
        };
        let parameters = BTreeMap::from([
            ("head.weight".to_owned(), tensor(1.0, (3, 5))),
            ("layers.0.blocks.0.attn.qkv.weight".to_owned(), tensor(100.0, (2, 70))),
            ("norm.weight".to_owned(), tensor(7.0, (1, 4))),
        ]);
        let flat = Flat::new(&parameters);
        let values = flat.gathered(&parameters, &Device::Cpu).unwrap();
        assert_eq!((values.elem_count(), flat.len()), (64 + 192 + 64, 320));
        for (name, view) in flat.views(&values).unwrap() {
            let same = |t: &Tensor| t.to_vec2::<f32>().unwrap();
            assert_eq!(same(&view), same(&parameters[&name]), "{name}");
        }
        let kinds = flat.each(9, |name| u8::from(name == "norm.weight"));
        assert_eq!(kinds.iter().filter(|kind| **kind == 1).count(), 4);
        assert_eq!(kinds.iter().filter(|kind| **kind == 9).count(), 49 + 52 + 60);
        let covered: usize = flat.buckets().iter().map(|bucket| bucket.range.len()).sum();
        assert_eq!(covered, flat.len());
        assert_eq!(flat.bucket_of("head.weight"), Some(0));
        assert!(flat.buckets()[0].names.contains(&"head.weight".to_owned()));
    }
}
