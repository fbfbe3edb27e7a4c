//! The task and the outputs that a document states. This version runs classifiers; the document of any other network is
//! refused by the name of what it needs (`docs/quantized-checkpoint.md`, "Task and outputs").

use serde_json::{Value, json};

use crate::printable::printable_name;

/// The only task that this version runs.
const TASK: &str = "classification";
/// The task of backbones, which the format defines.
const NEXT_TASK: &str = "features";
/// The kind of a classifier's output, and its name.
const LOGITS: &str = "logits";

/// Takes `task` and `outputs` out of the `architecture` of a document of version 3, after checking that they are those of a
/// classifier.
///
/// # Errors
/// The problem and the remedy: another task, another kind of output, or outputs that are not those of a classifier.
pub(super) fn take(architecture: &mut Value) -> Result<(), String> {
    let Some(keys) = architecture.as_object_mut() else { return Ok(()) };
    match keys.remove("task") {
        None => {}
        Some(task) if task == TASK => {}
        Some(task) => {
            let what = if task == NEXT_TASK { ", a backbone whose outputs are feature maps" } else { "" };
            return Err(format!(
                "has the task {}{what}, which needs a newer swinq; this one runs networks of the task \"{TASK}\"",
                shown(&task)
            ));
        }
    }
    let Some(outputs) = keys.remove("outputs") else { return Ok(()) };
    let listed = outputs.as_array().map_or(&[][..], Vec::as_slice);
    let unknown = listed.iter().filter_map(|output| output.get("kind")).find(|kind| **kind != LOGITS);
    if let Some(kind) = unknown {
        return Err(format!(
            "has an output of the kind {}, which needs a newer swinq; this one computes \"{LOGITS}\"",
            shown(kind)
        ));
    }
    let expected = json!([{"name": LOGITS, "kind": LOGITS}]);
    if outputs == expected {
        return Ok(());
    }
    Err(format!("has outputs that are not {expected}, those of a classifier; calibrate again"))
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
