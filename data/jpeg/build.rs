//! Compiles `src/border.c` against the headers of the libjpeg that mozjpeg-sys builds from its own source.

fn main() {
    println!("cargo::rerun-if-changed=src/border.c");
    let includes = std::env::var_os("DEP_JPEG_INCLUDE").expect("mozjpeg-sys states where its headers are");
    cc::Build::new()
        .file("src/border.c")
        .includes(std::env::split_paths(&includes))
        .compile("swinq_jpeg_border");
}
