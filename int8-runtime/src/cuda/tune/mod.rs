//! Chooses the kernel of each linear layer: from a table of measured tiles, by a cost model of the GPU, or by
//! a measurement whose result is kept on disk.

mod timing;

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use swinq_cuda::ops::linear::{DeviceLinear, LibraryLinear, LinearKind, OwnLinear, Target, Tile};
use swinq_cuda::{CudaError, Device, DeviceBuf, DeviceSlice, Lt, Program, Stream, cache, library, sources};

pub(crate) use timing::time_together;
use timing::{fastest, random_codes};

use super::options::{Autotune, Gemm};
use super::step::Choice;
use super::table;

/// Number of our tiles that a quick search measures.
const QUICK_TILES: usize = 32;
/// Number of cuBLASLt's algorithms that a quick search measures, for each result type.
const QUICK_ALGORITHMS: usize = 3;
/// Number of kernels to try, if none is measured, before the first error is reported.
const TRIES: usize = 3;
/// Size of the buffer of random codes in bytes.
const NOISE: usize = 1 << 20;
/// Duration of the work before the first measurement, during which the GPU's clock rises.
const WARM_UP: Duration = Duration::from_millis(100);

/// A choice as stored on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Remembered {
    /// [`Tile::numbers`].
    Own(usize, [u16; 7]),
    /// Index in cuBLASLt's list of algorithms.
    Library(usize),
}

/// A layer with its number of rows, for which a kernel is to be chosen.
pub(crate) struct Trial<'a> {
    /// Name of the launch, for messages.
    pub(crate) name: &'a str,
    pub(crate) linear: &'a DeviceLinear,
    pub(crate) m: usize,
    pub(crate) input: &'a DeviceSlice,
    pub(crate) target: Target<'a>,
}

/// The effort that the choice of a kernel may take, if none is stored on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Candidates are measured, if the options say so.
    Measure,
    /// Nothing is measured.
    Compile,
    /// Nothing is measured, and kernels that an earlier choice has compiled come first.
    Reuse,
}

/// The kernels chosen so far, for one GPU.
pub(crate) struct Tuner {
    device: Device,
    gemm: Gemm,
    effort: Autotune,
    lt: Option<Arc<Lt>>,
    file: Option<PathBuf>,
    known: BTreeMap<String, Remembered>,
    changed: bool,
    /// Our kernels that were chosen, which stay loaded.
    loaded: HashMap<(LinearKind, Tile), Arc<OwnLinear>>,
    /// Random codes; allocated by the first measurement.
    noise: Option<DeviceSlice>,
    /// Memory for cuBLASLt's results between two launches.
    scratch: Option<DeviceSlice>,
    notes: Vec<String>,
}

impl Tuner {
    /// Creates a tuner with the choices stored on disk.
    pub(crate) fn new(device: &Device, gemm: Gemm, effort: Autotune) -> Result<Tuner, CudaError> {
        let mut notes = Vec::new();
        let lt = match gemm {
            Gemm::Own => None,
            Gemm::CublasLt => Some(Arc::new(verified(device)?)),
            // Without measurements, `auto` never chooses cuBLASLt.
            Gemm::Auto if !effort.measures() => None,
            Gemm::Auto => {
                let note = |error| notes.push(format!("cuBLASLt is not used: {error}"));
                verified(device).map(Arc::new).map_err(note).ok()
            }
        };
        if effort == Autotune::Table && gemm != Gemm::CublasLt && !table::knows(device.name()) {
            notes.push(format!(
                "there is no table of measured tiles for {}: a model of the GPU chooses; --autotune quick measures",
                device.name()
            ));
        }
        let file = cache::cache_dir().map(|dir| dir.join(format!("tune-{}.json", fingerprint(device))));
        let known = file.as_deref().and_then(cache::read);
        let known = known.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Ok(Tuner {
            device: device.clone(),
            gemm,
            effort,
            lt,
            file,
            known,
            changed: false,
            loaded: HashMap::new(),
            noise: None,
            scratch: None,
            notes,
        })
    }

    /// Messages about candidates, libraries and tables that were not used, with the reasons.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Chooses the kernel for `trial`.
    pub(crate) fn choose(
        &mut self,
        trial: &Trial<'_>,
        stream: &Stream,
        effort: Effort,
    ) -> Result<Choice, CudaError> {
        let choice = self.chosen(trial, stream, effort)?;
        if let Choice::Own(own) = &choice {
            self.loaded.insert((trial.linear.kind(), own.tile()), Arc::clone(own));
        }
        Ok(choice)
    }

    fn chosen(&mut self, trial: &Trial<'_>, stream: &Stream, effort: Effort) -> Result<Choice, CudaError> {
        if !self.effort.measures() {
            return self.unmeasured(trial, effort);
        }
        let key = self.key(trial);
        if let Some(known) = self.known.get(&key).copied()
            && let Some(choice) = self.recall(trial, known)
        {
            return Ok(choice);
        }
        if effort != Effort::Measure {
            return self.unmeasured(trial, effort);
        }
        let (remembered, choice) = self.measured(trial, stream)?;
        self.known.insert(key, remembered);
        self.changed = true;
        Ok(choice)
    }

    /// The programs that [`Tuner::choose`] will request if nothing is measured.
    pub(crate) fn programs(&self, linear: &DeviceLinear, m: usize, effort: Effort) -> Vec<Program> {
        if effort == Effort::Reuse && self.reusable(linear, m).is_some() {
            return Vec::new();
        }
        let own = !self.effort.measures() && self.gemm != Gemm::CublasLt;
        let tile = self.tiles(linear, m, effort).into_iter().next().filter(|_| own);
        tile.map(|tile| linear.kind().program(tile)).into_iter().collect()
    }

    /// Loads one of our kernels for a layer that no batch runs yet, for [`Effort::Reuse`]. A failure is told
    /// when a batch needs it.
    pub(crate) fn load(&mut self, linear: &DeviceLinear, m: usize) {
        let tile = self.tiles(linear, m, Effort::Compile).into_iter().next();
        if let Some(own) = tile.filter(|_| self.gemm != Gemm::CublasLt).and_then(|tile| linear.own(tile).ok())
        {
            self.loaded.insert((linear.kind(), own.tile()), Arc::new(own));
        }
    }

    /// Measures `trial`, even if a choice is stored on disk, and returns the fastest tile.
    pub(crate) fn fastest_tile(&mut self, trial: &Trial<'_>, stream: &Stream) -> Result<Tile, CudaError> {
        match self.measured(trial, stream)?.1 {
            Choice::Own(own) => Ok(own.tile()),
            Choice::Library(..) => {
                Err(CudaError::Unsupported("tiles are measured with --gemm own".to_owned()))
            }
        }
    }

    /// Tiles in the order in which they are tried: those of the table first, or those of kernels that are
    /// loaded.
    fn tiles(&self, linear: &DeviceLinear, m: usize, effort: Effort) -> Vec<Tile> {
        let mut tiles = linear.tiles(m);
        if self.effort != Autotune::Off {
            let mut measured = table::tiles(self.device.name(), m, linear.shape(), linear.kind());
            measured.retain(|tile| tiles.contains(tile));
            tiles.splice(0..0, measured);
        }
        if effort == Effort::Reuse {
            prefer(&mut tiles, |tile| self.loaded.contains_key(&(linear.kind(), *tile)));
        }
        tiles
    }

    /// The kernel that [`Effort::Reuse`] prefers, if a measured tile tells it: the loaded one whose number of
    /// rows is nearest. To rank all tiles takes the host longer than many an inference.
    fn reusable(&self, linear: &DeviceLinear, m: usize) -> Option<Arc<OwnLinear>> {
        if self.effort == Autotune::Off || self.gemm == Gemm::CublasLt {
            return None;
        }
        let measured = table::tiles(self.device.name(), m, linear.shape(), linear.kind());
        measured.into_iter().find_map(|tile| self.loaded.get(&(linear.kind(), tile)).cloned())
    }

    fn unmeasured(&mut self, trial: &Trial<'_>, effort: Effort) -> Result<Choice, CudaError> {
        if effort == Effort::Reuse
            && let Some(own) = self.reusable(trial.linear, trial.m)
        {
            return Ok(Choice::Own(own));
        }
        if let Some(lt) = self.lt.clone().filter(|_| self.gemm == Gemm::CublasLt)
            && let Some(library) = trial.linear.library(&lt, trial.m)?.into_iter().next()
        {
            return self.with_scratch(trial, library);
        }
        let mut first_error = None;
        for tile in self.tiles(trial.linear, trial.m, effort).into_iter().take(TRIES) {
            match trial.linear.own(tile) {
                Ok(own) => return Ok(Choice::Own(Arc::new(own))),
                Err(error) => {
                    self.note(trial, &tile, &error);
                    first_error.get_or_insert(error);
                }
            }
        }
        Err(first_error.expect("every layer has tiles"))
    }

    fn note(&mut self, trial: &Trial<'_>, what: &dyn std::fmt::Display, error: &CudaError) {
        self.notes.push(format!("{}: {what} is not used: {error}", trial.name));
    }

    fn key(&self, trial: &Trial<'_>) -> String {
        let (n, k) = trial.linear.shape();
        let (m, kind, gemm, effort) = (trial.m, trial.linear.kind(), self.gemm, self.effort);
        let mut tiles = DefaultHasher::new();
        trial.linear.tiles(m).hash(&mut tiles);
        format!("{m} x {n} x {k} {kind} {gemm} {effort} {} {:016x}", self.lt.is_some(), tiles.finish())
    }

    fn recall(&mut self, trial: &Trial<'_>, known: Remembered) -> Option<Choice> {
        match known {
            Remembered::Own(instruction, sizes) => {
                let tile = Tile::from_numbers((instruction, sizes))?;
                // A damaged file may contain an invalid tile.
                let known = trial.linear.tiles(trial.m).contains(&tile);
                known.then(|| trial.linear.own(tile).ok().map(|own| Choice::Own(Arc::new(own)))).flatten()
            }
            Remembered::Library(index) => {
                let all = trial.linear.library(self.lt.as_ref()?, trial.m).ok()?;
                let library = all.into_iter().nth(index)?;
                self.with_scratch(trial, library).ok()
            }
        }
    }

    /// Measures the candidates for `trial` on random codes.
    fn measured(&mut self, trial: &Trial<'_>, stream: &Stream) -> Result<(Remembered, Choice), CudaError> {
        let mut candidates = self.candidates(trial)?;
        trial.input.fill_with(stream, &self.noise(stream, trial)?)?;
        let device = self.device.clone();
        let time = |(_, choice): &(Remembered, Choice)| {
            let Trial { linear, m, input, target, .. } = *trial;
            time_together(&device, stream, || match choice {
                Choice::Own(own) => own.run(linear, stream, m, input, target),
                Choice::Library(library, scratch) => library.run(linear, stream, input, scratch, target),
            })
        };
        let mut skipped = Vec::new();
        let best = fastest(&candidates, time, |(_, choice), error| skipped.push((choice.to_string(), error)));
        for (what, error) in &skipped {
            self.note(trial, what, error);
        }
        match best {
            Some(best) => Ok(candidates.swap_remove(best)),
            None => Err(skipped.into_iter().next().map_or_else(
                || CudaError::Unsupported(format!("{}: no kernel computes this layer", trial.name)),
                |(_, error)| error,
            )),
        }
    }

    /// The candidates for the layer, the most promising first. Only our kernels support sizes that cuBLASLt
    /// does not. With `--gemm auto`, only our kernels are candidates for INT8 layers, because the fused
    /// kernels are faster there.
    fn candidates(&mut self, trial: &Trial<'_>) -> Result<Vec<(Remembered, Choice)>, CudaError> {
        let library = self.library(trial);
        if self.gemm == Gemm::CublasLt {
            let library = library?;
            return if library.is_empty() { Ok(self.own(trial)) } else { Ok(library) };
        }
        let mut candidates = self.own(trial);
        match library {
            Ok(library) => candidates.extend(library),
            Err(error) => self.note(trial, &"cuBLASLt", &error),
        }
        Ok(candidates)
    }

    /// Our kernels that compile.
    fn own(&mut self, trial: &Trial<'_>) -> Vec<(Remembered, Choice)> {
        self.device.prefetch(&self.candidate_programs(trial.linear, trial.m));
        let mut kept = Vec::new();
        for tile in self.candidate_tiles(trial.linear, trial.m) {
            let (instruction, sizes) = tile.numbers();
            match trial.linear.own(tile) {
                Ok(own) => kept.push((Remembered::Own(instruction, sizes), Choice::Own(Arc::new(own)))),
                Err(error) => self.note(trial, &tile, &error),
            }
        }
        kept
    }

    /// The tiles to measure for `m` rows.
    fn candidate_tiles(&self, linear: &DeviceLinear, m: usize) -> Vec<Tile> {
        let all = linear.tiles(m);
        if self.effort == Autotune::Full { all } else { Tile::promising(all, QUICK_TILES) }
    }

    /// The programs of the tiles to measure for `m` rows.
    pub(crate) fn candidate_programs(&self, linear: &DeviceLinear, m: usize) -> Vec<Program> {
        self.candidate_tiles(linear, m).into_iter().map(|tile| linear.kind().program(tile)).collect()
    }

    fn library(&mut self, trial: &Trial<'_>) -> Result<Vec<(Remembered, Choice)>, CudaError> {
        let Some(lt) = self.lt.clone() else { return Ok(Vec::new()) };
        if self.gemm == Gemm::Auto && trial.linear.kind().integer {
            return Ok(Vec::new());
        }
        let count = if self.effort == Autotune::Full { usize::MAX } else { QUICK_ALGORITHMS };
        let (mut s8, mut wide) = (0, 0);
        let mut kept = Vec::new();
        for (index, library) in trial.linear.library(&lt, trial.m)?.into_iter().enumerate() {
            let seen = if library.is_s8() { &mut s8 } else { &mut wide };
            *seen += 1;
            if *seen <= count {
                kept.push((Remembered::Library(index), self.with_scratch(trial, library)?));
            }
        }
        Ok(kept)
    }

    /// Adds memory for its results to `library`. Layers run one after the other, so they share the memory.
    fn with_scratch(&mut self, trial: &Trial<'_>, library: LibraryLinear) -> Result<Choice, CudaError> {
        let bytes = library.scratch_bytes(trial.linear);
        let scratch = match self.scratch.take().filter(|scratch| scratch.bytes() >= bytes) {
            Some(scratch) => scratch,
            None => DeviceBuf::new(&self.device, bytes)?.all(),
        };
        self.scratch = Some(scratch.clone());
        Ok(Choice::Library(library, scratch))
    }

    /// Returns the random codes. The first call also warms up the GPU.
    fn noise(&mut self, stream: &Stream, trial: &Trial<'_>) -> Result<DeviceSlice, CudaError> {
        if let Some(noise) = &self.noise {
            return Ok(noise.clone());
        }
        let noise = DeviceBuf::from_slice(&self.device, &random_codes(NOISE))?.all();
        let start = Instant::now();
        while start.elapsed() < WARM_UP {
            trial.input.fill_with(stream, &noise)?;
            stream.synchronize()?;
        }
        self.noise = Some(noise.clone());
        Ok(noise)
    }

    /// Releases the memory that only measurements need, and writes the new choices to disk. Choices that
    /// other processes have written in the meantime are kept. A cache that cannot be written is not an error.
    pub(crate) fn finish(&mut self) {
        (self.noise, self.scratch) = (None, None);
        self.device.unload_unused();
        let Some(file) = self.file.as_ref().filter(|_| self.changed) else { return };
        let others = cache::read(file).and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let mut all: BTreeMap<String, Remembered> = others.unwrap_or_default();
        all.extend(self.known.iter().map(|(key, value)| (key.clone(), *value)));
        let written =
            serde_json::to_vec_pretty(&all).map_err(Into::into).and_then(|bytes| cache::write(file, &bytes));
        self.changed = written.is_err();
    }
}

/// Moves the tiles that are `ready` to the front; the order of tiles stays the same otherwise.
fn prefer(tiles: &mut [Tile], ready: impl Fn(&Tile) -> bool) {
    tiles.sort_by_key(|tile| !ready(tile));
}

/// Opens cuBLASLt on `device` and verifies it with a known product.
fn verified(device: &Device) -> Result<Lt, CudaError> {
    let lt = Lt::new(device)?;
    lt.verify()?;
    Ok(lt)
}

/// Hash of everything that a measurement depends on: GPU, driver, libraries, and the kernels' sources.
fn fingerprint(device: &Device) -> String {
    let mut hasher = DefaultHasher::new();
    (device.name(), device.arch().to_string(), library::driver_version()).hash(&mut hasher);
    (library::nvrtc_version(), library::cublaslt_version(), sources::SOURCES).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use swinq_cuda::ops::linear::Gpu;

    use super::*;

    #[test]
    fn kernels_that_are_ready_come_first_in_the_order_of_the_model() {
        let gpu = Gpu { shared: 227 << 10, multiprocessors: 132, wgmma: true };
        let all = Tile::candidates(3136, 288, 96, gpu);
        let mut tiles = all.clone();
        prefer(&mut tiles, |_| false);
        assert_eq!(tiles, all);
        prefer(&mut tiles, |tile| [all[7], all[3]].contains(tile));
        let others = all.iter().enumerate().filter(|(i, _)| ![3, 7].contains(i)).map(|(_, tile)| *tile);
        assert_eq!(tiles, [all[3], all[7]].into_iter().chain(others).collect::<Vec<_>>());
    }

    #[test]
    fn choices_are_remembered_as_json_and_anything_else_is_forgotten() {
        let own = Remembered::Own(1, [128, 256, 64, 256, 128, 4, 0]);
        let known = BTreeMap::from([("a".to_owned(), own), ("b".to_owned(), Remembered::Library(3))]);
        let text = serde_json::to_string(&known).unwrap();
        assert_eq!(text, r#"{"a":{"own":[1,[128,256,64,256,128,4,0]]},"b":{"library":3}}"#);
        let read = |text: &str| serde_json::from_str::<BTreeMap<String, Remembered>>(text).ok();
        assert_eq!(read(&text), Some(known));
        for other in
            ["", "{", "[]", r#"{"a":{"own":[128]}}"#, r#"{"a":{"library":-1}}"#, r#"{"a":{"else":1}}"#]
        {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
