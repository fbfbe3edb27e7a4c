//! AdamW; it updates parameters in place.
//!
//! Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019; the order of operations
//! is PyTorch's.

use std::collections::BTreeMap;

#[cfg(feature = "cuda")]
mod cuda;

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, bail};
use swinq_float::map_each;
use swinq_float::ops::Compute;

use crate::job::OptimizerKeys;

/// Moving averages of a parameter's gradient.
#[derive(Clone, Debug)]
pub struct Moments {
    /// First moment: the mean.
    pub first: Tensor,
    /// Second moment: the mean square.
    pub second: Tensor,
}

/// The factors of one parameter's update.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    /// Learning rate.
    pub lr: f64,
    /// Weight decay.
    pub decay: f64,
    /// Factor of the gradient, from clipping and the loss scale.
    pub gradient: f64,
}

/// The optimizer's settings and state.
#[derive(Debug)]
pub struct AdamW {
    betas: [f64; 2],
    eps: f64,
    /// Number of updates so far.
    pub updates: u64,
    /// Moments by parameter name.
    pub moments: BTreeMap<String, Moments>,
    compute: Compute,
}

impl Moments {
    /// Zeros for `parameters`.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn zeros(parameters: &BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Moments>> {
        let zeros = |p: &Tensor| Result::Ok(Moments { first: p.zeros_like()?, second: p.zeros_like()? });
        parameters.iter().map(|(name, p)| Ok((name.clone(), zeros(p)?))).collect()
    }
}

impl AdamW {
    /// An optimizer with the moments of its parameters; `compute` is the implementation of its updates.
    pub fn new(keys: &OptimizerKeys, moments: BTreeMap<String, Moments>, compute: Compute) -> AdamW {
        AdamW { betas: keys.betas, eps: keys.eps, updates: 0, moments, compute }
    }

    /// The bias corrections of the two moments after `updates` updates.
    pub(crate) fn corrections(&self, updates: u64) -> [f64; 2] {
        self.betas.map(|beta| 1.0 - beta.powi(i32::try_from(updates).unwrap_or(i32::MAX)))
    }

    /// Starts an update of all parameters; call it once before the calls of [`AdamW::update`].
    pub fn begin(&mut self) {
        self.updates += 1;
    }

    /// Updates the parameter called `name`.
    ///
    /// # Errors
    /// An unknown name, shapes that differ, tensors that are not contiguous.
    pub fn update(
        &mut self,
        name: &str,
        parameter: &Tensor,
        gradient: &Tensor,
        update: Update,
    ) -> Result<()> {
        let Some(moments) = self.moments.get(name) else { bail!("no moments of {name}") };
        let correction = self.corrections(self.updates);
        let rule = Rule { betas: self.betas, eps: self.eps, correction, update };
        match self.compute {
            Compute::Host(_) => rule.on_host(parameter, gradient, moments),
            #[cfg(feature = "cuda")]
            Compute::Cuda => cuda::update(&rule, parameter, gradient, moments),
            Compute::Candle => rule.in_candle(parameter, gradient, moments),
        }
    }
}

/// ```text
/// m = b1 m + (1 - b1) g       v = b2 v + (1 - b2) g^2
/// p = p (1 - lr decay) - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
/// ```
struct Rule {
    betas: [f64; 2],
    eps: f64,
    correction: [f64; 2],
    update: Update,
}

impl Rule {
    fn in_candle(&self, parameter: &Tensor, gradient: &Tensor, moments: &Moments) -> Result<()> {
        let [b1, b2] = self.betas;
        let g = (gradient * self.update.gradient)?;
        let first = ((&moments.first * b1)? + (&g * (1.0 - b1))?)?;
        let second = ((&moments.second * b2)? + (g.sqr()? * (1.0 - b2))?)?;
        let root = ((&second / self.correction[1])?.sqrt()? + self.eps)?;
        let change = ((&first / root)? * (self.update.lr / self.correction[0]))?;
        let next = ((parameter * (1.0 - self.update.lr * self.update.decay))? - change)?;
        set(&moments.first, &first)?;
        set(&moments.second, &second)?;
        set(parameter, &next)
    }

    fn on_host(&self, parameter: &Tensor, gradient: &Tensor, moments: &Moments) -> Result<()> {
        let gradient = gradient.flatten_all()?.to_vec1::<f32>()?;
        let (first, second) =
            (moments.first.flatten_all()?.to_vec1()?, moments.second.flatten_all()?.to_vec1()?);
        let pass = std::sync::Mutex::new((first, second));
        parameter.inplace_op1(&HostUpdate { rule: self, gradient: &gradient, moments: &pass })?;
        let (first, second) = pass.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        set(&moments.first, &Tensor::from_vec(first, parameter.shape(), parameter.device())?)?;
        set(&moments.second, &Tensor::from_vec(second, parameter.shape(), parameter.device())?)
    }
}

/// Overwrites the values of `tensor`. A tensor outside candle's graph has no method for this.
pub(crate) fn set(tensor: &Tensor, values: &Tensor) -> Result<()> {
    if tensor.dims().is_empty() {
        bail!("a scalar cannot be set");
    }
    tensor.slice_set(&values.contiguous()?, 0, 0)
}

struct HostUpdate<'a> {
    rule: &'a Rule,
    gradient: &'a [f32],
    moments: &'a std::sync::Mutex<(Vec<f32>, Vec<f32>)>,
}

impl InplaceOp1 for HostUpdate<'_> {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let CpuStorage::F32(values) = storage else { bail!("parameters are f32") };
        let Some((start, end)) = layout.contiguous_offsets() else { bail!("a parameter is not contiguous") };
        let mut moments = self.moments.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (first, second) = &mut *moments;
        self.rule.update_values(&mut values[start..end], self.gradient, first, second);
        Ok(())
    }
}

/// The constants of the rule in f32.
#[derive(Clone, Copy)]
struct Constants {
    betas: [f32; 2],
    /// `1 - beta`, the gradient's weight in each moment.
    rest: [f32; 2],
    /// Factor of the gradient.
    factor: f32,
    /// Factor of the parameter: 1 without weight decay.
    keep: f32,
    /// Learning rate with the bias correction of the first moment.
    lr: f32,
    /// Bias correction of the second moment.
    unbias: f32,
    eps: f32,
}

impl Rule {
    fn constants(&self) -> Constants {
        Constants {
            betas: self.betas.map(|beta| beta as f32),
            rest: self.betas.map(|beta| (1.0 - beta) as f32),
            factor: self.update.gradient as f32,
            keep: (1.0 - self.update.lr * self.update.decay) as f32,
            lr: (self.update.lr / self.correction[0]) as f32,
            unbias: (1.0 / self.correction[1]) as f32,
            eps: self.eps as f32,
        }
    }

    fn update_values(&self, p: &mut [f32], g: &[f32], first: &mut [f32], second: &mut [f32]) {
        let Constants { betas: [b1, b2], rest: [c1, c2], factor, keep, lr, unbias, eps } = self.constants();
        const PART: usize = 1 << 14;
        let moments = first.chunks_mut(PART).zip(second.chunks_mut(PART));
        map_each(p.chunks_mut(PART).zip(g.chunks(PART)).zip(moments), |((p, g), (first, second))| {
            for (((p, &g), m), v) in p.iter_mut().zip(g).zip(first).zip(second) {
                let g = g * factor;
                *m = *m * b1 + g * c1;
                *v = *v * b2 + g * g * c2;
                *p = *p * keep - lr * (*m / ((*v * unbias).sqrt() + eps));
            }
        });
    }
}

/// The Euclidean norm of all gradients together, summed in f64 in the order given.
///
/// # Errors
/// Errors of candle.
pub fn norm<'a>(gradients: impl IntoIterator<Item = &'a Tensor>) -> Result<f64> {
    let (mut sum, mut squares) = (0.0, Vec::new());
    for gradient in gradients {
        if gradient.device().is_cpu() {
            let values = gradient.flatten_all()?.to_vec1::<f32>()?;
            sum += values.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>();
        } else {
            squares.push(gradient.sqr()?.sum_all()?);
        }
    }
    if !squares.is_empty() {
        // One transfer for all: each transfer waits for the device.
        let squares = Tensor::stack(&squares, 0)?.to_vec1::<f32>()?;
        sum += squares.into_iter().map(f64::from).sum::<f64>();
    }
    Ok(sum.sqrt())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    const TORCH: [f32; 3] = [0.6391262, 0.0072189, 1.4805835];

    /// `torch.optim.AdamW(lr=0.1, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.05)`: five steps, gradients
    /// `p * i - 1`.
    #[test]
    fn equals_pytorch() {
        let start = [1.0f32, -0.5, 2.0];
        let keys = OptimizerKeys { betas: [0.9, 0.99], eps: 1e-6, ..OptimizerKeys::default() };
        for compute in [Compute::host().unwrap(), Compute::Candle] {
            let p = Tensor::new(&start, &Device::Cpu).unwrap();
            let parameters = BTreeMap::from([("p".to_owned(), p.clone())]);
            let mut adam = AdamW::new(&keys, Moments::zeros(&parameters).unwrap(), compute);
            for i in 1..=5 {
                let gradient = ((&p * f64::from(i)).unwrap() - 1.0).unwrap();
                adam.begin();
                let update = Update { lr: 0.1, decay: 0.05, gradient: 1.0 };
                adam.update("p", &p, &gradient, update).unwrap();
            }
            for (got, want) in p.to_vec1::<f32>().unwrap().iter().zip(TORCH) {
                assert!((got - want).abs() < 2e-6, "{got} instead of {want}, {compute:?}");
            }
        }
    }
}
