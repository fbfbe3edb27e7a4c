//! Resources that a kernel uses on a multiprocessor, read from its machine code.

use super::CudaError;

/// Resources of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of local memory per thread: arrays that are not in registers, and spilled registers.
    pub local_bytes: u32,
    /// Bytes of shared memory per block that the source declares with a size.
    pub shared_static: u32,
}

/// Attributes in `.nv.info` sections: format and attribute; for `SIZED`, a length and that many bytes follow.
const SIZED: u8 = 4;
const FRAME_SIZE: u8 = 0x11;
const MIN_STACK_SIZE: u8 = 0x12;
const REGISTERS: u8 = 0x2f;

/// Bytes at the start of a block's shared memory that are reserved by the system. The sections of sm_90 and
/// newer include them, and one more section marks this.
const RESERVED: u64 = 1024;

/// Reads the resources of the kernel `entry` in `cubin` from the ELF sections `.nv.info` (registers and frame
/// of each function) and `.nv.shared.<entry>` (size).
///
/// # Errors
/// `cubin` is not a 64-bit ELF file with such sections (PTX is not), or has no such kernel.
pub fn resources(cubin: &[u8], entry: &str) -> Result<Resources, CudaError> {
    let elf = Elf::read(cubin).ok_or(CudaError::Cubin("no sections of a 64-bit ELF file"))?;
    let symbol = elf.symbol(entry).ok_or(CudaError::Cubin("no such kernel"))?;
    let info = elf.section(".nv.info").ok_or(CudaError::Cubin("no section .nv.info"))?;
    let mut found = Resources::default();
    let mut seen = false;
    for (attribute, index, value) in Attributes(elf.content(info).unwrap_or_default()) {
        if index != symbol {
            continue;
        }
        match attribute {
            REGISTERS => (found.registers, seen) = (value, true),
            FRAME_SIZE | MIN_STACK_SIZE => found.local_bytes = found.local_bytes.max(value),
            _ => {}
        }
    }
    if let Some(shared) = elf.section(&format!(".nv.shared.{entry}")) {
        let reserved = elf.section(".nv.shared.reserved.0").map_or(0, |_| RESERVED);
        found.shared_static = u32::try_from(shared.size.saturating_sub(reserved)).unwrap_or(u32::MAX);
    }
    if seen { Ok(found) } else { Err(CudaError::Cubin("no register count of the kernel")) }
}

/// Iterates over the attributes of a `.nv.info` section that consist of a symbol and a number. Items are
/// attribute, symbol and number.
struct Attributes<'a>(&'a [u8]);

impl Iterator for Attributes<'_> {
    type Item = (u8, u32, u32);

    fn next(&mut self) -> Option<(u8, u32, u32)> {
        loop {
            let (format, attribute) = (*self.0.first()?, *self.0.get(1)?);
            let size = if format == SIZED { usize::from(u16_at(self.0, 2)?) } else { 0 };
            let payload = self.0.get(4..4 + size)?;
            self.0 = &self.0[4 + size..];
            if let (8, Some(symbol), Some(value)) = (size, u32_at(payload, 0), u32_at(payload, 4)) {
                return Some((attribute, symbol, value));
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Section {
    name: u64,
    offset: u64,
    size: u64,
    link: u64,
}

struct Elf<'a> {
    bytes: &'a [u8],
    sections: Vec<Section>,
    names: Section,
}

impl<'a> Elf<'a> {
    fn read(bytes: &'a [u8]) -> Option<Elf<'a>> {
        // Magic number, 64 bits, little-endian.
        bytes.starts_with(b"\x7fELF\x02\x01").then_some(())?;
        let (start, size) = (u64_at(bytes, 0x28)?, u64::from(u16_at(bytes, 0x3a)?));
        let (count, names) = (u64::from(u16_at(bytes, 0x3c)?), usize::from(u16_at(bytes, 0x3e)?));
        let section = |i: u64| {
            let at = usize::try_from(start.checked_add(i.checked_mul(size)?)?).ok()?;
            let header = bytes.get(at..at.checked_add(64)?)?;
            Some(Section {
                name: u64::from(u32_at(header, 0)?),
                offset: u64_at(header, 0x18)?,
                size: u64_at(header, 0x20)?,
                link: u64::from(u32_at(header, 0x28)?),
            })
        };
        let sections: Vec<Section> = (0..count).map(section).collect::<Option<_>>()?;
        Some(Elf { bytes, names: *sections.get(names)?, sections })
    }

    fn content(&self, section: Section) -> Option<&'a [u8]> {
        let start = usize::try_from(section.offset).ok()?;
        self.bytes.get(start..start.checked_add(usize::try_from(section.size).ok()?)?)
    }

    /// The string at `offset` of a string table.
    fn text(&self, table: Section, offset: u64) -> Option<&'a [u8]> {
        let rest = self.content(table)?.get(usize::try_from(offset).ok()?..)?;
        rest.split(|byte| *byte == 0).next()
    }

    fn section(&self, name: &str) -> Option<Section> {
        self.sections.iter().copied().find(|s| self.text(self.names, s.name) == Some(name.as_bytes()))
    }

    /// Index of the symbol `name`.
    fn symbol(&self, name: &str) -> Option<u32> {
        let table = self.section(".symtab")?;
        let strings = *self.sections.get(usize::try_from(table.link).ok()?)?;
        let named = |symbol: &[u8]| {
            let offset = u32_at(symbol, 0)?;
            Some(self.text(strings, u64::from(offset))? == name.as_bytes())
        };
        let index = self.content(table)?.chunks_exact(24).position(|symbol| named(symbol) == Some(true))?;
        u32::try_from(index).ok()
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_else_than_a_cubin_is_refused() {
        let mut elf = b"\x7fELF\x02\x01".to_vec();
        for bytes in [&b""[..], b"// PTX", &elf] {
            assert!(resources(bytes, "k").is_err());
        }
        elf.resize(64, 0xff);
        assert!(resources(&elf, "k").is_err());
    }
}
