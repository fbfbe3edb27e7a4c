//! Tables of tiles for linear layers, measured once per GPU model and embedded in the program (`tiles.json`).
//! `cargo run --release -p swinq-int8-runtime --example measure_tiles` adds the tables of the GPU at hand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use swinq_cuda::ops::linear::{
    DeviceLinear, DeviceLinearSpec, DeviceWeight, LinearKind, LinearStore, Target, Tile,
};
use swinq_cuda::ops::{DeviceStore, ResidualType, row_stride};
use swinq_cuda::{Device, DeviceBuf, Program, Stream};
use swinq_numerics::Gelu;

use super::options::{Autotune, Gemm};
use super::tune::{Trial, Tuner};
use crate::error::RuntimeError;

/// The tables of all GPUs, by the GPU's name.
type Tables = BTreeMap<String, GpuTable>;
/// The tiles measured on one GPU, by [`layer_key`].
type GpuTable = BTreeMap<String, LayerTiles>;
/// The tile of one layer ([`Tile::numbers`]), by the number of rows.
type LayerTiles = BTreeMap<usize, (usize, [u16; 7])>;

/// The embedded tables.
fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| {
        serde_json::from_str(include_str!("tiles.json")).expect("tiles.json is tables of tiles")
    })
}

/// The name of a layer in the tables. It does not include the type of the residual stream, which does not
/// affect the choice of the tile.
fn layer_key(n: usize, k: usize, kind: LinearKind) -> String {
    format!("{n} x {k} {}", kind.with_residual(ResidualType::F16))
}

/// Whether there is a table for the GPU called `name`.
pub(crate) fn knows(name: &str) -> bool {
    tables().contains_key(name)
}

/// The tiles measured for layers of `n` x `k` and `kind` on the GPU called `name`, sorted by the distance of
/// their number of rows from `m`.
pub(crate) fn tiles(name: &str, m: usize, (n, k): (usize, usize), kind: LinearKind) -> Vec<Tile> {
    let Some(rows) = tables().get(name).and_then(|table| table.get(&layer_key(n, k, kind))) else {
        return Vec::new();
    };
    let distance = |rows: usize| (rows as f64 / m as f64).ln().abs();
    let mut known: Vec<_> = rows.iter().collect();
    known.sort_by(|a, b| distance(*a.0).total_cmp(&distance(*b.0)));
    known.into_iter().filter_map(|(_, &numbers)| Tile::from_numbers(numbers)).collect()
}

/// Channels of the first stage of the official models.
const WIDTHS: [usize; 3] = [96, 128, 192];
/// Batch sizes to measure.
const BATCHES: [usize; 4] = [1, 8, 32, 128];

/// A layer to measure.
#[derive(Clone, Copy)]
struct Layer {
    /// Number of rows per image.
    rows: usize,
    n: usize,
    k: usize,
    gelu: Option<Gelu>,
    store: Role,
}

/// How a layer stores its results.
#[derive(Clone, Copy)]
enum Role {
    /// As the operand of the next op: codes or f16.
    Operand,
    Residual,
    /// As the residual of the next stage.
    NextResidual,
}

/// The layers of an official model of `width` channels, for images of 224 pixels.
fn layers(width: usize) -> Vec<Layer> {
    let mut layers = Vec::new();
    for stage in 0..4 {
        let (c, rows) = (width << stage, (56_usize >> stage).pow(2));
        let layer = |n, k, gelu, store| Layer { rows, n, k, gelu, store };
        layers.extend([
            layer(3 * c, c, None, Role::Operand),
            layer(c, c, None, Role::Residual),
            layer(4 * c, c, Some(Gelu::Erf), Role::Operand),
            layer(c, 4 * c, None, Role::Residual),
        ]);
        if stage < 3 {
            layers.push(Layer { rows: rows / 4, ..layer(2 * c, 4 * c, None, Role::NextResidual) });
        }
    }
    layers
}

impl Layer {
    fn on(&self, device: &Device, integer: bool) -> Result<DeviceLinear, RuntimeError> {
        let Layer { n, k, gelu, .. } = *self;
        // Any values that differ from each other: the time does not depend on them.
        let codes: Vec<i8> = (0..n * k).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as i8).collect();
        let floats: Vec<f32> =
            if integer { Vec::new() } else { codes.iter().map(|&c| f32::from(c) / 128.0).collect() };
        let multiplier = vec![1e-4; n];
        let weight = match integer {
            true => DeviceWeight::Codes { codes: &codes, multiplier: &multiplier, zero_points: &[] },
            false => DeviceWeight::Half(&floats),
        };
        let store = match self.store {
            Role::Operand if integer => LinearStore::Codes(vec![10.0; n]),
            Role::Operand | Role::NextResidual => LinearStore::Plain(DeviceStore::Half),
            Role::Residual => LinearStore::Residual,
        };
        let residual = ResidualType::F16;
        let spec = DeviceLinearSpec { n, k, weight, bias: None, output: None, gelu, store, residual };
        Ok(DeviceLinear::new(device, &spec)?)
    }
}

/// Compiles share `share.0` of `share.1` of the kernels that [`measure_tiles`] needs, into the cache of
/// kernels. NVRTC compiles one program at a time in a process, so the work is divided between several
/// processes.
///
/// # Errors
/// There is no such GPU, or a CUDA call fails.
pub fn compile_tiles(ordinal: usize, autotune: Autotune, share: (usize, usize)) -> Result<(), RuntimeError> {
    let device = Device::open(ordinal)?;
    let tuner = Tuner::new(&device, Gemm::Own, autotune)?;
    let mut programs = BTreeSet::new();
    for (width, integer) in WIDTHS.into_iter().flat_map(|width| [(width, true), (width, false)]) {
        for layer in layers(width) {
            let linear = layer.on(&device, integer)?;
            programs.extend(
                BATCHES.into_iter().flat_map(|batch| tuner.candidate_programs(&linear, batch * layer.rows)),
            );
        }
    }
    let share: Vec<Program> = programs.into_iter().skip(share.0).step_by(share.1).collect();
    device.prefetch(&share);
    Ok(())
}

/// Measures the layers of the official models for the usual batch sizes on GPU `ordinal`. Returns the
/// program's tables, with those of this GPU added, as JSON. `progress` receives the number of measured layers
/// and the total.
///
/// # Errors
/// There is no such GPU, or a CUDA call fails.
pub fn measure_tiles(
    ordinal: usize,
    autotune: Autotune,
    mut progress: impl FnMut(usize, usize),
) -> Result<String, RuntimeError> {
    let device = Device::open(ordinal)?;
    let stream = Stream::new(&device)?;
    let mut tuner = Tuner::new(&device, Gemm::Own, autotune)?;
    let layers: Vec<Layer> = WIDTHS.into_iter().flat_map(layers).collect();
    let mut table = GpuTable::new();
    let total = layers.len() * 2;
    for (done, (layer, integer)) in
        layers.iter().flat_map(|layer| [(layer, true), (layer, false)]).enumerate()
    {
        let linear = layer.on(&device, integer)?;
        let (n, k) = linear.shape();
        let known = table.entry(layer_key(n, k, linear.kind())).or_default();
        for m in BATCHES.map(|batch| batch * layer.rows) {
            let element = if integer { 1 } else { 2 };
            let input = DeviceBuf::zeroed(&device, m * row_stride(k, element) * element)?.all();
            let output = DeviceBuf::zeroed(&device, m * n * 4)?.all();
            let target = Target { slice: &output, map: None };
            let trial = Trial { name: "measured", linear: &linear, m, input: &input, target };
            known.insert(m, tuner.fastest_tile(&trial, &stream)?.numbers());
        }
        progress(done + 1, total);
    }
    let mut all = tables().clone();
    all.insert(device.name().to_owned(), table);
    Ok(to_json(&all))
}

/// The tables as JSON, one line per layer.
fn to_json(tables: &Tables) -> String {
    let layer = |(key, rows): (&String, &LayerTiles)| {
        format!("    {key:?}: {}", serde_json::to_string(rows).expect("numbers become JSON"))
    };
    let gpu = |(name, table): (&String, &GpuTable)| {
        format!("  {name:?}: {{\n{}\n  }}", table.iter().map(layer).collect::<Vec<_>>().join(",\n"))
    };
    format!("{{\n{}\n}}\n", tables.iter().map(gpu).collect::<Vec<_>>().join(",\n"))
}

#[cfg(test)]
mod tests {
    use swinq_cuda::ops::linear::Gpu;

    use super::*;

    #[test]
    fn every_entry_is_a_tile_that_exists() {
        let gpu = Gpu { shared: 227 << 10, multiprocessors: 132, wgmma: true };
        for (name, table) in tables() {
            for (key, rows) in table {
                let mut words = key.split(' ');
                let mut size =
                    || words.find_map(|word| word.parse::<usize>().ok()).expect("a size in the key");
                let (n, k) = (size(), size());
                let k_bytes = if key.contains(" int8") { k } else { 2 * k };
                for (&m, &numbers) in rows {
                    let tile = Tile::from_numbers(numbers).expect("an instruction that exists");
                    let exists = Tile::candidates(m, n, k_bytes, gpu).contains(&tile);
                    assert!(exists, "{name}: {key}, {m} rows: {tile} is no tile; measure the table again");
                }
            }
        }
    }

    #[test]
    fn every_layer_of_the_official_models_is_in_every_table() {
        for (name, table) in tables() {
            for layer in WIDTHS.into_iter().flat_map(layers) {
                let found =
                    table.iter().filter(|(key, _)| key.starts_with(&format!("{} x {} ", layer.n, layer.k)));
                let rows: Vec<_> = found.map(|(_, rows)| rows).collect();
                assert!(rows.len() >= 2, "{name}: INT8 and f16 of {} x {}", layer.n, layer.k);
                for batch in BATCHES {
                    let all = rows.iter().any(|rows| rows.contains_key(&(batch * layer.rows)));
                    assert!(all, "{name}: {} x {} at batch {batch}", layer.n, layer.k);
                }
            }
        }
    }

    #[test]
    fn tables_are_written_as_they_are_read() {
        let read: Tables = serde_json::from_str(&to_json(tables())).unwrap();
        assert_eq!(&read, tables());
    }
}
