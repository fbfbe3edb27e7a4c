//! Runs the Python tests that need numpy only, with the module that `cargo test` built.
//!
//! With maturin and wheel the module is packed as a wheel, which is installed from there in a fresh
//! environment (`bindings/python/test --module`; needs PyPI). Without them the tests run on the module and
//! the sources as they lie.
//!
//! The test needs Python 3.11 or newer (`SWINQ_PYTHON`, else `python3`) with numpy. Without it, it prints
//! that it is skipped, unless `REQUIRE_IMPL` names `numpy`; `wheel` there requires maturin and wheel, too.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// The extension module, which cargo builds beside the test.
fn module() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let name = format!("{}swinq_python{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    test.parent().unwrap().join(name)
}

/// Whether `python` is new enough and has the modules `modules`. If not, and if `REQUIRE_IMPL` names
/// `requirement`, the test fails.
fn has(python: &Path, modules: &str, requirement: &str) -> bool {
    let code = format!("import sys, {modules}; assert sys.version_info >= (3, 11)");
    let found = Command::new(python).args(["-c", &code]).output();
    let found = found.is_ok_and(|output| output.status.success());
    let required = std::env::var("REQUIRE_IMPL").unwrap_or_default();
    let required = required.split(',').any(|name| name == requirement);
    assert!(found || !required, "{} is not Python 3.11 with {modules}", python.display());
    found
}

#[test]
fn the_python_tests_pass() {
    let python = PathBuf::from(std::env::var_os("SWINQ_PYTHON").unwrap_or_else(|| "python3".into()));
    if !has(&python, "numpy", "numpy") {
        eprintln!("SKIPPED: {} is not Python 3.11 with numpy", python.display());
        return;
    }
    let status = if has(&python, "maturin, wheel", "wheel") {
        in_a_fresh_environment(&python)
    } else {
        eprintln!("SKIPPED: no wheel is made, because {} lacks maturin or wheel", python.display());
        as_they_lie(&python)
    };
    assert!(status.success());
}

/// The result of the tests of a wheel, which is packed now.
fn in_a_fresh_environment(python: &Path) -> ExitStatus {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("test");
    let mut command = Command::new(script);
    command.arg("--module").arg(module()).env("PYTHON", python).env("PYTHONDONTWRITEBYTECODE", "1");
    command.status().unwrap()
}

/// The result of the tests with the module and the sources in one folder.
fn as_they_lie(python: &Path) -> ExitStatus {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("swinq");
    copy_folder(&here.join("python/swinq"), &package);
    std::fs::copy(module(), package.join("_native.abi3.so")).unwrap();
    let mut command = Command::new(python);
    command.args(["-m", "unittest", "discover", "--start-directory"]).arg(here.join("tests"));
    command.args(["--pattern", "test_numpy_*.py"]).env("PYTHONPATH", folder.path());
    command.env("PYTHONDONTWRITEBYTECODE", "1").status().unwrap()
}

/// Copies a folder with the folders in it.
fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in from.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let copied = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &copied);
        } else {
            std::fs::copy(&path, copied).unwrap();
        }
    }
}
