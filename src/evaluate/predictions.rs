//! The class that each model predicts for each image, as CSV.

use std::path::Path;

use swinq_eval::Collected;
use swinq_eval::accuracy::argmax;
use swinq_model::atomic::write_atomic;

use super::Candidate;
use crate::{Error, Images};

/// The predicted classes of the images of an evaluation, in the order of evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Predicted {
    /// Position of each image in the data set's list.
    pub ids: Vec<usize>,
    /// Class of each image.
    pub labels: Vec<u32>,
    /// Class with the highest score; of equal scores, the lowest class.
    pub classes: Vec<u32>,
}

impl Predicted {
    pub(crate) fn of(collected: &Collected) -> Predicted {
        let classes = collected.logits.rows().map(|row| argmax(row) as u32).collect();
        Predicted { ids: collected.ids.clone(), labels: collected.labels.clone(), classes }
    }
}

/// Writes a CSV file (RFC 4180) with a row for each image: its file, its class, and the class that each of
/// the evaluated `candidates` predicts, under the candidate's label. Candidates that have not run on the same
/// images as the first are refused.
///
/// # Errors
/// [`Error::Argument`] for candidates that were not evaluated on the same images; an error if `path` cannot
/// be written.
pub fn write_predictions(path: &Path, candidates: &[Candidate], images: &Images) -> Result<(), Error> {
    let predicted: Vec<&Predicted> = candidates.iter().filter_map(Candidate::predicted).collect();
    let same = |other: &&Predicted| (&other.ids, &other.labels) == (&predicted[0].ids, &predicted[0].labels);
    if predicted.len() != candidates.len() || predicted.is_empty() || !predicted.iter().all(same) {
        let problem = "the models were not evaluated on the same images";
        return Err(Error::argument("candidates", problem));
    }
    let labels: Vec<String> = candidates.iter().map(|candidate| candidate.result.label()).collect();
    write_csv(path, &labels, &predicted, &|id| images.name_of(id))
}

/// Writes the CSV file of models with these labels, of which there is at least one, and which have run on the
/// same images.
pub(crate) fn write_csv(
    path: &Path,
    labels: &[String],
    predicted: &[&Predicted],
    name_of: &dyn Fn(usize) -> String,
) -> Result<(), Error> {
    let labels = labels.iter().map(|label| field(label));
    let header: Vec<String> = ["file".to_owned(), "label".to_owned()].into_iter().chain(labels).collect();
    write_atomic(path, |out| {
        write!(out, "{}\r\n", header.join(","))?;
        for (i, &id) in predicted[0].ids.iter().enumerate() {
            write!(out, "{},", field(&name_of(id)))?;
            predicted[0].labels.get(i).map_or(Ok(()), |label| write!(out, "{label}"))?;
            predicted.iter().try_for_each(|p| write!(out, ",{}", p.classes[i]))?;
            out.write_all(b"\r\n")?;
        }
        Ok(())
    })?;
    Ok(())
}

/// `text` as a field: in quotes if it has a comma, a quote or a line break, or spaces at an end.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) || text.trim() != text {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn fields_are_quoted_where_needed() {
        assert_eq!(field("a b.jpg"), "a b.jpg");
        assert_eq!(field("a,b"), "\"a,b\"");
        assert_eq!(field("a\"b\n"), "\"a\"\"b\n\"");
        assert_eq!(field(" a"), "\" a\"");
    }
}
