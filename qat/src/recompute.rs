//! Activation checkpointing (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016): the forward
//! pass keeps the input of every segment of the network only. The backward pass runs each segment again
//! before it differentiates it. Every operation has the same bits when it runs again, so losses and gradients
//! are those of a training that keeps everything.

use candle_core::{Tensor, TensorId};
use swinq_float::tape::{Gradients, Tape};
use swinq_float::{FloatError, Segment, Swin};
use swinq_model::Size;

use crate::error::QatError;
use crate::sites::TrainSites;

/// A network whose segments are differentiated one at a time.
pub(crate) struct Segments<'a> {
    pub swin: &'a Swin,
    pub tape: &'a Tape,
    pub sites: &'a mut TrainSites,
}

/// The activations of a forward pass: the input of every segment, and the result of the last one.
pub(crate) struct Activations {
    /// Height and width of the images.
    image: Size,
    tensors: Vec<Tensor>,
}

/// The outputs of the network for `images` of `image` pixels, or for their patches, and the activations.
/// Nothing is recorded.
pub(crate) fn forward(
    on: &mut Segments<'_>,
    image: Size,
    images: Tensor,
) -> Result<(Vec<Tensor>, Activations), QatError> {
    on.tape.set_recording(false);
    let result = forward_unrecorded(on, image, images);
    on.tape.set_recording(true);
    Ok(result?)
}

fn forward_unrecorded(
    on: &mut Segments<'_>,
    image: Size,
    images: Tensor,
) -> Result<(Vec<Tensor>, Activations), FloatError> {
    let config = on.swin.config();
    let (mut outputs, mut activations) = (Vec::new(), vec![images]);
    for segment in Segment::all(config) {
        let input = activations[activations.len() - 1].clone();
        let x = on.swin.run(segment, image, input, on.sites)?;
        if let Some(index) = segment.output(config) {
            outputs.push(on.swin.output(index, &x)?);
        }
        activations.push(x);
    }
    if !config.is_backbone() {
        outputs.extend(activations.last().cloned());
    }
    Ok((outputs, Activations { image, tensors: activations }))
}

/// Gradients of results of the forward pass, which a segment's backward pass takes.
struct Seeds(Vec<(TensorId, Tensor)>);

impl Seeds {
    /// The gradients of `tensor`, in order.
    fn take(&mut self, tensor: &Tensor) -> Vec<Tensor> {
        self.0.extract_if(.., |(id, _)| *id == tensor.id()).map(|(_, gradient)| gradient).collect()
    }
}

/// The gradients of the parameters, from the gradients `seeds` of some outputs and activations. `complete`
/// receives each gradient of a parameter as soon as it is complete.
///
/// # Errors
/// Errors of the passes and of `complete`.
pub(crate) fn backward(
    on: &mut Segments<'_>,
    activations: &Activations,
    outputs: &[Tensor],
    seeds: Vec<(TensorId, Tensor)>,
    complete: &mut dyn FnMut(TensorId, &Tensor) -> candle_core::Result<()>,
) -> Result<Gradients, QatError> {
    let (mut all, mut seeds) = (Gradients::default(), Seeds(seeds));
    let Activations { image, tensors: activations } = activations;
    let mut gradients = seeds.take(&activations[activations.len() - 1]);
    for (index, segment) in Segment::all(on.swin.config()).into_iter().enumerate().rev() {
        let input = &activations[index];
        // An output without a norm is the activation itself, whose gradients are taken already.
        let of_output = segment.output(on.swin.config());
        let of_output = of_output.map(|output| (output, seeds.take(&outputs[output])));
        let of_output = of_output.filter(|(_, seeds)| !seeds.is_empty());
        let of_input = seeds.take(input);
        if gradients.is_empty() && of_output.is_none() {
            gradients = of_input;
            continue; // No later output depends on this segment.
        }
        on.tape.watch(input);
        let given = Given { of_input, of_result: gradients, of_output };
        let passes = differentiate(on, (segment, *image), input, given, complete);
        on.tape.unwatch(input);
        let mut found = passes?;
        gradients = found.take(input).into_iter().collect();
        all.merge(found)?;
    }
    Ok(all)
}

/// The gradients of a segment's results.
struct Given {
    /// Added to the gradient of its input.
    of_input: Vec<Tensor>,
    of_result: Vec<Tensor>,
    /// The index of the output that is the norm of its result, and the gradients of that.
    of_output: Option<(usize, Vec<Tensor>)>,
}

/// Runs `segment` for images of `size` on `input` again and differentiates it: the gradients of its
/// parameters and of `input`.
fn differentiate(
    on: &mut Segments<'_>,
    (segment, size): (Segment, Size),
    input: &Tensor,
    given: Given,
    complete: &mut dyn FnMut(TensorId, &Tensor) -> candle_core::Result<()>,
) -> Result<Gradients, QatError> {
    let result = on.swin.run(segment, size, input.clone(), on.sites)?;
    let with =
        |id: TensorId, gradients: Vec<Tensor>| gradients.into_iter().map(move |gradient| (id, gradient));
    let mut seeds: Vec<(TensorId, Tensor)> = with(input.id(), given.of_input).collect();
    seeds.extend(with(result.id(), given.of_result));
    if let Some((output, gradients)) = given.of_output {
        seeds.extend(with(on.swin.output(output, &result)?.id(), gradients));
    }
    let of_parameters =
        |id, gradient: &Tensor| if id == input.id() { Ok(()) } else { complete(id, gradient) };
    Ok(on.tape.backward_with(seeds, of_parameters)?)
}
