//! The commands that lead from the float checkpoint to the report.

use swinq_model::Recipe;
use swinq_model::recipe::file_stem;

use crate::results::{ModelResult, Results};

/// One step.
pub struct Step {
    pub text: String,
    pub command: String,
}

/// The steps in order: calibration of each quantized model, training, and the measurement.
pub fn steps(results: &Results, names: &[String]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let cfg = results.commands.iter().find_map(|command| cfg_of(command));
    for (model, name) in results.models.iter().zip(names) {
        let Some(step) = calibration(model, name, cfg) else { continue };
        if steps.iter().all(|known| known.command != step.command) {
            steps.push(step);
        }
    }
    if let Some(training) = &results.training {
        steps.push(Step {
            text: "Train".to_owned(),
            command: format!("swinq qat {}/job.yaml", training.folder.trim_end_matches('/')),
        });
    }
    let measure = |command: &String| Step { text: "Measure".to_owned(), command: command.clone() };
    steps.extend(results.commands.iter().map(measure));
    steps
}

/// The value of `--cfg` in a command line, as it is quoted there.
fn cfg_of(command: &str) -> Option<&str> {
    let (_, value) = command.split_once(" --cfg ")?;
    let end = match value.strip_prefix('\'') {
        Some(quoted) => quoted.find('\'').map(|end| end + 2),
        None => value.find(' '),
    };
    Some(&value[..end.unwrap_or(value.len())])
}

/// The command that calibrated `model`: as recorded beside the checkpoint, or rebuilt from its provenance and
/// from `cfg`, the value of `--cfg` in the commands that measured it.
fn calibration(model: &ModelResult, name: &str, cfg: Option<&str>) -> Option<Step> {
    let origin = model.origin.as_ref()?;
    if let Some(command) = &origin.command {
        return Some(Step { text: format!("Calibrate {name}"), command: command.clone() });
    }
    let set = origin.calibration.as_ref()?;
    let recipe = model.recipe.as_deref().unwrap_or("default");
    let shipped = Recipe::shipped(recipe).is_some_and(|shipped| shipped.rules == origin.rules);
    let recipe = if shipped { recipe.to_owned() } else { format!("{}.yaml", file_stem(recipe)) };
    // A training started from a calibrated checkpoint, which is then what calibration wrote.
    let start = origin.training.as_ref().and_then(|training| training.start.as_ref());
    let path = start.map(|start| start.file.as_str()).or(model.path.as_deref()).unwrap_or(&model.name);
    let text = match shipped {
        true => {
            format!("Calibrate {name} (rebuilt from the checkpoint; the path of the images is not recorded)")
        }
        false => format!(
            "Calibrate {name} (rebuilt from the checkpoint; save its recipe, printed above, as {recipe}; the path of \
             the images is not recorded)"
        ),
    };
    let cfg = cfg.map_or(String::new(), |cfg| format!(" --cfg {cfg}"));
    let outputs: Vec<&str> = model.outputs.iter().map(|output| output.name.as_str()).collect();
    let task = set.sizing.as_deref().map_or(String::new(), |sizing| of_a_backbone(&outputs, sizing));
    let command = format!(
        "swinq calibrate {}{cfg}{task} --data-path IMAGES --recipe {recipe} --batches {} --batch-size {} --seed {} -o {path}",
        origin.source,
        set.images.div_ceil(set.batch_size.max(1)),
        set.batch_size,
        set.seed
    );
    Some(Step { text, command })
}

/// The options of `calibrate` for a backbone with these `outputs`, whose images had this `sizing`.
fn of_a_backbone(outputs: &[&str], sizing: &str) -> String {
    let mut parts = sizing.split(", padded ");
    let size = parts.next().unwrap_or_default();
    let mut options = format!(" --task features --size {size}");
    if !outputs.is_empty() {
        options += &format!(" --outputs {}", outputs.join(","));
    }
    for padding in parts {
        match padding.strip_prefix("to multiples of ") {
            Some(multiple) => options += &format!(" --pad-to {multiple}"),
            None => options += " --pad-batch",
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backbone_is_calibrated_with_its_sizes_and_padding() {
        for (sizing, options) in [
            ("keep", "--size keep --outputs stage2,stage3"),
            ("short:800,long:1333", "--size short:800,long:1333 --outputs stage2,stage3"),
            ("64x96, padded to multiples of 32", "--size 64x96 --outputs stage2,stage3 --pad-to 32"),
            ("keep, padded to the size of the batch", "--size keep --outputs stage2,stage3 --pad-batch"),
            (
                "keep, padded to multiples of 32, padded to the size of the batch",
                "--size keep --outputs stage2,stage3 --pad-to 32 --pad-batch",
            ),
        ] {
            assert_eq!(of_a_backbone(&["stage2", "stage3"], sizing), format!(" --task features {options}"));
        }
    }
}
