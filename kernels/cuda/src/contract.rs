//! The constants of the number contract, as a header for kernels.

use std::fmt::Write;

use swinq_numerics::reference::{CODE_FLOOR, FLOOR, math};

/// Text of `contract.cuh`: the constants of `reference/math.rs` and the floors of the logits. They are
/// written as bits, because compilers may convert decimals differently. `TAIL_BITS` and `QUADRATIC_BITS`
/// (`[power][column]`), `EXP_BITS` and `EXP_255_BITS` are arrays of u32; the others are macros.
pub fn contract_header() -> String {
    let mut header = String::from("#pragma once\n");
    push_array(&mut header, "TAIL_BITS", math::TAIL.0.as_flattened());
    push_array(&mut header, "QUADRATIC_BITS", math::QUADRATIC.0.as_flattened());
    push_array(&mut header, "EXP_BITS", &math::EXP);
    push_array(&mut header, "EXP_255_BITS", &math::EXP_255);
    for (name, value) in [
        ("TAIL_PER_UNIT_BITS", math::TAIL_PER_UNIT),
        ("TAIL_LAST_BITS", math::TAIL_LAST),
        ("QUADRATIC_PER_UNIT_BITS", math::QUADRATIC_PER_UNIT),
        ("QUADRATIC_LAST_BITS", math::QUADRATIC_LAST),
        ("LN2_HIGH_BITS", math::LN2_HIGH),
        ("LN2_LOW_BITS", math::LN2_LOW),
        ("LOG2_E_BITS", std::f32::consts::LOG2_E),
        ("FLOOR_BITS", FLOOR),
        ("CODE_FLOOR_BITS", CODE_FLOOR),
    ] {
        writeln!(header, "#define {name} {:#010x}u", value.to_bits()).expect("strings take everything");
    }
    header
}

/// Appends `CONSTANT u32 name[n] = {...};` with the bits of `values`, eight per line.
fn push_array(header: &mut String, name: &str, values: &[f32]) {
    let lines = values.chunks(8).map(|line| {
        let words: Vec<String> = line.iter().map(|x| format!("{:#010x}u", x.to_bits())).collect();
        format!("    {},\n", words.join(", "))
    });
    write!(header, "CONSTANT u32 {name}[{}] = {{\n{}}};\n", values.len(), lines.collect::<String>())
        .expect("strings take everything");
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_header_holds_every_constant_as_bits() {
        let header = super::contract_header();
        for line in ["CONSTANT u32 TAIL_BITS[96] = {", "CONSTANT u32 EXP_BITS[7] = {"] {
            assert!(header.contains(line), "{header}");
        }
        assert_eq!(header.matches("0x").count(), 96 + 96 + 7 + 5 + 9);
        assert!(header.contains("    0x3f000000u,"), "the first coefficient is 0.5:\n{header}");
        assert!(header.contains("#define FLOOR_BITS 0xc2700000u\n"), "the floor is -60:\n{header}");
    }
}
