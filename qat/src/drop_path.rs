//! DropPath: training drops whole branches for random images.
//!
//! Huang et al., "Deep Networks with Stochastic Depth", ECCV 2016. In Swin the rate grows linearly, from 0 at
//! the first block to its highest value at the last.

use candle_core::{Device, Result, Tensor};
use swinq_model::{BlockId, Branch, Draws, SwinConfig, all_blocks};

/// The branches to drop for each image of a batch. They depend on the seed and the batch's number in the run
/// alone, so a checkpoint stores no state for them.
#[derive(Clone, Debug)]
pub struct DropPath {
    seed: u64,
    batch: u64,
    rates: Vec<(BlockId, f64)>,
    /// The factors of all branches on a device, `[2 * blocks, images]`, in the order of [`DropPath::all`].
    resident: Option<Tensor>,
}

impl DropPath {
    /// Rates up to `highest` for the blocks of `config`; `None` if nothing is ever dropped.
    pub fn new(config: &SwinConfig, highest: f64, seed: u64) -> Option<DropPath> {
        let blocks = all_blocks(config);
        let increment = highest / (blocks.len().max(2) - 1) as f64;
        let rates = blocks.into_iter().enumerate().map(|(i, block)| (block, increment * i as f64)).collect();
        (highest > 0.0).then_some(DropPath { seed, batch: 0, rates, resident: None })
    }

    /// The same rates for batch number `batch` of the run.
    pub fn at(&self, batch: u64) -> DropPath {
        DropPath { batch, ..self.clone() }
    }

    /// Factor of each image's branch, `[images]`: 0, or the reciprocal of the fraction kept. `None` for a
    /// block that drops nothing.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn factors(
        &self,
        block: BlockId,
        branch: Branch,
        images: usize,
        device: &Device,
    ) -> Result<Option<Tensor>> {
        let Some(index) = self.rates.iter().position(|(b, rate)| *b == block && *rate > 0.0) else {
            return Ok(None);
        };
        if let Some(resident) = &self.resident {
            return resident.get(2 * index + branch as usize).map(Some);
        }
        Tensor::from_vec(self.drawn(index, branch, images), images, device).map(Some)
    }

    /// The factors of block `index`.
    fn drawn(&self, index: usize, branch: Branch, images: usize) -> Vec<f32> {
        let rate = self.rates[index].1;
        let mut random = Draws::keyed(&[self.seed, self.batch, index as u64, branch as u64]);
        let kept = (1.0 / (1.0 - rate)) as f32;
        (0..images).map(|_| if random.unit() < rate { 0.0 } else { kept }).collect()
    }

    /// The factors of all branches, `[2 * blocks, images]`: of each block those of attention, then those of
    /// the MLP.
    pub fn all(&self, images: usize) -> Vec<f32> {
        let blocks = 0..self.rates.len();
        blocks
            .flat_map(|i| [Branch::Attn, Branch::Mlp].map(|branch| self.drawn(i, branch, images)).concat())
            .collect()
    }

    /// Number of branches.
    pub fn branches(&self) -> usize {
        2 * self.rates.len()
    }

    /// The same branches, with the factors in `resident` instead of those of the batch.
    pub fn resident(&self, resident: Tensor) -> DropPath {
        DropPath { resident: Some(resident), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_grow_with_depth_and_are_kept_in_expectation() {
        let config = SwinConfig {
            depths: vec![2, 3],
            num_heads: vec![2, 4],
            ..swinq_model::SwinConfig::official("swin_tiny_patch4_window7_224").unwrap()
        };
        let drop_path = DropPath::new(&config, 0.4, 7).unwrap();
        let rates: Vec<f64> = drop_path.rates.iter().map(|(_, rate)| *rate).collect();
        assert_eq!(rates.iter().map(|r| (r * 10.0).round()).collect::<Vec<_>>(), [0.0, 1.0, 2.0, 3.0, 4.0]);
        let last = BlockId { stage: 1, block: 2 };
        let factors = |batch| {
            let tensor = drop_path.at(batch).factors(last, Branch::Mlp, 4000, &Device::Cpu).unwrap().unwrap();
            tensor.to_vec1::<f32>().unwrap()
        };
        let drawn = factors(3);
        let mean = drawn.iter().sum::<f32>() / 4000.0;
        assert!((mean - 1.0).abs() < 0.05, "{mean}");
        assert!(drawn.iter().all(|&f| f == 0.0 || f == (1.0 / 0.6) as f32));
        assert_eq!(drawn, factors(3));
        assert_ne!(drawn, factors(4));
        let first = BlockId { stage: 0, block: 0 };
        assert!(drop_path.factors(first, Branch::Attn, 5, &Device::Cpu).unwrap().is_none());
        let all =
            Tensor::from_vec(drop_path.at(3).all(4000), (drop_path.branches(), 4000), &Device::Cpu).unwrap();
        let resident =
            drop_path.at(9).resident(all).factors(last, Branch::Mlp, 4000, &Device::Cpu).unwrap().unwrap();
        assert_eq!(resident.to_vec1::<f32>().unwrap(), drawn);
        assert!(DropPath::new(&config, 0.0, 7).is_none());
    }
}
