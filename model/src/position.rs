//! The parameters of attention besides its linear layers: the factors of `QK^T`, and the relative position
//! bias.
//!
//! A Swin V1 has one factor for all heads of a stage, and a learned table of biases. A Swin V2 has a learned
//! factor for each head, and an MLP that gives the bias for a relative position (Liu et al., "Swin
//! Transformer V2", 2022, section 3.3). [`AttentionParameters`] gives the factors and the table of both, so
//! that nothing behind it knows the MLP.

use std::borrow::Cow;

use crate::arch::{Stage, SwinConfig, SwinVersion};
use crate::site::BlockId;

/// Hidden width of the MLP of Swin V2 that gives the relative position bias.
pub const HIDDEN: usize = 512;

/// The largest learned factor of `QK^T` in Swin V2.
pub const LARGEST_SCALE: f64 = 100.0;

/// The largest relative position bias of Swin V2.
pub const LARGEST_BIAS: f64 = 16.0;

/// The least factor of `QK^T` with which the queries and keys of a Swin V2's head have hi and lo codes for
/// each value.
///
/// Their components are at most 1 and have steps of 1/127, so that a logit has an error with a standard
/// deviation of about `0.0032 factor` (two operands of length 1, each with errors of `1 / (127 sqrt(12))`):
/// 0.05 at this factor, and 0.3 at the largest factor, 100. With hi and lo codes it is less than a hundredth
/// of that.
pub const TWO_CODES_FROM: f32 = 16.0;

/// The factors of `QK^T` and the relative position bias of one block.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionParameters<'a> {
    /// Factor of `QK^T` for each head, `[heads]`. In Swin V2 it is the factor of the product of normalised
    /// queries and keys, `exp(min(logit_scale, ln 100))`: at most 100.
    pub scales: Vec<f32>,
    /// Relative position bias, `[bias_rows, heads]`; [`Stage::relative_position_index`] gives the row for
    /// each query and key. In Swin V2 it is between 0 and 16.
    pub table: Cow<'a, [f32]>,
}

/// Whether a head with this factor of `QK^T` in a Swin of this version has hi and lo codes for each query and
/// key, where both sites are on.
pub fn hi_lo(version: SwinVersion, scale: f32) -> bool {
    version == SwinVersion::V2 && scale >= TWO_CODES_FROM
}

impl<'a> AttentionParameters<'a> {
    /// The values of block `id` of `stage`, which is a stage of `config`; `parameter` gives the values of the
    /// parameter of a name. The result has the same bits on every machine.
    ///
    /// For Swin V2 the whole computation is in f64 and is rounded to f32 at its end:
    ///
    /// ```text
    /// scales[h]   = exp(min(logit_scale[h], ln 100))
    /// table[r][h] = 16 / (1 + exp(-sum_j(max(w0[j][0] y + w0[j][1] x + b0[j], 0) w2[h][j])))     j ascending
    /// ```
    /// with `y` and `x` of row `r` from [`relative_coordinates`].
    pub fn of(
        config: &SwinConfig,
        stage: &Stage,
        id: BlockId,
        parameter: impl Fn(&str) -> &'a [f32],
    ) -> AttentionParameters<'a> {
        let parameter = |name: &str| parameter(&format!("{id}.attn.{name}"));
        if config.version == SwinVersion::V1 {
            return AttentionParameters {
                scales: vec![config.attention_scale(stage); stage.heads],
                table: Cow::Borrowed(parameter("relative_position_bias_table")),
            };
        }
        let scale = |&s: &f32| libm::exp(f64::from(s).min(libm::log(LARGEST_SCALE))) as f32;
        let mlp = ["cpb_mlp.0.weight", "cpb_mlp.0.bias", "cpb_mlp.2.weight"].map(parameter);
        AttentionParameters {
            scales: parameter("logit_scale").iter().map(scale).collect(),
            table: Cow::Owned(bias_table(&relative_coordinates(config, stage), mlp)),
        }
    }
}

/// The inputs of the MLP of Swin V2: for each row of the table the relative row `y` and the relative column
/// `x` of the query, seen from the key, each on a logarithmic scale:
///
/// ```text
/// t = 8 c / (w - 1)        c in -(side - 1)..=side - 1        w: the pretrained window if there is one, else the side
/// y, x = sign(t) log2(|t| + 1) / 3
/// ```
/// In a window of one token `c` and the result are 0.
pub fn relative_coordinates(config: &SwinConfig, stage: &Stage) -> Vec<[f64; 2]> {
    let scaled = |side: usize| -> Vec<f64> {
        let window = config.pretrained_window(stage.index).unwrap_or(side);
        let reach = side as i64 - 1;
        (-reach..=reach).map(|distance| scaled_distance(distance, window)).collect()
    };
    let (rows, columns) = (scaled(stage.window.height), scaled(stage.window.width));
    rows.iter().flat_map(|&y| columns.iter().map(move |&x| [y, x])).collect()
}

/// The distance `c` of [`relative_coordinates`] on the logarithmic scale of the window `w`.
pub(crate) fn scaled_distance(c: i64, w: usize) -> f64 {
    let t = 8.0 * c as f64 / (w - 1).max(1) as f64;
    libm::copysign(libm::log2(t.abs() + 1.0) / 3.0, t)
}

/// The table of biases, `[coordinates, heads]`, of the MLP with these weights and biases.
fn bias_table(coordinates: &[[f64; 2]], [w0, b0, w2]: [&[f32]; 3]) -> Vec<f32> {
    let heads = w2.len() / HIDDEN;
    // By hidden unit, so that the sums of all heads proceed together.
    let mut by_unit = vec![0.0; w2.len()];
    for (h, row) in w2.chunks_exact(HIDDEN).enumerate() {
        row.iter().enumerate().for_each(|(j, &w)| by_unit[j * heads + h] = f64::from(w));
    }
    let mut table = Vec::with_capacity(coordinates.len() * heads);
    let mut sums = vec![0.0; heads];
    for [y, x] in coordinates {
        sums.fill(0.0);
        let units = w0.chunks_exact(2).zip(b0).zip(by_unit.chunks_exact(heads));
        for ((w, &b), weights) in units {
            let unit = f64::from(w[0]) * y + f64::from(w[1]) * x + f64::from(b);
            let unit = if unit > 0.0 { unit } else { 0.0 };
            sums.iter_mut().zip(weights).for_each(|(sum, w)| *sum += unit * w);
        }
        table.extend(sums.iter().map(|sum| (LARGEST_BIAS / (1.0 + libm::exp(-sum))) as f32));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use swinq_numerics::Size;

    fn config(window: usize, pretrained: Vec<usize>) -> SwinConfig {
        let mut config = SwinConfig::official("swinv2_tiny_patch4_window8_256").unwrap();
        (config.window_size, config.pretrained_window_sizes) = (Size::square(window).into(), pretrained);
        config
    }

    #[test]
    fn coordinates_are_logarithmic_and_odd() {
        let config = config(8, Vec::new());
        let stage = &config.stages()[0];
        let all = relative_coordinates(&config, stage);
        assert_eq!(all.len(), 15 * 15);
        assert_eq!((all[0], all[112], all[224]), ([-all[224][0]; 2], [0.0; 2], all[224]));
        // log2(8 + 1) / 3 at the edge, log2(8 / 7 + 1) / 3 next to the centre.
        assert!((all[224][0] - 9f64.log2() / 3.0).abs() < 1e-15);
        assert_eq!((all[113][0], all[127][1]), (0.0, 0.0));
        assert!((all[113][1] - (15f64 / 7.0).log2() / 3.0).abs() < 1e-15 && all[127][0] == all[113][1]);
        // The last stage of 256 pixels has a window of 8; the table of a window agrees with its index.
        let index = stage.relative_position_index();
        assert_eq!(all[index[9 * 64 + 2]], [all[127][0], -all[113][1]], "query (1, 1) and key (0, 2)");
    }

    #[test]
    fn a_pretrained_window_widens_the_coordinates() {
        let plain = relative_coordinates(&config(16, Vec::new()), &config(16, Vec::new()).stages()[0]);
        let wide = config(16, vec![12, 12, 12, 6]);
        let wide = relative_coordinates(&wide, &wide.stages()[0]);
        assert!((wide[0][0] + (8f64 * 15.0 / 11.0 + 1.0).log2() / 3.0).abs() < 1e-15);
        assert!(wide[0][0] < plain[0][0]);
    }

    #[test]
    fn the_table_is_the_mlp_of_the_coordinates() {
        // Unit 0 is max(y, 0), unit 1 is max(-x, 0) + 1; heads are the first, the second, and their
        // difference.
        let (mut w0, mut b0, mut w2) = (vec![0.0; 2 * HIDDEN], vec![0.0; HIDDEN], vec![0.0; 3 * HIDDEN]);
        (w0[0], w0[3], b0[1]) = (1.0, -1.0, 1.0);
        (w2[0], w2[HIDDEN + 1], w2[2 * HIDDEN], w2[2 * HIDDEN + 1]) = (1.0, 1.0, 1.0, -1.0);
        let table = bias_table(&[[0.5, 0.25], [-0.5, -0.75]], [&w0, &b0, &w2]);
        let sigmoid = |x: f64| (16.0 / (1.0 + (-x).exp())) as f32;
        let wanted = [0.5, 0.75, -0.25, 0.0, 1.75, -1.75].map(sigmoid);
        assert!(
            table.iter().zip(wanted).all(|(got, want)| (got - want).abs() < 1e-6),
            "{table:?} {wanted:?}"
        );
    }

    #[test]
    fn factors_are_clamped() {
        let config = config(8, Vec::new());
        let (zeros, logits) = (vec![0.0; 3 * HIDDEN], [0.0f32, 4.0, 7.0]);
        let parameter = |name: &str| match name.rsplit('.').next().unwrap() {
            "logit_scale" => &logits[..],
            "bias" => &zeros[..HIDDEN],
            _ if name.contains("cpb_mlp.0") => &zeros[..2 * HIDDEN],
            _ => &zeros[..],
        };
        let id = BlockId { stage: 0, block: 0 };
        let found = AttentionParameters::of(&config, &config.stages()[0], id, parameter);
        assert_eq!(found.scales, [1.0, 4f64.exp() as f32, 100.0]);
        assert!(found.table.iter().all(|&bias| bias == 8.0) && found.table.len() == 225 * 3);
    }
}
