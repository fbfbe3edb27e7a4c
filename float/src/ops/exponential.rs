//! The exponential function for the parameters of Swin V2.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

/// `e^x` of a small f32 tensor. In host memory it is that of f64 in crate libm, rounded to f32, as in the
/// engine: `f32::exp` calls the C runtime, whose last bit differs between systems.
pub(super) fn exp(x: &Tensor) -> Result<Tensor> {
    if x.device().is_cpu() { x.contiguous()?.apply_op1(Exp) } else { x.exp() }
}

struct Exp;

impl CustomOp1 for Exp {
    fn name(&self) -> &'static str {
        "exp"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("exp: the argument is not contiguous")
        };
        let x = &storage.as_slice::<f32>()?[start..end];
        let out = x.iter().map(|&x| libm::exp(f64::from(x)) as f32).collect();
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, result: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some((grad * result)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last bit of `f64::exp` depends on the system. None of these results lies so near the middle
    /// between two f32 that it matters.
    #[test]
    fn the_bits_do_not_depend_on_the_c_runtime() {
        let x = Tensor::arange(-20_000f32, 5_000.0, &candle_core::Device::Cpu).unwrap();
        let x = (x / 1000.0).unwrap().reshape((2, 12_500)).unwrap().t().unwrap();
        let want: Vec<f32> = x.flatten_all().unwrap().to_vec1().unwrap();
        let want: Vec<f32> = want.into_iter().map(|x| f64::from(x).exp() as f32).collect();
        let got = exp(&x).unwrap();
        assert_eq!((got.dims(), got.flatten_all().unwrap().to_vec1().unwrap()), (&[12_500, 2][..], want));
    }
}
