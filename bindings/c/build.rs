//! Gives the shared library its name for the loader, with the major version of the interface.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    // cargo-c sets the name itself.
    if target == "linux" && std::env::var_os("CARGO_FEATURE_CAPI").is_none() {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libswinq.so.0");
    }
}
