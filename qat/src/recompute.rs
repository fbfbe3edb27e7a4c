//! Activation checkpointing (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016): the forward pass keeps the
//! input of every segment of the network only. The backward pass runs each segment again before it differentiates it. Every
//! operation has the same bits when it runs again, so losses and gradients are those of a training that keeps everything.

use std::collections::HashMap;

use candle_core::{Tensor, TensorId};
use swinq_float::tape::{Gradients, Tape};
use swinq_float::{FloatError, Segment, Swin};

use crate::error::QatError;
use crate::sites::TrainSites;

/// A network whose segments are differentiated one at a time.
pub(crate) struct Segments<'a> {
    pub swin: &'a Swin,
    pub tape: &'a Tape,
    pub sites: &'a mut TrainSites,
}

/// The logits of `images`, and the input of every segment. Nothing is recorded.
pub(crate) fn forward(on: &mut Segments<'_>, images: Tensor) -> Result<(Tensor, Vec<Tensor>), QatError> {
    on.tape.set_recording(false);
    let result = forward_unrecorded(on, images);
    on.tape.set_recording(true);
    Ok(result?)
}

fn forward_unrecorded(on: &mut Segments<'_>, images: Tensor) -> Result<(Tensor, Vec<Tensor>), FloatError> {
    let (mut x, mut inputs) = (images, Vec::new());
    for segment in Segment::all(on.swin.config()) {
        inputs.push(x.clone());
        x = on.swin.run(segment, on.swin.config().image_size, x, on.sites)?;
    }
    Ok((x, inputs))
}

/// The gradients of the parameters, from the gradient `dlogits` of the logits and those of some segments' inputs, `seeds`.
/// `complete` receives each gradient of a parameter as soon as it is complete.
///
/// # Errors
/// Errors of the passes and of `complete`.
pub(crate) fn backward(
    on: &mut Segments<'_>,
    inputs: Vec<Tensor>,
    dlogits: Tensor,
    mut seeds: HashMap<TensorId, Tensor>,
    complete: &mut dyn FnMut(TensorId, &Tensor) -> candle_core::Result<()>,
) -> Result<Gradients, QatError> {
    let (mut all, mut gradient) = (Gradients::default(), dlogits);
    let segments = Segment::all(on.swin.config());
    for (segment, input) in segments.into_iter().zip(inputs).rev() {
        let seed = seeds.remove(&input.id());
        on.tape.watch(&input);
        let passes = differentiate(on, segment, &input, (gradient, seed), complete);
        on.tape.unwatch(&input);
        let mut gradients = passes?;
        let dx = gradients.take(&input);
        all.merge(gradients)?;
        let Some(dx) = dx else { break }; // No parameter is before this segment.
        gradient = dx;
    }
    Ok(all)
}

/// Runs `segment` on `input` again and differentiates it: the gradients of its parameters and of `input`, from the gradient of
/// its output and from `seed`, to which the gradient of `input` is added.
fn differentiate(
    on: &mut Segments<'_>,
    segment: Segment,
    input: &Tensor,
    (gradient, seed): (Tensor, Option<Tensor>),
    complete: &mut dyn FnMut(TensorId, &Tensor) -> candle_core::Result<()>,
) -> Result<Gradients, QatError> {
    let output = on.swin.run(segment, on.swin.config().image_size, input.clone(), on.sites)?;
    let seeds = seed.map(|seed| (input.id(), seed)).into_iter().chain([(output.id(), gradient)]);
    let of_parameters =
        |id, gradient: &Tensor| if id == input.id() { Ok(()) } else { complete(id, gradient) };
    Ok(on.tape.backward_with(seeds, of_parameters)?)
}
