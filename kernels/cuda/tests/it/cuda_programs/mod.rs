//! Checks that every program that an engine requests compiles without local memory. Needs NVRTC but no GPU;
//! with `REQUIRE_IMPL=nvrtc` a missing NVRTC is a failure.
//!
//! sm_90a, the architecture with the most instructions, has the large set of programs: every tile shape of a
//! linear layer with the epilogues that use the most registers, every epilogue with one tile, and all
//! variants of the other ops. sm_75, the oldest architecture, and sm_89, which has the code paths of sm_80
//! and less shared memory, have a small set ([`Scope`]). Of each set a sample is compiled: the first program
//! of each entry, and every third or fourth after it. All kernels of the ladder, which benchmarks use, are
//! compiled.
//!
//! Programs that differ only in their entry are one compilation, as in an engine ([`Unit`]).
//!
//! `SWINQ_COMPILE=archs` compiles the whole sets, and adds [`MORE_ARCHS`], which use the same code paths: run
//! it after changes of kernels. `SWINQ_COMPILE=all` also compiles every tile shape with every epilogue for
//! every architecture, which takes much longer. Any other value compiles only the programs whose description
//! contains it, such as `attention_f16` or `STORE=2`.
//!
//! NVRTC compiles one program at a time in a process, so the test starts itself once for each core.

mod ladder;
mod linears;
mod ops;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use swinq_cuda::{Compiled, Library, Program, compile, library, resources};

/// An architecture: its name, the maximum bytes of shared memory of a block, and the set of programs to
/// compile for it.
pub struct Arch {
    name: &'static str,
    shared: u32,
    scope: Scope,
}

/// A set of programs to compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The programs of the shipped recipes, for the sizes of the official models.
    Few,
    /// As `Few`, every epilogue of a linear layer with one tile, and every variant of the other ops.
    Middle,
    /// Every tile shape of a linear layer with usual epilogues, every epilogue with one tile, and every
    /// variant of the other ops.
    Most,
    /// As `Most`, and every tile shape of a linear layer with every epilogue.
    All,
}

const ARCHS: [Arch; 3] = [
    Arch { name: "sm_75", shared: 64 << 10, scope: Scope::Few },
    Arch { name: "sm_89", shared: 99 << 10, scope: Scope::Few },
    Arch { name: "sm_90a", shared: 227 << 10, scope: Scope::Most },
];

/// Architectures whose code paths are those of another one.
const MORE_ARCHS: [Arch; 8] = [
    Arch { name: "sm_80", shared: 163 << 10, scope: Scope::Few },
    Arch { name: "sm_86", shared: 99 << 10, scope: Scope::Few },
    Arch { name: "sm_87", shared: 163 << 10, scope: Scope::Few },
    Arch { name: "sm_100", shared: 227 << 10, scope: Scope::Few },
    Arch { name: "sm_103", shared: 227 << 10, scope: Scope::Few },
    Arch { name: "sm_110", shared: 227 << 10, scope: Scope::Few },
    Arch { name: "sm_120", shared: 99 << 10, scope: Scope::Few },
    Arch { name: "sm_121", shared: 99 << 10, scope: Scope::Few },
];

/// Names the share of a process that the test started: its index and the number of processes.
const SHARE: &str = "SWINQ_COMPILE_SHARE";

#[test]
fn every_program_compiles_without_local_memory() {
    if !nvrtc() {
        return;
    }
    let start = Instant::now();
    let processes = std::thread::available_parallelism().map_or(1, |n| n.get());
    // All children are read at the same time: one whose pipe is full waits.
    let children: Vec<_> =
        (0..processes).map(|share| std::thread::spawn(move || run_share(share, processes))).collect();
    let (mut compiled, mut wrong, mut times) = (0_usize, Vec::new(), BTreeMap::<String, (usize, u64)>::new());
    for child in children {
        let output = child.join().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "a share of the programs failed:\n{text}");
        compiled += text.lines().filter(|line| line.starts_with("compiled ")).count();
        for (file, ms) in
            text.lines().filter_map(|line| line.strip_prefix("took ")).filter_map(|line| line.split_once(' '))
        {
            let (units, sum) = times.entry(file.to_owned()).or_default();
            (*units, *sum) = (*units + 1, *sum + ms.parse::<u64>().unwrap());
        }
        wrong.extend(text.lines().filter_map(|line| line.strip_prefix("wrong ")).map(str::to_owned));
    }
    println!("{compiled} programs compiled in {:.0} s", start.elapsed().as_secs_f32());
    times.iter().for_each(|(file, (units, ms))| {
        println!("{file}: {units} compilations in {:.0} s", *ms as f64 / 1e3)
    });
    let programs: usize = work().iter().map(|(unit, _)| unit.len()).sum();
    assert_eq!(compiled, programs, "every program is compiled once");
    assert!(wrong.is_empty(), "{} of {compiled} programs:\n{}", wrong.len(), wrong.join("\n"));
}

/// Starts this program again for a share of the programs and returns its output.
fn run_share(share: usize, processes: usize) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "cuda_programs::one_share", "--nocapture"]);
    command.env(SHARE, format!("{share} {processes}"));
    command.stderr(Stdio::inherit()).output().unwrap()
}

/// Compiles a share of the programs, in a process that the test above starts. Without the variable it does
/// nothing.
#[test]
fn one_share() {
    let Ok(share) = std::env::var(SHARE) else { return };
    let (share, processes) = share.split_once(' ').unwrap();
    let (share, processes): (u64, u64) = (share.parse().unwrap(), processes.parse().unwrap());
    // Neighbouring programs differ in one constant, so shares of every n-th program would take different
    // times. A multiplicative hash of the index distributes them at random.
    let of_share = |i: u64| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % processes == share;
    for (unit, arch) in (0..).zip(work()).filter(|&(i, _)| of_share(i)).map(|(_, unit)| unit) {
        // Before the compilation, so that a crash has a name. Start a new line, because the test harness may
        // have written to the current one.
        unit.iter().for_each(|program| println!("\ncompiled {program} {arch}"));
        let start = Instant::now();
        let faults = faults(&unit, arch);
        println!("took {} {}", unit[0].file, start.elapsed().as_millis());
        faults.iter().for_each(|fault| println!("wrong {} {fault}", unit[0].file));
    }
}

/// The programs of `unit` that fail on `arch`, with their reasons.
fn faults(unit: &Unit, arch: &str) -> Vec<String> {
    let compiled = match compile(&unit[0], arch) {
        Ok(compiled) => compiled,
        Err(error) => {
            return vec![format!("{} for {arch}: {}", unit[0], error.to_string().replace('\n', " | "))];
        }
    };
    if let Some(line) = compiled.log.lines().find(|line| line.contains("serialized")) {
        return vec![format!("{} for {arch}: {line}", unit[0])];
    }
    let of_program = |program| Some(format!("{program} for {arch}: {}", fault(program, &compiled)?));
    unit.iter().filter_map(of_program).collect()
}

/// The reason why the machine code of `program` is not good, if it is not.
fn fault(program: &Program, compiled: &Compiled) -> Option<String> {
    let found = match resources(&compiled.cubin, program.entry) {
        Ok(found) => found,
        Err(error) => return Some(error.to_string()),
    };
    let threads = program.defines.iter().find(|(name, _)| *name == "THREADS").expect("THREADS is defined").1;
    // Registers are allocated to warps in units of 256.
    let of_block = i64::from(found.registers.next_multiple_of(8)) * threads;
    let most = ladder::most_registers(program).unwrap_or(255);
    let fits = found.local_bytes == 0 && found.registers <= most && of_block <= 65_536;
    (!fits).then(|| {
        let spills = compiled.log.lines().find(|line| line.contains("bytes stack frame")).unwrap_or_default();
        format!("{} registers in {threads} threads, {}", found.registers, spills.trim())
    })
}

/// Programs that differ only in their entry: one compilation gives the machine code of all.
type Unit = Vec<Program>;

/// Every unit with its architecture.
fn work() -> Vec<(Unit, &'static str)> {
    let chosen = std::env::var("SWINQ_COMPILE").unwrap_or_default();
    let (all, part) = (chosen == "all", !["", "all", "archs"].contains(&chosen.as_str()));
    let more: &[Arch] = if all || chosen == "archs" { &MORE_ARCHS } else { &[] };
    let of_arch = |arch: &'static Arch| {
        let scope = if all { Scope::All } else { arch.scope };
        let of_ops = ops::programs(arch, scope).into_iter().chain(ops::window_blocks(arch));
        let programs: BTreeSet<Program> = of_ops.chain(linears::programs(arch, scope)).collect();
        let programs = if chosen.is_empty() { sample(programs, arch.scope) } else { programs };
        programs.into_iter().map(|program| (program, arch.name))
    };
    let wanted = |program: &Program| !part || program.to_string().contains(&chosen);
    let programs = ARCHS.iter().chain(more).flat_map(of_arch).chain(ladder::programs());
    units(programs.filter(|(program, _)| wanted(program)))
}

/// Collects programs that are compiled together.
fn units(programs: impl Iterator<Item = (Program, &'static str)>) -> Vec<(Unit, &'static str)> {
    let mut units = BTreeMap::<_, BTreeSet<Program>>::new();
    for (program, arch) in programs {
        let key = (arch, program.file, program.defines.clone(), program.max_registers);
        units.entry(key).or_default().insert(program);
    }
    units.into_iter().map(|(key, programs)| (programs.into_iter().collect(), key.0)).collect()
}

/// The first program of each entry, and every third or, of a small set, every fourth after it.
fn sample(programs: BTreeSet<Program>, scope: Scope) -> BTreeSet<Program> {
    let every = if scope == Scope::Few { 4 } else { 3 };
    let mut of_entry = BTreeMap::new();
    let mut chosen = |program: &Program| {
        let count = of_entry.entry((program.file, program.entry)).or_insert(0);
        *count += 1;
        *count % every == 1
    };
    programs.into_iter().filter(|program| chosen(program)).collect()
}

/// Whether NVRTC is available.
fn nvrtc() -> bool {
    let Err(error) = library::require(Library::Nvrtc) else { return true };
    let required = std::env::var("REQUIRE_IMPL").is_ok_and(|names| names.split(',').any(|n| n == "nvrtc"));
    assert!(!required, "REQUIRE_IMPL names nvrtc: {error}");
    eprintln!("SKIPPED every_program_compiles_without_local_memory: {error}");
    false
}
