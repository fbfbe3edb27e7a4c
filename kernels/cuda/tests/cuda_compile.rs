//! Checks that kernels compile, and that their resources are read as the compiler's log states them. Needs
//! NVRTC but no GPU.

use swinq_cuda::{CudaError, Device, Library, Program, Resources, compile, compile_text, library, resources};

/// Architectures to compile for.
const ARCHS: [&str; 5] = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a"];

/// A kernel with shared memory and no local memory, and a kernel whose array does not fit in registers.
const SOURCE: &str = r#"
struct Params { const float* x; float* y; int n; };

extern "C" __global__ void __launch_bounds__(128) plain(Params p) {
    __shared__ float tile[SIZE];
    int i = blockIdx.x * 128 + threadIdx.x;
    tile[threadIdx.x % SIZE] = i < p.n ? p.x[i] : 0.0f;
    __syncthreads();
    if (i < p.n) p.y[i] = tile[(threadIdx.x + 1) % SIZE];
}

extern "C" __global__ void __launch_bounds__(128) indexed(Params p) {
    float local[100];
    for (int i = 0; i < 100; i++) local[i] = p.x[i];
    for (int i = 0; i < p.n; i++) local[static_cast<int>(p.x[i]) % 100] += local[i % 100];
    p.y[threadIdx.x] = local[p.n % 100];
}
"#;

/// Whether NVRTC is available. With `REQUIRE_IMPL=nvrtc` its absence is a failure.
fn nvrtc() -> bool {
    if library::present(Library::Nvrtc) {
        println!("NVRTC {:?}", library::nvrtc_version());
        return true;
    }
    let required = std::env::var("REQUIRE_IMPL").is_ok_and(|names| names.split(',').any(|n| n == "nvrtc"));
    assert!(!required, "{}", library::require(Library::Nvrtc).unwrap_err());
    println!("SKIPPED: {}", library::require(Library::Nvrtc).unwrap_err());
    false
}

fn program() -> Program {
    Program::new("test.cu", "plain").define("SIZE", 100)
}

/// Reads registers, stack bytes and shared-memory bytes of `entry` from the compiler's log.
fn logged(log: &str, entry: &str) -> Resources {
    let start = log.find(&format!("entry function '{entry}'")).expect("the log has the kernel");
    let own = log[start + 1..].split("entry function").next().unwrap();
    let words: Vec<&str> = own.split([' ', ',', '\n']).filter(|w| !w.is_empty()).collect();
    let before = |unit: &[&str]| {
        let at = words.windows(unit.len()).position(|w| w == unit)?;
        words[at - 1].parse::<u32>().ok()
    };
    Resources {
        registers: before(&["registers"]).expect("the log has the registers"),
        local_bytes: before(&["bytes", "stack", "frame"]).expect("the log has the stack"),
        shared_static: before(&["bytes", "smem"]).unwrap_or(0),
    }
}

#[test]
fn resources_are_what_the_compiler_says() {
    if !nvrtc() {
        return;
    }
    for arch in ARCHS {
        let compiled = compile_text(&program(), SOURCE, arch).unwrap();
        let of = |entry| resources(&compiled.cubin, entry).unwrap();
        for entry in ["plain", "indexed"] {
            println!("{arch} {entry}: {:?}", of(entry));
            assert_eq!(of(entry), logged(&compiled.log, entry), "{arch}:\n{}", compiled.log);
        }
        assert!(of("plain").local_bytes == 0 && of("plain").shared_static >= 400, "{arch}");
        assert!(of("indexed").local_bytes >= 400 && of("indexed").shared_static == 0, "{arch}");
        assert!(matches!(resources(&compiled.cubin, "absent"), Err(CudaError::Cubin(_))));
        assert!(resources(&compiled.cubin[..compiled.cubin.len() / 2], "plain").is_err());
    }
}

#[test]
fn a_limit_of_registers_is_kept() {
    if !nvrtc() {
        return;
    }
    let source = r#"extern "C" __global__ void k(float* x) {
        float v[48];
        #pragma unroll
        for (int i = 0; i < 48; i++) v[i] = x[i * 32];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 48; i++) x[(47 - i) * 32] = v[i] * v[(i + 7) % 48];
    }"#;
    let program = Program::new("test.cu", "k");
    let free = compile_text(&program, source, "sm_80").unwrap();
    assert!(resources(&free.cubin, "k").unwrap().registers > 40);
    let limited = compile_text(&Program { max_registers: Some(32), ..program }, source, "sm_80").unwrap();
    let found = resources(&limited.cubin, "k").unwrap();
    assert!(found.registers <= 32 && found.local_bytes > 0, "{found:?}");
}

#[test]
fn a_gpu_that_the_compiler_does_not_know_gets_ptx() {
    if !nvrtc() {
        return;
    }
    let compiled = compile_text(&program(), SOURCE, "sm_999").unwrap();
    let text = String::from_utf8(compiled.cubin).unwrap();
    assert!(text.contains(".entry plain") && text.ends_with('\0'), "{text}");
    assert!(matches!(resources(text.as_bytes(), "plain"), Err(CudaError::Cubin(_))));
}

#[test]
fn a_source_that_does_not_compile_is_named_with_the_compilers_words() {
    if !nvrtc() {
        return;
    }
    let error = compile_text(&program(), "extern \"C\" __global__ void plain( {", "sm_80").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("test.cu") && text.contains("plain SIZE=100 sm_80"), "{text}");
    assert!(text.contains("error:"), "{text}");
    let error = compile_text(&program(), SOURCE, "sm_20").unwrap_err().to_string();
    assert!(error.contains("sm_20"), "{error}");
    let error = compile(&program(), "sm_80").unwrap_err().to_string();
    assert!(error.contains("test.cu"), "{error}");
}

#[test]
fn headers_are_found_without_a_toolkit() {
    if !nvrtc() {
        return;
    }
    let source =
        "#include \"prelude.cuh\"\nextern \"C\" __global__ void plain(float* x) { x[threadIdx.x] = 1.0f; }";
    let program = Program::new("test.cu", "plain").define("THREADS", 128);
    for arch in ARCHS {
        compile_text(&program, source, arch).unwrap();
    }
}

#[test]
fn what_is_missing_is_named_with_what_to_install() {
    for missing in library::missing() {
        println!("missing: {} ({})", missing.library, missing.package);
        assert!(missing.library.starts_with("lib") && missing.package.len() > 10);
    }
    if library::present(Library::Driver) {
        return;
    }
    let error = Device::open(0).map(|_| ()).unwrap_err();
    assert!(matches!(error, CudaError::MissingLibrary { library: "libcuda.so", .. }), "{error}");
    assert!(error.to_string().contains("NVIDIA driver"), "{error}");
}
