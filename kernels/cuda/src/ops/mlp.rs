//! The MLP branch of a block in one launch, for INT8 on GPUs with `wgmma`: the residual plus
//! fc2(GELU(fc1(LayerNorm(residual)))), or for Swin V2 plus LayerNorm(fc2(GELU(fc1(residual)))).

use swinq_numerics::reference::correction_i8;
use swinq_numerics::{ColumnQuantizers, Gelu, Quantizer};

use super::half_gelu::{self, half_codes};
use super::linear::gelu_define;
use super::{Call, Int8Linear, ResidualCodes, ResidualType, int};
use crate::params::mlp_sm90::Params;
use crate::{CudaError, Device, DeviceBuf, DeviceSlice, Kernel, LaunchConfig, Program, Stream, launch};

/// Hidden columns of a chunk.
const CHUNK: usize = 64;
/// Rows that a warpgroup computes at a time.
const ROWS: usize = 64;
/// Number of slots of the ring, if weights pass through one.
const STAGES: usize = 4;
/// Number of floats of the table of GELU (`TAIL_FLOATS` of the kernels), for an f32 residual.
const TAIL_FLOATS: usize = 96;

/// The input of LayerNorm, and the codes that the launch can store besides the residual.
#[derive(Clone, Copy, Debug)]
pub enum MlpNorm {
    /// LayerNorm of the residual.
    Residual,
    /// LayerNorm of the results of fc2 (Swin V2).
    Branch {
        /// The quantizer of the codes of the new residual, if the launch can store them.
        codes: Option<Quantizer>,
    },
}

impl MlpNorm {
    /// The constants for which the kernel is compiled.
    pub fn form(self) -> MlpForm {
        match self {
            MlpNorm::Residual => MlpForm::PreNorm,
            MlpNorm::Branch { codes: None } => MlpForm::PostNorm,
            MlpNorm::Branch { codes: Some(_) } => MlpForm::PostNormCodes,
        }
    }
}

/// Where LayerNorm is, and whether codes can be stored ([`MlpNorm`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpForm {
    /// LayerNorm of the residual.
    PreNorm,
    /// LayerNorm of the results of fc2.
    PostNorm,
    /// As [`MlpForm::PostNorm`]; a launch can also store the codes of the new residual.
    PostNormCodes,
}

/// Description of the MLP branch of a block.
pub struct MlpSpec<'a> {
    /// Scale and offset of LayerNorm, one per channel.
    pub norm: (&'a [f32], &'a [f32]),
    /// Its input.
    pub of: MlpNorm,
    /// Added to the variance.
    pub epsilon: f32,
    /// From the channels to the hidden columns.
    pub fc1: Int8Linear<'a>,
    /// The GELU that follows `fc1`. With an f16 residual both forms are the same approximation.
    pub gelu: Gelu,
    /// From the hidden columns to the channels.
    pub fc2: Int8Linear<'a>,
    /// The quantizers of the hidden columns, if each has its own; without them all have `fc2.input`.
    pub channels: Option<&'a ColumnQuantizers>,
    /// Element type of the residual stream.
    pub residual: ResidualType,
}

/// The computation of the kernel, without the sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlpKind {
    /// Where LayerNorm is.
    pub form: MlpForm,
    /// The GELU that follows fc1. With an f16 residual all forms are the same approximation.
    pub gelu: Gelu,
    /// Element type of the residual stream.
    pub residual: ResidualType,
    /// Whether hidden columns have quantizers of their own.
    pub channels: bool,
    /// Whether GELU and its codes are computed in packed halves; only with an f16 residual.
    pub half_gelu: bool,
}

/// Constants for which the kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlpConfig {
    columns: usize,
    hidden: usize,
    kind: MlpKind,
    /// Chunks of weights that stay in shared memory; if they are not all, the others pass through a ring.
    stay: usize,
}

impl MlpConfig {
    /// The configuration for `columns` channels and `hidden` hidden columns on a GPU whose blocks have
    /// `shared` bytes of shared memory; `None` if the kernel does not support these sizes.
    ///
    /// # Panics
    /// If GELU is in halves with an f32 residual.
    pub fn new((columns, hidden): (usize, usize), kind: MlpKind, shared: u32) -> Option<MlpConfig> {
        assert!(
            !kind.half_gelu || kind.residual == ResidualType::F16,
            "MLP: GELU in halves with an f32 residual"
        );
        let known = matches!(columns, 64 | 96 | 128 | 192) && hidden > 0 && hidden.is_multiple_of(CHUNK);
        let gelu = if kind.residual == ResidualType::F32 { kind.gelu } else { Gelu::Erf };
        let mut config = MlpConfig { columns, hidden, kind: MlpKind { gelu, ..kind }, stay: 0 };
        let slots = (shared as usize).checked_sub(config.other_bytes())? / config.chunk_bytes();
        config.stay = if slots >= config.chunks() { config.chunks() } else { slots.checked_sub(STAGES)? };
        known.then_some(config)
    }

    /// The computation of the kernel.
    pub fn kind(&self) -> MlpKind {
        self.kind
    }

    fn chunks(&self) -> usize {
        self.hidden / CHUNK
    }

    fn chunk_bytes(&self) -> usize {
        2 * CHUNK * self.columns
    }

    fn stages(&self) -> usize {
        if self.stay == self.chunks() { 0 } else { STAGES }
    }

    /// Bytes of the per-column constants.
    fn constant_bytes(&self) -> usize {
        let of_channels = match (self.kind.channels, self.kind.half_gelu, self.kind.residual) {
            (false, ..) => 0,
            (true, true, _) => self.hidden,
            (true, false, ResidualType::F16) => 2 * self.hidden,
            (true, false, ResidualType::F32) => 2 * self.hidden + self.columns,
        };
        4 * (4 * self.columns + 2 * self.hidden + of_channels)
    }

    /// Bytes of shared memory without the weights: constants, the table of GELU, and barriers.
    fn other_bytes(&self) -> usize {
        let tail = if self.kind.residual == ResidualType::F32 { 4 * TAIL_FLOATS } else { 0 };
        self.constant_bytes() + tail + 8 * (1 + 2 * STAGES)
    }

    /// Number of warpgroups, as many as there are registers for.
    fn groups(&self) -> usize {
        if self.columns <= 96 { 3 } else { 2 }
    }

    /// The program.
    pub fn program(&self) -> Program {
        Program::new("mlp_sm90.cu", "mlp_sm90")
            .define("FORM", self.kind.form as i64)
            .define("GELU", gelu_define(Some(self.kind.gelu)))
            .define("COLUMNS", self.columns as i64)
            .define("HIDDEN", self.hidden as i64)
            .define("STAY", self.stay as i64)
            .define("STAGES", self.stages() as i64)
            .define("GROUPS", self.groups() as i64)
            .define("RESIDUAL_F32", self.kind.residual.define())
            .define("CHANNELS", self.kind.channels.into())
            .define("HALVES", self.kind.half_gelu.into())
            .define("THREADS", 128 * self.groups() as i64)
    }

    /// Launch configuration for `m` rows on a GPU with `multiprocessors`, each of which runs one block.
    /// Blocks get rows in turn, so that few rows are spread over many blocks.
    pub fn launch(&self, m: usize, multiprocessors: u32) -> LaunchConfig {
        let blocks = m.div_ceil(ROWS).min(multiprocessors as usize);
        let slots = self.stay + self.stages();
        LaunchConfig {
            shared: (slots * self.chunk_bytes() + self.other_bytes()) as u32,
            pdl: true,
            ..LaunchConfig::linear(blocks as u32, 128 * self.groups() as u32)
        }
    }

    /// The weights of both layers (`[hidden, columns]` and `[columns, hidden]`), chunk by chunk, in the order
    /// in which the kernel reads them.
    pub fn pack_weights(&self, fc1: &[i8], fc2: &[i8]) -> Vec<i8> {
        let (columns, hidden) = (self.columns, self.hidden);
        assert!(fc1.len() == hidden * columns && fc2.len() == hidden * columns, "MLP: weights");
        let mut packed = Vec::with_capacity(2 * hidden * columns);
        for chunk in (0..hidden).step_by(CHUNK) {
            push_pieces(&mut packed, CHUNK, columns, |row| &fc1[(chunk + row) * columns..]);
            push_pieces(&mut packed, columns, CHUNK, |row| &fc2[row * hidden + chunk..]);
        }
        packed
    }

    /// Per-column constants in the order of `Constants` of the kernel.
    pub fn constants(&self, spec: &MlpSpec<'_>) -> Vec<f32> {
        let (columns, hidden) = (self.columns, self.hidden);
        let (gamma, beta) = spec.norm;
        assert!(gamma.len() == columns && beta.len() == columns, "MLP: LayerNorm");
        let exact = self.kind.residual == ResidualType::F32;
        // The kernel for an f16 residual needs fewer operations.
        let norm_factor =
            if exact || self.kind.form != MlpForm::PreNorm { 1.0 } else { spec.fc1.input.recip() };
        let mut all: Vec<f32> = gamma.iter().chain(beta).map(|x| x * norm_factor).collect();
        let (mut factors, mut bias) = column_constants(&spec.fc1, hidden);
        // The code of a NaN is 0.
        let numbers: Vec<bool> = factors.iter().zip(&bias).map(|(f, b)| !f.is_nan() && !b.is_nan()).collect();
        for ((factor, bias), number) in factors.iter_mut().zip(&mut bias).zip(&numbers) {
            match (self.kind.half_gelu, number) {
                (true, _) => half_gelu::argument(factor, bias),
                (false, true) => {}
                (false, false) => (*factor, *bias) = (0.0, 0.0),
            }
        }
        all.extend(factors.into_iter().chain(bias));
        let (factors, mut bias) = column_constants(&spec.fc2, columns);
        let channels =
            spec.channels.map(|quantizers| self.channel_constants(quantizers, &numbers, spec.fc2.codes));
        let (channels, corrections) = channels.unwrap_or_default();
        match exact {
            true => all.extend(
                factors.into_iter().chain(bias).chain(channels).chain(corrections.into_iter().map(as_f32)),
            ),
            false => {
                let sums = factors.iter().zip(corrections);
                bias.iter_mut().zip(sums).for_each(|(bias, (factor, sum))| *bias -= factor * sum as f32);
                all.extend(factors.into_iter().chain(bias).chain(channels));
            }
        }
        assert_eq!(4 * all.len(), self.constant_bytes());
        all
    }

    /// The least number of rows for which the launch is faster than LayerNorm and two linear layers on a
    /// device with `multiprocessors`, by measurement: where weights pass through a ring, blocks with few rows
    /// mostly wait for them.
    pub fn least_rows(&self, multiprocessors: u32) -> usize {
        if self.stages() == 0 { 1 } else { ROWS * multiprocessors as usize / 4 }
    }

    /// The constants of the codes of hidden columns in the order of `Constants` of the kernel, and what the
    /// zero points add to each sum of fc2, whose weight is `codes`. A column that is not among the `numbers`
    /// has code 0.
    fn channel_constants(
        &self,
        quantizers: &ColumnQuantizers,
        numbers: &[bool],
        codes: &[i8],
    ) -> (Vec<f32>, Vec<i32>) {
        assert_eq!(quantizers.len(), self.hidden, "MLP: quantizers of the hidden columns");
        let zero_points: Vec<i8> = quantizers.zero_points().iter().map(|z| *z as i8).collect();
        let corrections =
            codes.chunks_exact(self.hidden).map(|row| correction_i8(&zero_points, row)).collect();
        let known = quantizers.zero_points().iter().zip(numbers);
        let zeros: Vec<f32> = known.map(|(z, number)| if *number { *z } else { 0.0 }).collect();
        let constants = match self.kind.half_gelu {
            true => half_codes(quantizers.recips(), &zeros),
            false => [quantizers.recips(), &zeros].concat(),
        };
        (constants, corrections)
    }
}

/// A whole number among the floats of `Constants`.
fn as_f32(number: i32) -> f32 {
    f32::from_bits(number.cast_unsigned())
}

/// The column that row `row` of a group of 16 holds. A lane of the tensor cores' result has columns 2 q and
/// 2 q + 1 of every block of eight. In this order they are columns 4 q to 4 q + 3 of the group, as a lane has
/// four bytes of an operand.
pub fn operand_column(row: usize) -> usize {
    let (block, column) = (row / 8, row % 8);
    4 * (column / 2) + 2 * block + column % 2
}

/// Appends `rows` rows of `k` codes, where `column(c)` begins with the codes of column c: 16 codes of every
/// row, then the next 16. Rows are in the order of [`operand_column`].
fn push_pieces<'a>(to: &mut Vec<i8>, rows: usize, k: usize, column: impl Fn(usize) -> &'a [i8]) {
    for at in (0..k).step_by(16) {
        for row in 0..rows {
            to.extend(&column(row / 16 * 16 + operand_column(row % 16))[at..at + 16]);
        }
    }
}

/// The factor and the bias of each column.
fn column_constants(linear: &Int8Linear<'_>, n: usize) -> (Vec<f32>, Vec<f32>) {
    let bias = linear.bias.map_or_else(|| vec![0.0; n], <[f32]>::to_vec);
    assert!(linear.multiplier.len() == n && bias.len() == n, "MLP: constants of {n} columns");
    (linear.multiplier.to_vec(), bias)
}

/// The MLP branch of a block, prepared for a device.
pub struct DeviceMlp {
    kernel: Kernel,
    config: MlpConfig,
    multiprocessors: u32,
    weights: DeviceSlice,
    constants: DeviceSlice,
    epsilon: f32,
    /// Of the inputs of fc1 and fc2, and of the codes of the new residual.
    recips: [f32; 3],
}

impl DeviceMlp {
    /// The configuration for `spec` on `device`. `None` if the GPU has no `wgmma`, or the kernel does not
    /// support the sizes.
    pub fn config(device: &Device, spec: &MlpSpec<'_>) -> Option<MlpConfig> {
        let (columns, hidden) = (spec.norm.0.len(), spec.fc1.multiplier.len());
        let suits = match spec.channels {
            None => half_gelu::suits(&[spec.fc2.input.recip()]),
            Some(quantizers) => half_gelu::suits_channels(quantizers.recips()),
        };
        let kind = MlpKind {
            form: spec.of.form(),
            gelu: spec.gelu,
            residual: spec.residual,
            channels: spec.channels.is_some(),
            half_gelu: spec.residual == ResidualType::F16 && suits,
        };
        let config = MlpConfig::new((columns, hidden), kind, device.shared_per_block());
        config.filter(|_| device.arch().major == 9)
    }

    /// Copies weights and constants to the device.
    ///
    /// # Errors
    /// The kernel does not compile, or the device has too little memory.
    ///
    /// # Panics
    /// If `config` is not the one of `spec`.
    pub fn new(device: &Device, config: MlpConfig, spec: &MlpSpec<'_>) -> Result<DeviceMlp, CudaError> {
        let weights = config.pack_weights(spec.fc1.codes, spec.fc2.codes);
        let code_recip = match spec.of {
            MlpNorm::Branch { codes: Some(quantizer) } => quantizer.recip(),
            _ => 1.0,
        };
        Ok(DeviceMlp {
            kernel: device.kernel(&config.program())?,
            config,
            multiprocessors: device.multiprocessors(),
            weights: DeviceBuf::from_slice(device, &weights)?.all(),
            constants: DeviceBuf::from_slice(device, &config.constants(spec))?.all(),
            epsilon: spec.epsilon,
            recips: [spec.fc1.input.recip(), spec.fc2.input.recip(), code_recip],
        })
    }

    /// Whether the op can store the codes of the new residual.
    pub fn stores_codes(&self) -> bool {
        self.config.kind.form == MlpForm::PostNormCodes
    }

    /// Adds the MLP to the `m` rows of `residual`, and writes their `codes`, if they are given. Sets the u32
    /// at `overflow` to 1 if an f16 residual holds a value that is not finite; nothing resets it.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short, codes are given although the op does not store any, or the codes have the
    /// rows of tokens and the `m` rows are not those of whole images.
    pub fn run(
        &self,
        stream: &Stream,
        m: usize,
        residual: &DeviceSlice,
        codes: Option<ResidualCodes<'_>>,
        overflow: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let MlpConfig { columns, kind, .. } = self.config;
        let code_rows = codes.and_then(|codes| codes.rows);
        let tokens = code_rows.map_or(1, |rows| rows.tokens);
        assert!(m.is_multiple_of(tokens), "MLP: {m} rows are not whole images of {tokens} tokens");
        assert!(codes.is_none() || self.stores_codes(), "the MLP stores no codes");
        let call = Call(stream);
        let params = Params {
            residual: call.array("MLP: the residual", residual, &[m, columns, kind.residual.bytes()]),
            weights: call.own(&self.weights),
            constants: call.own(&self.constants),
            overflow: call.word("MLP: the overflow flag", overflow),
            codes: codes.map_or(0, |codes| call.array("MLP: the codes", codes.slice, &[m, columns])),
            code_rows: call.own(code_rows.map(|rows| &rows.slice)),
            m: int(m),
            tokens: int(tokens),
            epsilon: self.epsilon,
            norm_recip: self.recips[0],
            hidden_recip: self.recips[1],
            code_recip: self.recips[2],
        };
        // SAFETY: `Params` is the kernel's parameter. The lengths of the residual and of the codes were
        // checked above, `code_rows` has a row below `tokens` for each token of an image, and weights and
        // constants were laid out by the configuration for which the kernel was compiled; the slices are
        // held.
        unsafe { launch(&self.kernel, self.config.launch(m, self.multiprocessors), stream, &params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: MlpKind = MlpKind {
        form: MlpForm::PreNorm,
        gelu: Gelu::Quadratic,
        residual: ResidualType::F16,
        channels: false,
        half_gelu: true,
    };

    #[test]
    fn a_lane_has_four_consecutive_columns_of_each_group() {
        for q in 0..4 {
            let rows = [2 * q, 2 * q + 1, 8 + 2 * q, 8 + 2 * q + 1];
            assert_eq!(rows.map(operand_column), [4 * q, 4 * q + 1, 4 * q + 2, 4 * q + 3]);
        }
    }

    #[test]
    fn chunks_hold_every_weight_once_at_the_place_where_the_kernel_reads_it() {
        let config = MlpConfig::new((64, 128), KIND, 227 << 10).unwrap();
        let (columns, hidden) = (64, 128);
        let code = |i: usize, j: usize| (i * 31 + j * 7) as i8;
        let fc1: Vec<i8> = (0..hidden * columns).map(|i| code(i / columns, i % columns)).collect();
        let fc2: Vec<i8> = (0..hidden * columns).map(|i| code(i / hidden + 500, i % hidden)).collect();
        let packed = config.pack_weights(&fc1, &fc2);
        assert_eq!(packed.len(), 2 * hidden * columns);
        // Byte k of operand row r among n rows.
        let at = |n: usize, row: usize, k: usize| (k / 16 * n + row) * 16 + k % 16;
        for (chunk, both) in packed.chunks(config.chunk_bytes()).enumerate() {
            let (first, second) = both.split_at(both.len() / 2);
            for row in 0..CHUNK {
                let column = CHUNK * chunk + row / 16 * 16 + operand_column(row % 16);
                assert!((0..columns).all(|k| first[at(CHUNK, row, k)] == code(column, k)), "fc1, row {row}");
            }
            for row in 0..columns {
                let column = row / 16 * 16 + operand_column(row % 16);
                let same = |k| second[at(columns, row, k)] == code(column + 500, CHUNK * chunk + k);
                assert!((0..CHUNK).all(same), "fc2, row {row}");
            }
        }
    }

    #[test]
    fn weights_stay_if_they_fit_and_pass_through_a_ring_if_not() {
        let stay = |columns, residual| {
            let kind = MlpKind { residual, half_gelu: false, form: MlpForm::PostNorm, ..KIND };
            let config = MlpConfig::new((columns, 4 * columns), kind, 227 << 10).unwrap();
            assert!(config.launch(401_408, 132).shared <= 227 << 10, "{config:?}");
            (config.stay, config.stages())
        };
        for residual in [ResidualType::F16, ResidualType::F32] {
            assert_eq!(stay(64, residual), (4, 0));
            assert_eq!(stay(96, residual), (6, 0));
            assert_eq!(stay(128, residual), (8, 0));
            assert_eq!(stay(192, residual), (5, 4));
        }
        for (columns, hidden, shared) in [(384, 1536, 227 << 10), (96, 100, 227 << 10), (192, 768, 99 << 10)]
        {
            assert_eq!(MlpConfig::new((columns, hidden), KIND, shared), None, "{columns} x {hidden}");
        }
    }

    #[test]
    fn few_rows_are_spread_over_blocks() {
        let config = MlpConfig::new((96, 384), KIND, 227 << 10).unwrap();
        for (m, blocks) in [(1, 1), (64, 1), (65, 2), (3136, 49), (401_408, 132)] {
            assert_eq!(config.launch(m, 132).grid, [blocks, 1, 1], "{m} rows");
        }
    }
}
