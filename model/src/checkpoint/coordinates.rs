//! The facts in the buffers `relative_coords_table` of a Swin V2: its windows, and the windows by which
//! relative positions are divided.

use swinq_numerics::Size;

use super::network::Network;
use super::raw::RawTensor;
use crate::arch::{MAX_WINDOW, StageOutput, SwinConfig};
use crate::config::without_zeros;
use crate::error::ModelError;
use crate::params::MAX_STAGES;
use crate::position::scaled_distance;

/// The most that a stored value may differ from the formula's, as a part of it: the rounding of bfloat16.
const TOLERANCE: f64 = 1.0 / 256.0;

/// A buffer `relative_coords_table`, `[1, 2 height - 1, 2 width - 1, 2]`: the values of
/// [`relative_coordinates`](crate::position::relative_coordinates).
pub(super) struct Coordinates {
    /// The name of the buffer in the file, without the root.
    name: String,
    stage: usize,
    /// The window in which the network was trained last.
    window: Size,
    /// The window that divides relative rows, and the one that divides relative columns; `None` for a side of
    /// one token, whose only value is 0.
    divisors: [Option<usize>; 2],
}

/// The buffers in `network`.
///
/// # Errors
/// [`ModelError::Tensor`] for values that are not those of a Swin V2.
pub(super) fn read(network: &Network<'_>) -> Result<Vec<Coordinates>, ModelError> {
    let tables = network.tensors.iter().filter(|(name, _)| name.ends_with(".relative_coords_table"));
    let mut found = Vec::new();
    for (name, tensor) in tables {
        let (ours, _) = network.naming.renamed(name);
        let stage = ours.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
        let stage = stage.filter(|&stage| stage < MAX_STAGES);
        if let (Some(stage), &[1, rows, columns, 2]) = (stage, tensor.shape()) {
            let window = Size::new(rows, columns).map(|side| side.div_ceil(2));
            let divisors = divisors(tensor, [rows, columns], window)
                .map_err(|problem| ModelError::tensor(name.clone(), problem))?;
            found.push(Coordinates { name: name.clone(), stage, window, divisors });
        }
    }
    Ok(found)
}

/// The divisors of a table with so many rows and columns, of windows of `window` tokens.
fn divisors(
    table: &RawTensor<'_>,
    [rows, columns]: [usize; 2],
    window: Size,
) -> Result<[Option<usize>; 2], String> {
    let values = table.to_f32()?.data;
    let axis = |axis: usize, side: usize, place: &dyn Fn(usize) -> usize| {
        let reach = side as i64 - 1;
        let Some(largest) = values.last_chunk::<2>().filter(|_| reach > 0) else { return Ok(None) };
        let distance = |&window: &usize| (scaled_distance(reach, window) - f64::from(largest[axis])).abs();
        let nearest = (2..=MAX_WINDOW).min_by(|a, b| distance(a).total_cmp(&distance(b)));
        let window = nearest.expect("there are windows");
        let follows = |(index, &value): (usize, &f32)| {
            let wanted = scaled_distance(place(index / 2) as i64 - reach, window);
            (f64::from(value) - wanted).abs() <= TOLERANCE * wanted.abs().max(1.0)
        };
        let mut own = values.iter().enumerate().skip(axis).step_by(2);
        own.all(follows).then_some(Some(window)).ok_or_else(|| {
            format!(
                "its values are not the relative positions of a Swin V2 for a pretrained window of 2..={MAX_WINDOW}; the \
                 file is damaged, or of another network"
            )
        })
    };
    debug_assert_eq!(values.len(), 2 * rows * columns);
    Ok([axis(0, window.height, &|place| place / columns)?, axis(1, window.width, &|place| place % columns)?])
}

/// The window of each stage, where a buffer tells it.
pub(super) fn windows(tables: &[Coordinates]) -> Vec<Option<Size>> {
    let stages = tables.iter().map(|table| table.stage + 1).max().unwrap_or(0);
    let of_stage = |stage| tables.iter().find(|table| table.stage == stage).map(|table| table.window);
    (0..stages).map(of_stage).collect()
}

/// `config` with the pretrained windows that the buffers state, in stages for which it names none.
pub(super) fn decided(mut config: SwinConfig, tables: &[Coordinates]) -> SwinConfig {
    let stages = config.stages();
    let mut pretrained = config.pretrained_window_sizes.clone();
    pretrained.resize(stages.len(), 0);
    for (stage, pretrained) in stages.iter().zip(&mut pretrained) {
        let own = |table: &&Coordinates| table.stage == stage.index && table.window == stage.window;
        let stated = tables.iter().find(own).and_then(Coordinates::other_window);
        *pretrained = stated.filter(|_| *pretrained == 0).unwrap_or(*pretrained);
    }
    config.pretrained_window_sizes = without_zeros(pretrained);
    config
}

/// A sentence on the pretrained windows of `config`, if `silent`, the configuration that was given, does not
/// name them.
pub(super) fn remark(silent: &SwinConfig, config: &SwinConfig) -> Option<String> {
    (silent.pretrained_window_sizes != config.pretrained_window_sizes).then(|| {
        format!(
            "the values of its buffers `relative_coords_table` give {} {:?}, which are used",
            config.key("PRETRAINED_WINDOW_SIZES"),
            config.pretrained_window_sizes
        )
    })
}

/// Refuses `config` if a buffer says that the network was trained with other windows, or with positions that
/// were divided by other windows: it would run, but give other results than it was trained for. Windows of an
/// earlier training may differ, if the configuration names them.
pub(super) fn check(config: &SwinConfig, tables: &[Coordinates]) -> Result<(), ModelError> {
    let stages = config.stages();
    for table in tables {
        let Some(stage) = stages.get(table.stage) else { continue };
        let pretrained = config.pretrained_window(stage.index);
        if table.window != stage.window && pretrained.map(Size::square) != Some(table.window) {
            let problem = format!(
                "the checkpoint has windows of {} in {}, but {} at input size {} uses {} there; use the WINDOW_SIZE \
                 and IMG_SIZE that the checkpoint was trained with, or name its windows in PRETRAINED_WINDOW_SIZES",
                table.window.short(),
                StageOutput::usual_name(stage.index),
                config.name,
                config.image_size.short(),
                stage.window.short()
            );
            return Err(ModelError::config(config.key("WINDOW_SIZE"), problem));
        }
        let sides = [stage.window.height, stage.window.width].map(|side| pretrained.unwrap_or(side));
        let differ = |(&stated, side): (&Option<usize>, usize)| stated.filter(|&stated| stated != side);
        if let Some(stated) = table.divisors.iter().zip(sides).find_map(differ) {
            return Err(table.contradiction(config, stated, sides));
        }
    }
    Ok(())
}

/// Whether `config` has the windows and the pretrained windows that the buffers state.
pub(super) fn fit(config: &SwinConfig, tables: &[Coordinates]) -> bool {
    let stages = config.stages();
    let of = |table: &Coordinates| stages.get(table.stage).is_none_or(|stage| stage.window == table.window);
    tables.iter().all(of) && check(config, tables).is_ok()
}

impl Coordinates {
    /// The window that divides all positions, if it is not the window itself.
    fn other_window(&self) -> Option<usize> {
        let [rows, columns] = self.divisors;
        let window = rows.or(columns)?;
        let same = columns.is_none_or(|columns| columns == window);
        (same && Size::square(window) != self.window).then_some(window)
    }

    fn contradiction(&self, config: &SwinConfig, stated: usize, sides: [usize; 2]) -> ModelError {
        let problem = format!(
            "the values of `{}` in the checkpoint are positions divided for a pretrained window of {stated} in {}, but {} \
             has {} there; give its configuration, or state {} {}, so that the checkpoint decides",
            self.name,
            StageOutput::usual_name(self.stage),
            config.name,
            if sides[0] == sides[1] { sides[0].to_string() } else { format!("{sides:?}") },
            config.key("PRETRAINED_WINDOW_SIZES"),
            format!("{:?}", vec![0; config.depths.len()]).replace(' ', ""),
        );
        ModelError::config(config.key("PRETRAINED_WINDOW_SIZES"), problem)
    }
}
