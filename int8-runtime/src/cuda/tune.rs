//! Which kernel computes a linear layer: measured once for a GPU and a shape, and remembered on disk.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use swinq_kernels::cuda::ops::linear::{DeviceLinear, Instruction, Target, Tile};
use swinq_kernels::cuda::{CudaError, Device, DeviceSlice, Event, Lt, Stream, cache, library, sources};

use super::options::{Autotune, Gemm};
use super::step::Choice;

/// Own tiles that a quick search measures.
const QUICK_TILES: usize = 32;
/// Algorithms of cuBLASLt that a quick search measures, of each type of result.
const QUICK_ALGORITHMS: usize = 3;
/// Launches timed together, and how many times.
const TOGETHER: usize = 10;
const REPEATS: usize = 5;

/// A choice as it is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Remembered {
    /// Position of the instruction among all, block and warp tile, depth, stages, resident stages.
    Own(usize, [u16; 7]),
    /// Position in the library's list.
    Library(usize),
}

/// What is measured for one linear layer at one number of rows.
pub(crate) struct Trial<'a> {
    pub(crate) linear: &'a DeviceLinear,
    pub(crate) m: usize,
    pub(crate) input: &'a DeviceSlice,
    pub(crate) target: Target<'a>,
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
}

impl Tuner {
    /// A tuner with what the disk remembers.
    pub(crate) fn new(device: &Device, gemm: Gemm, effort: Autotune) -> Result<Tuner, CudaError> {
        let lt = match gemm {
            Gemm::Own => None,
            Gemm::CublasLt => Some(Arc::new(verified(device)?)),
            // Without the library, or with one that miscalculates, our kernels do.
            Gemm::Auto => verified(device).ok().map(Arc::new),
        };
        let file = cache::cache_dir().map(|dir| dir.join(format!("tune-{}.json", fingerprint(device))));
        let known = file.as_ref().and_then(|file| std::fs::read(file).ok());
        let known = known.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Ok(Tuner { device: device.clone(), gemm, effort, lt, file, known, changed: false })
    }

    /// Whether choices may need scratch memory.
    pub(crate) fn uses_library(&self) -> bool {
        self.lt.is_some()
    }

    /// The kernel for `trial`; `scratch` as the library's results need it.
    pub(crate) fn choose(
        &mut self,
        trial: &Trial<'_>,
        on: &Stream,
        scratch: &DeviceSlice,
    ) -> Result<Choice, CudaError> {
        let key = self.key(trial);
        if let Some(choice) = self.known.get(&key).copied().and_then(|known| self.recall(trial, known)) {
            return Ok(choice);
        }
        let candidates = self.candidates(trial)?;
        let mut best: Option<(f32, Remembered, Choice)> = None;
        for (remembered, choice) in candidates {
            if self.effort == Autotune::Off {
                return Ok(choice);
            }
            let time = self.time(trial, on, scratch, &choice)?;
            if best.as_ref().is_none_or(|(least, ..)| time < *least) {
                best = Some((time, remembered, choice));
            }
        }
        let (_, remembered, choice) = best.expect("our kernels compute every layer");
        self.known.insert(key, remembered);
        self.changed = true;
        Ok(choice)
    }

    fn key(&self, trial: &Trial<'_>) -> String {
        let (n, k) = trial.linear.shape();
        let (m, kind, gemm, effort) = (trial.m, trial.linear.kind(), self.gemm, self.effort);
        format!("{m} x {n} x {k} {kind:?} {gemm} {effort} {}", self.lt.is_some())
    }

    fn recall(&self, trial: &Trial<'_>, known: Remembered) -> Option<Choice> {
        match known {
            Remembered::Own(instruction, [bm, bn, wm, wn, depth, stages, resident]) => {
                let instruction = *Instruction::ALL.get(instruction)?;
                let tile = Tile { instruction, block: (bm, bn), warp: (wm, wn), depth, stages, resident };
                // A damaged file may hold anything.
                let known = trial.linear.tiles(trial.m).contains(&tile);
                known.then(|| trial.linear.own(tile).ok().map(Choice::Own)).flatten()
            }
            Remembered::Library(index) => {
                let all = trial.linear.library(self.lt.as_ref()?, trial.m).ok()?;
                all.into_iter().nth(index).map(Choice::Library)
            }
        }
    }

    /// What may compute the product, the most promising first. Products of sizes that cuBLASLt does not take are ours.
    fn candidates(&self, trial: &Trial<'_>) -> Result<Vec<(Remembered, Choice)>, CudaError> {
        if self.effort == Autotune::Off && self.gemm != Gemm::CublasLt {
            return self.own(trial);
        }
        let library = self.library(trial)?;
        if self.gemm == Gemm::CublasLt && !library.is_empty() {
            return Ok(library);
        }
        let mut candidates = self.own(trial)?;
        candidates.extend(library);
        Ok(candidates)
    }

    fn own(&self, trial: &Trial<'_>) -> Result<Vec<(Remembered, Choice)>, CudaError> {
        let all = trial.linear.tiles(trial.m);
        let tiles = match self.effort {
            Autotune::Off => all.into_iter().take(1).collect(),
            Autotune::Quick => Tile::promising(all, QUICK_TILES),
            Autotune::Full => all,
        };
        let programs: Vec<_> = tiles.iter().map(|&tile| trial.linear.kind().program(tile)).collect();
        // Compiles what is missing on all cores.
        self.device.kernels(&programs)?;
        let choice = |tile: Tile| {
            let Tile { instruction, block, warp, depth, stages, resident } = tile;
            let sizes = [block.0, block.1, warp.0, warp.1, depth, stages, resident];
            let position = Instruction::ALL.iter().position(|&i| i == instruction).expect("one of all");
            let remembered = Remembered::Own(position, sizes);
            Ok((remembered, Choice::Own(trial.linear.own(tile)?)))
        };
        tiles.into_iter().map(choice).collect()
    }

    fn library(&self, trial: &Trial<'_>) -> Result<Vec<(Remembered, Choice)>, CudaError> {
        let Some(lt) = &self.lt else { return Ok(Vec::new()) };
        let count = if self.effort == Autotune::Full { usize::MAX } else { QUICK_ALGORITHMS };
        let (mut s8, mut wide) = (0, 0);
        let mut kept = Vec::new();
        for (index, library) in trial.linear.library(lt, trial.m)?.into_iter().enumerate() {
            let seen = if library.is_s8() { &mut s8 } else { &mut wide };
            *seen += 1;
            if *seen <= count {
                kept.push((Remembered::Library(index), Choice::Library(library)));
            }
        }
        Ok(kept)
    }

    /// Milliseconds of one launch: the least of a few medians, with the launches of each recorded together.
    fn time(
        &self,
        trial: &Trial<'_>,
        on: &Stream,
        scratch: &DeviceSlice,
        choice: &Choice,
    ) -> Result<f32, CudaError> {
        let Trial { linear, m, input, target } = *trial;
        time_together(&self.device, on, || match choice {
            Choice::Own(own) => own.run(linear, on, m, input, target),
            Choice::Library(library) => library.run(linear, on, input, scratch, target),
        })
    }

    /// Writes what was measured, beside what others have written meanwhile. A cache that cannot be written is no error.
    pub(crate) fn save(&mut self) {
        let Some(file) = self.file.as_ref().filter(|_| self.changed) else { return };
        let others = std::fs::read(file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let mut all: BTreeMap<String, Remembered> = others.unwrap_or_default();
        all.extend(self.known.iter().map(|(key, value)| (key.clone(), *value)));
        let write = |file: &PathBuf| {
            let bytes = serde_json::to_vec_pretty(&all)?;
            file.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            let temporary = file.with_extension(format!("{}-{:p}.tmp", std::process::id(), self));
            std::fs::write(&temporary, bytes)?;
            std::fs::rename(&temporary, file)
        };
        self.changed = write(file).is_err();
    }
}

/// Milliseconds of `launch`, from several recorded in one graph.
pub(crate) fn time_together(
    device: &Device,
    on: &Stream,
    launch: impl Fn() -> Result<(), CudaError>,
) -> Result<f32, CudaError> {
    let graph = on.capture(|| (0..TOGETHER).try_for_each(|_| launch()))?;
    graph.launch(on)?;
    let marks: Vec<Event> = (0..=REPEATS).map(|_| Event::new(device)).collect::<Result<_, _>>()?;
    marks[0].record(on)?;
    for mark in &marks[1..] {
        graph.launch(on)?;
        mark.record(on)?;
    }
    on.synchronize()?;
    let mut times =
        marks.windows(2).map(|pair| Event::elapsed_ms(&pair[0], &pair[1])).collect::<Result<Vec<_>, _>>()?;
    times.sort_by(f32::total_cmp);
    Ok(times[REPEATS / 2] / TOGETHER as f32)
}

/// cuBLASLt on `device`, after it has multiplied a known product.
fn verified(device: &Device) -> Result<Lt, CudaError> {
    let lt = Lt::new(device)?;
    lt.verify()?;
    Ok(lt)
}

/// What a measurement is valid for: GPU, driver, libraries, and the kernels' sources.
fn fingerprint(device: &Device) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (device.name(), device.arch().to_string(), library::driver_version()).hash(&mut hasher);
    (library::nvrtc_version(), library::cublaslt_version(), sources::SOURCES).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

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
