//! The task and the outputs that a document states (`docs/quantized-checkpoint.md`, "Task and outputs").
//! Those that this version does not know are refused by name.

use serde_json::{Value, json};

use crate::printable::printable_name;

/// The task of classifiers, and the kind and name of their only output. A document may leave both out.
const CLASSIFICATION: &str = "classification";
const LOGITS: &str = "logits";
/// The task of backbones, and the kind of their outputs.
const FEATURES: &str = "features";
const STAGE: &str = "stage";

/// Checks `task` and `outputs` of the `architecture` of a document of version 3. Those of a classifier are
/// taken out, because [`SwinConfig`](crate::SwinConfig) does not state them.
///
/// # Errors
/// The problem and the remedy: an unknown task, an unknown kind of output, or outputs of another task.
pub(super) fn take(architecture: &mut Value) -> Result<(), String> {
    let Some(keys) = architecture.as_object_mut() else { return Ok(()) };
    let task = keys.get("task").cloned().unwrap_or(json!(CLASSIFICATION));
    let kind = match task.as_str() {
        Some(CLASSIFICATION) => LOGITS,
        Some(FEATURES) => STAGE,
        _ => {
            return Err(format!(
                "has the task {}, which needs a newer swinq; this one runs networks of the tasks \"{CLASSIFICATION}\" and \
                 \"{FEATURES}\"",
                shown(&task)
            ));
        }
    };
    let outputs = keys.get("outputs");
    let listed = outputs.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let unknown = |kind: &&Value| **kind != LOGITS && **kind != STAGE;
    if let Some(kind) = listed.iter().filter_map(|output| output.get("kind")).find(unknown) {
        return Err(format!(
            "has an output of the kind {}, which needs a newer swinq; this one computes \"{LOGITS}\" and \"{STAGE}\"",
            shown(kind)
        ));
    }
    if let Some(other) = listed.iter().find(|output| output.get("kind").is_none_or(|found| found != kind)) {
        return Err(format!("has the output {}, but its task is {task}; calibrate again", shown(other)));
    }
    if kind == STAGE {
        return Ok(());
    }
    let expected = json!([{"name": LOGITS, "kind": LOGITS}]);
    if outputs.is_some_and(|outputs| *outputs != expected) {
        return Err(format!("has outputs that are not {expected}, those of a classifier; calibrate again"));
    }
    keys.remove("task");
    keys.remove("outputs");
    Ok(())
}

/// The beginning of a value, for messages.
fn shown(value: &Value) -> String {
    const MOST: usize = 40;
    let text = value.to_string();
    let text = printable_name(&text);
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into_owned(),
    }
}
