//! Runs the Python tests that need numpy only, on the module that `cargo test` built. `bindings/python/test` runs all
//! tests on a wheel.
//!
//! The test needs Python 3.11 or newer (`SWINQ_PYTHON`, else `python3`) with numpy. Without it, it prints that it is
//! skipped, unless `REQUIRE_IMPL` names `numpy`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The extension module, which cargo builds beside the test.
fn module() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let name = format!("{}swinq_python{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    test.parent().unwrap().join(name)
}

#[test]
fn the_python_tests_pass() {
    let python = PathBuf::from(std::env::var_os("SWINQ_PYTHON").unwrap_or_else(|| "python3".into()));
    let found =
        Command::new(&python).args(["-c", "import sys, numpy; assert sys.version_info >= (3, 11)"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        let required = std::env::var("REQUIRE_IMPL").unwrap_or_default();
        assert!(
            !required.split(',').any(|name| name == "numpy"),
            "{} is not 3.11 with numpy",
            python.display()
        );
        eprintln!("SKIPPED: {} is not Python 3.11 with numpy", python.display());
        return;
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("swinq");
    std::fs::create_dir(&package).unwrap();
    for entry in here.join("python/swinq").read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, package.join(path.file_name().unwrap())).unwrap();
        }
    }
    std::fs::copy(module(), package.join("_native.abi3.so")).unwrap();
    let status = Command::new(&python)
        .args(["-m", "unittest", "discover", "--start-directory"])
        .arg(here.join("tests"))
        .args(["--pattern", "test_numpy_*.py"])
        .env("PYTHONPATH", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .status()
        .unwrap();
    assert!(status.success());
}
