//! The order of a refinement: layers that do not affect each other are refined at the same time.

use std::collections::BTreeMap;

use rayon::prelude::*;
use swinq_model::{Linear, Site};

use super::{Refiner, Samples, Trial};
use crate::error::CalibError;
use crate::refined::RefinedParameters;

impl Refiner<'_> {
    /// Refines `layers`, and calls `done` with the number of layers refined so far. Returns what it found,
    /// and every transform that was tried.
    ///
    /// Layers do not affect each other, but for those of one attention, so that every thread refines others.
    pub fn run(
        mut self,
        mut layers: Vec<Linear>,
        done: &mut dyn FnMut(usize) -> Result<(), CalibError>,
    ) -> Result<(RefinedParameters, Vec<Trial>), CalibError> {
        // Migration of values rewrites `attn.qkv` while it refines `attn.proj`.
        layers.sort_by_key(|layer| matches!(layer, Linear::Qkv(_)));
        let (basic, mut finished) = (self.refined.ranges.clone(), 0);
        for together in self.groups(&layers).chunks(rayon::current_num_threads()) {
            let parts: Vec<(Refiner, &Vec<Linear>)> =
                together.iter().map(|group| (self.part(group, &basic), group)).collect();
            let parts: Vec<Result<Refiner, CalibError>> =
                parts.into_par_iter().map(|(part, group)| part.refined(group)).collect();
            for (part, group) in parts.into_iter().zip(together) {
                self.take(part?, &basic);
                for _ in group {
                    finished += 1;
                    done(finished)?;
                }
            }
        }
        self.trials.sort_by_key(|trial| layers.iter().position(|layer| *layer == trial.layer));
        Ok((self.refined, self.trials))
    }

    /// `layers` in groups that do not affect each other, those with the most weights first.
    fn groups(&self, layers: &[Linear]) -> Vec<Vec<Linear>> {
        let attention = |layer: &Linear| match layer {
            Linear::Qkv(block) | Linear::Proj(block) => Some(*block),
            _ => None,
        };
        let mut groups: Vec<Vec<Linear>> = Vec::new();
        for layer in layers {
            let of_group = |group: &&mut Vec<Linear>| {
                attention(layer).is_some() && attention(&group[0]) == attention(layer)
            };
            match groups.iter_mut().find(of_group) {
                Some(group) => group.push(*layer),
                None => groups.push(vec![*layer]),
            }
        }
        let weights =
            |group: &Vec<Linear>| -> usize { group.iter().map(|layer| self.weight(*layer).data.len()).sum() };
        groups.sort_by_key(|group| std::cmp::Reverse(weights(group)));
        groups
    }

    /// The refinement of the layers of one group, which gets their samples, from the ranges `basic` on.
    fn part(&mut self, group: &[Linear], basic: &BTreeMap<Site, f32>) -> Self {
        let Samples { inputs, attentions } = &mut self.samples;
        let blocks = group.iter().filter_map(|layer| match layer {
            Linear::Proj(block) => Some(*block),
            _ => None,
        });
        let samples = Samples {
            inputs: group.iter().filter_map(|layer| inputs.remove_entry(layer)).collect(),
            attentions: blocks.filter_map(|block| attentions.remove_entry(&block)).collect(),
        };
        let refined = RefinedParameters::new(basic.clone());
        Refiner { samples, refined, trials: Vec::new(), ..*self }
    }

    /// Refines `group`, in this order.
    fn refined(mut self, group: &[Linear]) -> Result<Self, CalibError> {
        for &layer in group {
            if !self.samples.inputs[&layer].held.is_empty() {
                self.layer(layer)?;
            }
        }
        Ok(self)
    }

    /// Takes over the results of a part, which started from the ranges `basic`.
    fn take(&mut self, part: Refiner, basic: &BTreeMap<Site, f32>) {
        let RefinedParameters { tensors, ranges, channels, biases } = part.refined;
        let own = &mut self.refined;
        own.ranges.extend(ranges.into_iter().filter(|(site, range)| basic.get(site) != Some(range)));
        own.tensors.extend(tensors);
        own.channels.extend(channels);
        own.biases.extend(biases);
        self.trials.extend(part.trials);
    }
}
