//! The relative error of feature maps, for the loss of backbones.

use candle_core::{Result, Tensor, bail};

use super::host::{GRAIN, slices};
use crate::ops::Compute;
use crate::threads::map_each;

/// The relative squared error of each image, and its gradient. `x` and `target` are maps of `images` images,
/// `[images * tokens, c]`. The error of image i is `sum (x - target)^2 / sum target^2` over the values of the
/// image, the inverse of its signal-to-noise ratio. The gradient, with respect to `x`, is that of the sum of
/// the images' errors, times `factor`.
///
/// The squares are added in f64 on the host, in parts of fixed size and in order; on other devices in f32.
///
/// # Errors
/// Shapes that differ, a number of rows that is not a multiple of `images`, and a map of `target` that is
/// zero everywhere.
pub fn relative_errors(
    compute: Compute,
    x: &Tensor,
    target: &Tensor,
    images: usize,
    factor: f64,
) -> Result<(Vec<f64>, Tensor)> {
    if x.dims() != target.dims() || images == 0 || !x.dim(0)?.is_multiple_of(images) {
        bail!("maps of {images} images of the shapes {:?} and {:?}", x.dims(), target.dims());
    }
    match compute {
        Compute::Host(_) => on_host(x, target, images, factor),
        _ => in_operations(x, target, images, factor),
    }
}

fn check(signals: &[f64]) -> Result<()> {
    match signals.iter().position(|&signal| signal == 0.0) {
        Some(image) => bail!("the teacher's map of image {image} of the batch is zero everywhere"),
        None => Ok(()),
    }
}

fn on_host(x: &Tensor, target: &Tensor, images: usize, factor: f64) -> Result<(Vec<f64>, Tensor)> {
    let of_image = x.elem_count() / images;
    let (x, target) = (x.contiguous()?, target.contiguous()?);
    let (errors, gradient) = slices(&[&x, &target], |values| {
        let energy = |part: &[f32]| -> f64 { part.iter().map(|&v| f64::from(v).powi(2)).sum() };
        let parts = |values: &[f32]| -> Vec<f64> { map_each(values.chunks(GRAIN), energy) };
        let (mut errors, mut signals) = (Vec::new(), Vec::new());
        let mut gradient = vec![0.0f32; values[0].len()];
        let of_images = values[0].chunks(of_image).zip(values[1].chunks(of_image));
        for ((x, target), gradient) in of_images.zip(gradient.chunks_mut(of_image)) {
            map_each(
                gradient.chunks_mut(GRAIN).zip(x.chunks(GRAIN).zip(target.chunks(GRAIN))),
                |(to, (x, t))| {
                    to.iter_mut().zip(x.iter().zip(t)).for_each(|(to, (x, t))| *to = x - t);
                },
            );
            let (noise, signal) = (parts(gradient).iter().sum::<f64>(), parts(target).iter().sum::<f64>());
            let slope = (2.0 * factor / signal) as f32;
            map_each(gradient.chunks_mut(GRAIN), |part| part.iter_mut().for_each(|value| *value *= slope));
            errors.push(noise / signal);
            signals.push(signal);
        }
        check(&signals).map(|()| (errors, gradient))
    })??;
    Ok((errors, Tensor::from_vec(gradient, x.shape(), x.device())?))
}

fn in_operations(x: &Tensor, target: &Tensor, images: usize, factor: f64) -> Result<(Vec<f64>, Tensor)> {
    let rows = (images, x.elem_count() / images);
    let difference = (x - target)?.reshape(rows)?;
    let sums = |x: &Tensor| x.sqr()?.sum_keepdim(1);
    let (noise, signal) = (sums(&difference)?, sums(&target.reshape(rows)?)?);
    let on_host = |x: &Tensor| x.flatten_all()?.to_vec1::<f32>();
    let signals: Vec<f64> = on_host(&signal)?.into_iter().map(f64::from).collect();
    check(&signals)?;
    let errors = on_host(&noise)?.into_iter().zip(&signals).map(|(noise, signal)| f64::from(noise) / signal);
    let slope = (signal.recip()? * (2.0 * factor))?;
    Ok((errors.collect(), difference.broadcast_mul(&slope)?.reshape(x.shape())?))
}
