//! The figures of a model that follow from its logits.

use crate::accuracy::{Accuracy, accuracy};
use crate::collected::Collected;
use crate::disagreement;
use crate::error::EvalError;
use crate::fidelity::fidelity;
use crate::interval::top1_difference;
use crate::results::ModelResult;

/// Number of images that are listed with the predictions of both models.
const LISTED: usize = 12;

impl ModelResult {
    /// Stores the number of images and, if they have labels, the accuracy, which is returned.
    ///
    /// # Errors
    /// The errors of [`Collected::check`].
    pub fn set_own_figures(&mut self, own: &Collected) -> Result<Option<Accuracy>, EvalError> {
        let accuracy = (!own.labels.is_empty()).then(|| accuracy(own)).transpose()?;
        self.classes = disagreement::classes(own, None)?;
        self.images = Some(own.images());
        match &accuracy {
            Some(accuracy) => self.set_accuracy(accuracy),
            // An earlier evaluation may have had labels.
            None => (self.top1_correct, self.top5_correct) = (None, None),
        }
        Ok(accuracy)
    }

    /// Stores the agreement of the model with `baseline`. `name_of` names an image by its position in the
    /// data set.
    ///
    /// # Errors
    /// [`EvalError::Mismatch`] if the two have different images; the errors of [`Collected::check`].
    pub fn set_figures_against(
        &mut self,
        baseline: &Collected,
        own: &Collected,
        name_of: &dyn Fn(usize) -> String,
    ) -> Result<(), EvalError> {
        self.set_fidelity(&fidelity(baseline, own)?);
        let labelled = !own.labels.is_empty();
        self.top1_difference = labelled.then(|| top1_difference(baseline, own)).transpose()?;
        self.flips = Some(disagreement::flips(baseline, own)?);
        self.classes = disagreement::classes(own, Some(baseline))?;
        self.disagreements = disagreement::worst(baseline, own, LISTED)?;
        for image in &mut self.disagreements {
            image.image = Some(name_of(image.id));
        }
        Ok(())
    }
}
