//! Gradients in buckets: the ranks add the gradients of the last layers while the backward pass computes
//! those of the first.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;

use candle_core::{Device, Result, Tensor, bail};

/// Values of a bucket, about: 4 MiB.
const VALUES: usize = 1 << 20;

/// The gradients of some parameters, one after the other, and then for each parameter the number of ranks
/// that have a gradient of it (a batch whose images were all left out as corrupt has none).
pub type Bucket = Vec<f32>;

/// Which gradient stands where. It follows from the names and shapes of the parameters, so that all ranks
/// have the same.
#[derive(Debug)]
pub struct Layout {
    /// The parameters of each bucket, in order.
    buckets: Vec<Vec<Slot>>,
    /// Bucket and position in the bucket by name.
    places: BTreeMap<String, (usize, usize)>,
}

#[derive(Debug)]
struct Slot {
    name: String,
    shape: Vec<usize>,
    /// Position of its first value.
    start: usize,
    len: usize,
}

impl Layout {
    /// The layout of the gradients of `parameters`.
    pub fn new(parameters: &BTreeMap<String, Tensor>) -> Layout {
        Layout::with_values(parameters, VALUES)
    }

    /// Buckets end with the parameter that fills them to at least `values`.
    fn with_values(parameters: &BTreeMap<String, Tensor>, values: usize) -> Layout {
        let mut order: Vec<(&String, &Tensor)> = parameters.iter().collect();
        order.sort_by_key(|(name, _)| distance_from_loss(name));
        let mut layout = Layout { buckets: Vec::new(), places: BTreeMap::new() };
        let mut filled = values;
        for (name, parameter) in order {
            if filled >= values {
                layout.buckets.push(Vec::new());
                filled = 0;
            }
            let len = parameter.elem_count();
            let (number, bucket) =
                (layout.buckets.len() - 1, layout.buckets.last_mut().expect("just pushed"));
            layout.places.insert(name.clone(), (number, bucket.len()));
            bucket.push(Slot { name: name.clone(), shape: parameter.dims().to_vec(), start: filled, len });
            filled += len;
        }
        layout
    }

    /// The names of the parameters of each bucket.
    pub fn names(&self) -> Vec<Vec<String>> {
        self.buckets.iter().map(|slots| slots.iter().map(|slot| slot.name.clone()).collect()).collect()
    }

    /// Number of buckets.
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Whether there is no bucket.
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// An empty bucket `number`: no rank has a gradient.
    fn bucket(&self, number: usize) -> Bucket {
        let slots = &self.buckets[number];
        vec![0.0; values(slots) + slots.len()]
    }

    /// The gradients in `buckets` by name, on `device`; parameters without a gradient on any rank are left
    /// out.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn gradients(&self, buckets: &[Bucket], device: &Device) -> Result<BTreeMap<String, Tensor>> {
        let mut gradients = BTreeMap::new();
        for (slots, bucket) in self.buckets.iter().zip(buckets) {
            let counts = &bucket[values(slots)..];
            for (slot, _) in slots.iter().zip(counts).filter(|(_, count)| **count > 0.0) {
                let values = &bucket[slot.start..slot.start + slot.len];
                gradients
                    .insert(slot.name.clone(), Tensor::from_slice(values, slot.shape.as_slice(), device)?);
            }
        }
        Ok(gradients)
    }
}

/// Number of values of a bucket's parameters.
fn values(slots: &[Slot]) -> usize {
    slots.last().map_or(0, |slot| slot.start + slot.len)
}

/// Sorts parameters by the time at which the backward pass finishes their gradients: head, last norm, stages
/// with the norms of their outputs and their blocks from the last to the first, patch embedding. A parameter
/// at another place would only delay its bucket.
fn distance_from_loss(name: &str) -> (usize, usize, usize, &str) {
    let path = name.strip_prefix(crate::scales::RATIO).unwrap_or(name);
    let number = |after: &str| -> Option<usize> {
        let (_, rest) = path.split_once(after)?;
        rest.split('.').next()?.parse().ok()
    };
    let before = |count: usize| usize::MAX - count;
    let of_output = path.strip_prefix("norm").and_then(|rest| rest.split('.').next()?.parse().ok());
    match (number("layers.").or(of_output), number("blocks.")) {
        (Some(stage), Some(block)) => (2, before(stage), before(block), path),
        (Some(stage), None) => (2, before(stage), 0, path), // Merging and the output's norm follow the blocks.
        _ if path.starts_with("head") => (0, 0, 0, path),
        _ if path.starts_with("norm") => (1, 0, 0, path),
        _ => (3, 0, 0, path),
    }
}

/// Fills buckets with the gradients of a backward pass, and sends each bucket as soon as it and those before
/// it are full.
pub struct Filler<'a> {
    layout: &'a Layout,
    sender: Sender<Bucket>,
    /// The buckets that are not sent yet, and how many gradients each of them waits for.
    waiting: Vec<(Bucket, usize)>,
    sent: usize,
}

impl<'a> Filler<'a> {
    /// A filler of empty buckets.
    pub fn new(layout: &'a Layout, sender: Sender<Bucket>) -> Filler<'a> {
        let waiting =
            (0..layout.len()).map(|number| (layout.bucket(number), layout.buckets[number].len())).collect();
        Filler { layout, sender, waiting, sent: 0 }
    }

    /// Takes the gradient of the parameter `name`, which is complete.
    ///
    /// # Errors
    /// A gradient that was given before, and errors of candle.
    pub fn put(&mut self, name: &str, gradient: &Tensor) -> Result<()> {
        let Some(&(number, position)) = self.layout.places.get(name) else { bail!("no bucket has {name}") };
        if !self.is_missing(number, position) {
            bail!("the gradient of {name} is given twice");
        }
        let slots = &self.layout.buckets[number];
        let count = values(slots) + position;
        let (bucket, missing) = &mut self.waiting[number];
        let slot = &slots[position];
        bucket[slot.start..slot.start + slot.len].copy_from_slice(&gradient.flatten_all()?.to_vec1::<f32>()?);
        bucket[count] = 1.0;
        *missing -= 1;
        while self.waiting.get(self.sent).is_some_and(|(_, missing)| *missing == 0) {
            self.send();
        }
        Ok(())
    }

    /// Takes the gradient of the parameter `name` unless it was given before.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn put_if_missing(&mut self, name: &str, gradient: &Tensor) -> Result<()> {
        match self.layout.places.get(name) {
            Some(&(number, position)) if self.is_missing(number, position) => self.put(name, gradient),
            _ => Ok(()),
        }
    }

    fn is_missing(&self, number: usize, position: usize) -> bool {
        number >= self.sent && self.waiting[number].0[values(&self.layout.buckets[number]) + position] == 0.0
    }

    /// Sends the remaining buckets: no more gradients come.
    pub fn finish(mut self) {
        while self.sent < self.waiting.len() {
            self.send();
        }
    }

    fn send(&mut self) {
        let bucket = std::mem::take(&mut self.waiting[self.sent].0);
        // The receiver is gone only if the exchange failed, which it reports itself.
        let _ = self.sender.send(bucket);
        self.sent += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters() -> BTreeMap<String, Tensor> {
        let names = [
            "patch_embed.proj.weight",
            "layers.0.blocks.0.attn.qkv.weight",
            "layers.0.blocks.1.attn.qkv.weight",
            "layers.0.downsample.reduction.weight",
            "layers.1.blocks.0.mlp.fc1.weight",
            "scale.layers.1.blocks.0.mlp.fc1.input",
            "norm.weight",
            "head.weight",
        ];
        let tensor = |i: usize| Tensor::full(i as f32 + 1.0, (i + 1,), &Device::Cpu).unwrap();
        names.iter().enumerate().map(|(i, name)| ((*name).to_owned(), tensor(i))).collect()
    }

    #[test]
    fn buckets_follow_the_backward_pass_and_give_back_what_was_put() {
        let parameters = parameters();
        let layout = Layout::with_values(&parameters, 12);
        let names: Vec<Vec<&str>> =
            layout.buckets.iter().map(|b| b.iter().map(|slot| slot.name.as_str()).collect()).collect();
        assert_eq!(
            names,
            [
                vec!["head.weight", "norm.weight"],
                vec![
                    "scale.layers.1.blocks.0.mlp.fc1.input",
                    "layers.1.blocks.0.mlp.fc1.weight",
                    "layers.0.downsample.reduction.weight"
                ],
                vec![
                    "layers.0.blocks.1.attn.qkv.weight",
                    "layers.0.blocks.0.attn.qkv.weight",
                    "patch_embed.proj.weight"
                ],
            ]
        );
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut filler = Filler::new(&layout, sender);
        let put = |filler: &mut Filler<'_>, name: &str| filler.put(name, &parameters[name]).unwrap();
        // The second bucket waits for the first.
        names[1].iter().for_each(|name| put(&mut filler, name));
        put(&mut filler, "norm.weight");
        assert!(receiver.try_recv().is_err());
        put(&mut filler, "head.weight");
        let mut buckets: Vec<Bucket> = receiver.try_iter().collect();
        assert_eq!(buckets.len(), 2);
        assert!(filler.put("head.weight", &parameters["head.weight"]).is_err(), "it was sent before");
        // No gradient of the last three but one.
        put(&mut filler, "patch_embed.proj.weight");
        filler.finish();
        buckets.extend(receiver.try_iter());
        let found = layout.gradients(&buckets, &Device::Cpu).unwrap();
        assert_eq!(found.len(), 6);
        for (name, gradient) in found {
            assert_eq!(
                gradient.to_vec1::<f32>().unwrap(),
                parameters[&name].to_vec1::<f32>().unwrap(),
                "{name}"
            );
        }
    }

    #[test]
    fn a_gradient_that_one_rank_lacks_is_that_of_the_other() {
        let parameters = parameters();
        let layout = Layout::new(&parameters);
        let fill = |name: Option<&str>| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let mut filler = Filler::new(&layout, sender);
            name.iter().for_each(|name| filler.put(name, &parameters[*name]).unwrap());
            filler.finish();
            receiver.try_iter().collect::<Vec<Bucket>>()
        };
        let sum: Vec<Bucket> = fill(Some("norm.weight"))
            .iter()
            .zip(&fill(None))
            .map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect())
            .collect();
        let found = layout.gradients(&sum, &Device::Cpu).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["norm.weight"]);
        assert_eq!(found["norm.weight"].to_vec1::<f32>().unwrap(), [7.0; 7]);
    }
}
