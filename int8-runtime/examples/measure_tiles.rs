//! Measures the tiles of linear layers on GPU 0, and writes the program's tables together with this GPU's
//! table to a file:
//!
//! ```console
//! $ cargo run --release -p swinq-int8-runtime --example measure_tiles -- int8-runtime/src/cuda/tiles.json
//! ```
//!
//! It first compiles the kernels, in one process for each core.

use std::error::Error;
use std::process::{Child, Command};

use swinq_int8_runtime::cuda::{Autotune, compile_tiles, measure_tiles};

/// Starts a process that compiles share `share` of `shares`.
fn compiler(share: usize, shares: usize) -> std::io::Result<Child> {
    let program = std::env::current_exe()?;
    Command::new(program).args(["compile", &share.to_string(), &shares.to_string()]).spawn()
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [command, share, shares] = &args[..]
        && command == "compile"
    {
        return Ok(compile_tiles(0, Autotune::Quick, (share.parse()?, shares.parse()?))?);
    }
    let path = args.first().ok_or("give the file to write, int8-runtime/src/cuda/tiles.json")?;
    let shares = std::thread::available_parallelism().map_or(1, |n| n.get());
    let children: Vec<Child> = (0..shares).map(|share| compiler(share, shares)).collect::<Result<_, _>>()?;
    for mut child in children {
        child.wait()?;
    }
    eprintln!("kernels are compiled");
    let tables = measure_tiles(0, Autotune::Quick, |done, total| eprintln!("{done} of {total} layers"))?;
    std::fs::write(path, tables)?;
    Ok(())
}
