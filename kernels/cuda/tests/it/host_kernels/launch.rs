//! Launches on the host: parameters and buffers in, buffers out.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use swinq_cuda::{LaunchConfig, Program};

use super::compiler::Compiler;

/// A kernel launch on this machine's CPU. Parameters are added one by one, in the order of their struct.
#[derive(Clone)]
pub struct Launch {
    program: Program,
    config: LaunchConfig,
    params: Vec<u8>,
    buffers: Vec<Buffer>,
}

/// Device memory of exactly this size, and the offset of its pointer in the parameters.
#[derive(Clone)]
struct Buffer {
    pointer: usize,
    /// Whether earlier launches write or read it.
    guarded: bool,
    bytes: Vec<u8>,
}

impl Launch {
    /// A launch without parameters.
    pub fn new(program: &Program, config: LaunchConfig) -> Launch {
        Launch { program: program.clone(), config, params: Vec::new(), buffers: Vec::new() }
    }

    /// Adds a pointer to device memory that holds `values` and that no other launch writes, such as a weight.
    #[must_use]
    pub fn array<T: Number>(self, values: &[T]) -> Launch {
        self.buffer(values, false)
    }

    /// Adds a pointer to device memory that holds `values` and that earlier launches write or read. The
    /// kernel must have waited for them before it accesses this memory.
    #[must_use]
    pub fn activation<T: Number>(self, values: &[T]) -> Launch {
        self.buffer(values, true)
    }

    fn buffer<T: Number>(mut self, values: &[T], guarded: bool) -> Launch {
        self = self.null();
        let pointer = self.params.len() - 8;
        self.buffers.push(Buffer { pointer, guarded, bytes: bytes(values) });
        self
    }

    /// Adds a null pointer.
    #[must_use]
    pub fn null(mut self) -> Launch {
        self.params.resize(self.params.len().next_multiple_of(8) + 8, 0);
        self
    }

    /// As [`Launch::array`], or a null pointer for `None`.
    #[must_use]
    pub fn optional<T: Number>(self, values: Option<&[T]>) -> Launch {
        match values {
            Some(values) => self.array(values),
            None => self.null(),
        }
    }

    /// Adds an `s32`.
    #[must_use]
    pub fn int(mut self, x: usize) -> Launch {
        self.params.extend((x as i32).to_le_bytes());
        self
    }

    /// Adds a `u64`.
    #[must_use]
    pub fn long(mut self, x: u64) -> Launch {
        self = self.null();
        let at = self.params.len() - 8;
        self.params[at..].copy_from_slice(&x.to_le_bytes());
        self
    }

    /// Adds an `f32`.
    #[must_use]
    pub fn float(mut self, x: f32) -> Launch {
        self.params.extend(x.to_le_bytes());
        self
    }

    /// Runs the kernel and returns the buffers, in the order in which they were added.
    ///
    /// # Panics
    /// With the program's message, if it detects a mistake in the kernel.
    pub fn run(&self, compiler: &Compiler) -> Vec<Vec<u8>> {
        let output = self.execute(compiler);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {}\n{message}", self.program, output.status);
        let mut rest = &output.stdout[..];
        let results = self.buffers.iter().map(|buffer| {
            let (bytes, tail) = rest.split_at(buffer.bytes.len());
            rest = tail;
            bytes.to_vec()
        });
        results.collect()
    }

    /// Runs a kernel whose last two buffers are its result and a flag, and returns these.
    pub fn outcome(&self, compiler: &Compiler) -> (Vec<u8>, u32) {
        let mut buffers = self.run(compiler);
        let flag = words(&buffers.pop().unwrap())[0];
        (buffers.pop().unwrap(), flag)
    }

    /// Runs a kernel with a mistake and returns the program's message.
    ///
    /// # Panics
    /// If the program detects no mistake.
    pub fn failure(&self, compiler: &Compiler) -> String {
        let output = self.execute(compiler);
        assert!(!output.status.success(), "{}: no mistake was found", self.program);
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn execute(&self, compiler: &Compiler) -> Output {
        let mut child = Command::new(compiler.program(&self.program))
            .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=0")
            .env("UBSAN_OPTIONS", "print_stacktrace=1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A program may stop before it has read all input. It then reports the reason itself, so the error of
        // this write is ignored.
        let _ = child.stdin.take().unwrap().write_all(&self.input());
        child.wait_with_output().unwrap()
    }

    /// The launch in the input format of `runner.cpp`.
    fn input(&self) -> Vec<u8> {
        let mut input = Vec::new();
        let mut push = |x: usize| input.extend((x as u64).to_le_bytes());
        self.config.grid.iter().for_each(|&extent| push(extent as usize));
        push(self.config.threads as usize);
        push(self.config.shared as usize);
        let params = self.params.len().next_multiple_of(8);
        push(params);
        input.extend(&self.params);
        input.resize(input.len() + params - self.params.len(), 0);
        input.extend((self.buffers.len() as u64).to_le_bytes());
        for Buffer { pointer, guarded, bytes } in &self.buffers {
            input.extend((*pointer as u64).to_le_bytes());
            input.extend(u64::from(*guarded).to_le_bytes());
            input.extend((bytes.len() as u64).to_le_bytes());
            input.extend(bytes);
        }
        input
    }
}

/// A number type that buffers can hold.
pub trait Number: Copy {
    /// Appends the number in little-endian order.
    fn push(self, bytes: &mut Vec<u8>);
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn push(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }
        }
    )*};
}

number!(u8, i8, u16, u32, i32, f32);

/// The bytes of numbers in memory.
pub fn bytes<T: Number>(values: &[T]) -> Vec<u8> {
    let mut bytes = Vec::new();
    values.iter().for_each(|x| x.push(&mut bytes));
    bytes
}

/// Reads a buffer as u32.
pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect()
}

/// Reads a buffer as f32.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    words(bytes).into_iter().map(f32::from_bits).collect()
}

/// Reads a buffer as bits of f16.
pub fn halves(bytes: &[u8]) -> Vec<u16> {
    bytes.as_chunks().0.iter().map(|&half| u16::from_le_bytes(half)).collect()
}
