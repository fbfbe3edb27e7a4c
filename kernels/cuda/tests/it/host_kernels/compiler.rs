//! Compiles kernels into programs, once for each version of their sources.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use swinq_cuda::Program;
use swinq_cuda::contract::contract_header;

/// As on a GPU, each operation follows IEEE 754 and type punning is permitted.
const FLAGS: [&str; 7] = [
    "-g1",
    "-std=c++17",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-DSWINQ_HOST",
];

/// The source files of the program around a kernel.
const RUNTIME: [&str; 5] = ["block.cpp", "copy.cpp", "runner.cpp", "switch.cpp", "warp.cpp"];

/// Time after which an unused program is deleted.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// The C++ compiler of this machine, and its compiled programs.
pub struct Compiler {
    command: String,
    /// The folder of compiled programs.
    dir: PathBuf,
    /// Hash of the compiler and of every file that a kernel may include.
    base: u64,
    objects: Vec<PathBuf>,
    programs: Mutex<HashMap<u64, Arc<OnceLock<PathBuf>>>>,
}

/// Writes a file that other processes may read at any time: they see the old file or all of the new one.
fn write_whole(path: &Path, text: &str) {
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&temporary, text).unwrap();
    fs::rename(temporary, path).unwrap();
}

impl Compiler {
    /// Returns the compiler. If there is none, prints that the tests are skipped and returns `None`.
    ///
    /// # Panics
    /// If there is none and `REQUIRE_IMPL` contains `host_kernels`.
    pub fn get() -> Option<&'static Compiler> {
        static COMPILER: OnceLock<Option<Compiler>> = OnceLock::new();
        let found =
            COMPILER.get_or_init(|| find().map(|(command, version)| Compiler::new(command, &version)));
        if found.is_none() {
            let required = std::env::var("REQUIRE_IMPL").unwrap_or_default();
            let absent = "no C++ compiler ($CXX, c++, g++, clang++)";
            assert!(!required.split(',').any(|name| name == "host_kernels"), "host_kernels: {absent}");
            eprintln!("SKIPPED: host_kernels: {absent}");
        }
        found.as_ref()
    }

    fn new(command: String, version: &str) -> Compiler {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("host_kernels");
        let mut base = DefaultHasher::new();
        (version, FLAGS, contract_header()).hash(&mut base);
        for file in files(&kernels()).into_iter().chain(files(&kernels().join("host"))) {
            if file.extension().is_some_and(|e| e != "cu") {
                fs::read(file).unwrap().hash(&mut base);
            }
        }
        let mut compiler =
            Compiler { command, dir, base: base.finish(), objects: Vec::new(), programs: Mutex::default() };
        compiler.prepare();
        compiler
    }

    /// Deletes old programs, writes `contract.cuh` and compiles the common part of all programs.
    fn prepare(&mut self) {
        fs::create_dir_all(&self.dir).unwrap();
        let old = SystemTime::now() - KEPT;
        for file in files(&self.dir) {
            if file.metadata().and_then(|m| m.modified()).is_ok_and(|time| time < old) {
                let _ = fs::remove_file(file);
            }
        }
        let include = self.include();
        fs::create_dir_all(&include).unwrap();
        write_whole(&include.join("contract.cuh"), &contract_header());
        for name in RUNTIME {
            let source = kernels().join("host").join(name);
            let object = self.dir.join(format!("{name}-{:016x}.o", self.base));
            self.compile(&["-O2", "-c", source.to_str().unwrap()], &object);
            self.objects.push(object);
        }
    }

    /// The folder of `contract.cuh`.
    fn include(&self) -> PathBuf {
        self.dir.join(format!("include-{:016x}", self.base))
    }

    /// Returns the executable of a program; compiles it if it does not exist.
    pub fn program(&self, program: &Program) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        (self.base, program, fs::read(source(program.file)).unwrap()).hash(&mut hasher);
        let key = hasher.finish();
        let slot = Arc::clone(self.programs.lock().unwrap().entry(key).or_default());
        slot.get_or_init(|| self.build(program, key)).clone()
    }

    fn build(&self, program: &Program, key: u64) -> PathBuf {
        let executable = self.dir.join(format!("{}-{key:016x}", program.entry));
        let main = executable.with_extension("cpp");
        // The defines apply only to the kernel; the primitives use other names.
        let define = |(name, value): &(&str, i64)| format!("#define {name} {value}\n");
        let defines: String = program.defines.iter().map(define).collect();
        let (file, entry) = (source(program.file), program.entry);
        let text = format!("#include \"host.cuh\"\n{defines}#include {file:?}\nSWINQ_ENTRY({entry})\n");
        write_whole(&main, &text);
        let mut arguments: Vec<String> = vec!["-O0".into(), main.to_str().unwrap().into()];
        arguments.extend(self.objects.iter().map(|object| object.to_str().unwrap().into()));
        self.compile(&arguments, &executable);
        executable
    }

    /// Runs the compiler unless `output` exists.
    fn compile(&self, arguments: &[impl AsRef<str>], output: &Path) {
        if output.exists() {
            return;
        }
        let temporary = output.with_extension(format!("{}.tmp", std::process::id()));
        let mut command = Command::new(&self.command);
        command.args(FLAGS).args(arguments.iter().map(AsRef::as_ref)).arg("-o").arg(&temporary);
        for folder in [self.include(), kernels(), kernels().join("host")] {
            command.arg("-I").arg(folder);
        }
        let done = command.output().unwrap();
        assert!(done.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&done.stderr));
        fs::rename(temporary, output).unwrap();
    }
}

/// The first compiler that prints its version: command and version.
fn find() -> Option<(String, String)> {
    let candidates = std::env::var("CXX").into_iter().chain(["c++", "g++", "clang++"].map(String::from));
    candidates.filter(|command| !command.is_empty()).find_map(|command| {
        let output = Command::new(&command).arg("--version").output().ok()?;
        output.status.success().then(|| (command, String::from_utf8_lossy(&output.stdout).into_owned()))
    })
}

/// The folder `kernels/cuda/sources`.
fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("sources")
}

/// Path of a kernel's source file: in `kernels/cuda/sources`, or in this test suite.
fn source(file: &str) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/host_kernels").join(file);
    if own.exists() { own } else { kernels().join(file) }
}

/// The files of a folder, sorted by name.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.is_file()).collect();
    files.sort();
    files
}
