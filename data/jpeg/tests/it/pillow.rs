//! Pixels equal Pillow's, byte for byte, in both builds of the decoder (with the feature `simd` and without):
//! on the JPEG files of `data/tests/fixtures`, and with `SWINQ_JPEGS=FOLDER` on those that `make_jpegs.py`
//! wrote.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

fn folders() -> Vec<PathBuf> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")];
    match std::env::var_os("SWINQ_JPEGS") {
        Some(folder) => folders.push(folder.into()),
        None => eprintln!("SKIPPED: encoded photographs; make them with make_jpegs.py and set SWINQ_JPEGS"),
    }
    folders
}

fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes the file of one row of `pixels.tsv`; the problem, if the result is not Pillow's.
fn check(folder: &Path, row: &[&str]) -> Result<(), String> {
    let bytes = fs::read(folder.join(row[0])).unwrap();
    let header = swinq_jpeg::read_header(&bytes).map_err(|error| error.to_string())?;
    let pixels = swinq_jpeg::decode(&bytes, &header).map_err(|error| error.to_string())?;
    if [header.width.to_string(), header.height.to_string()] != row[1..3] {
        return Err(format!("{} x {}", header.width, header.height));
    }
    if sha(&pixels) == row[3] { Ok(()) } else { Err("other pixels".to_owned()) }
}

#[test]
fn pixels_equal_pillows() {
    for folder in folders() {
        let table = fs::read_to_string(folder.join("pixels.tsv")).unwrap();
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split('\t').collect()).collect();
        let jpegs: Vec<_> = rows.iter().filter(|row| row[0].ends_with(".jpg")).collect();
        assert!(jpegs.len() >= 15, "{}: {} JPEG", folder.display(), jpegs.len());
        let problems: Vec<String> = jpegs
            .iter()
            .filter_map(|row| check(&folder, row).err().map(|problem| format!("{}: {problem}", row[0])))
            .collect();
        let build = if swinq_jpeg::has_simd() { "vector code" } else { "C" };
        println!("{}: {} JPEG by {build}, {} differ", folder.display(), jpegs.len(), problems.len());
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
