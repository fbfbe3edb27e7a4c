use std::cell::Cell;
use std::io::{self, Write};
use std::rc::Rc;

use super::super::avx512::COLUMNS;
use super::probe::{Features, examine};
use super::product::{Accumulators, Multiply, Operands, WeightLoad};
use super::self_test::{Case, run, self_test};
use super::tile::{Config, Element, Shape, TILES};
use super::*;
use crate::cpu::Cpu;
use crate::linear::{KERNELS, LinearI8, LinearOut, LinearSpec, Store};
use crate::pool::Pool;

/// A shape in which rows and bytes differ.
const SMALL: Shape = Shape { rows: 3, row_bytes: 8 };

/// Tiles 0 (3 x 8), 1 (3 x 8) and 2 (2 x 8) form a product; the others are full.
fn small_config() -> Config {
    let mut shapes = [Shape::FULL; TILES];
    shapes[..3].copy_from_slice(&[SMALL, SMALL, Shape { rows: 2, row_bytes: 8 }]);
    Config::new(shapes)
}

impl Emulated {
    fn read<const T: usize, E: Element>(&mut self, from: &[E], stride: usize) {
        // SAFETY: the emulation panics where the call is wrong; so below.
        unsafe { self.load::<T, _>(from, 0, stride) };
    }

    fn multiply<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: as in `read`.
        unsafe { self.dot::<C, A, B>() };
    }

    fn write<const T: usize, E: Element>(&mut self, to: &mut [E], stride: usize) {
        // SAFETY: as in `read`.
        unsafe { self.store::<T, _>(to, 0, stride) };
    }
}

#[test]
fn a_configuration_has_the_documented_bytes() {
    let config = Steps::new(24).config();
    let mut want = [0; 64];
    want[0] = 1;
    // Bytes of a row, 16 bits each: accumulators, inputs of a step and of the rest, weights.
    want[16..32].copy_from_slice(&[64, 0, 64, 0, 64, 0, 64, 0, 64, 0, 32, 0, 64, 0, 64, 0]);
    want[48..56].copy_from_slice(&[16, 16, 16, 16, 16, 16, 16, 8]);
    assert_eq!(config.0, want);
    assert_eq!(std::mem::align_of_val(&config), 64);
    let shapes = Steps::new(5).config().shapes();
    assert_eq!(shapes[4..6], [Shape { rows: 16, row_bytes: 20 }; 2]);
    assert_eq!(shapes[6..], [Shape { rows: 5, row_bytes: 64 }; 2]);
}

#[test]
fn emulated_tiles_load_and_store_their_shape_only() {
    let mut tiles = Configured::new(Emulated::new(), &small_config());
    let from: Vec<u8> = (1..=100).collect();
    let stored = |tiles: &mut Emulated| {
        let mut to = [0xeeu8; 48];
        tiles.write::<0, _>(&mut to, 20);
        to
    };
    let tiles = tiles.tiles();
    assert_eq!(stored(tiles)[..8], [0; 8], "configuring sets all tiles to zero");
    tiles.read::<0, _>(&from, 10);
    let mut want = [0xee; 48];
    for row in 0..3 {
        want[20 * row..][..8].copy_from_slice(&from[10 * row..][..8]);
    }
    assert_eq!(stored(tiles), want);
    tiles.read::<0, _>(&from[5..], 0);
    assert!((0..3).all(|row| stored(tiles)[20 * row..][..8] == from[5..13]));
}

#[test]
fn emulated_products_equal_the_sums_of_a_direct_loop() {
    let a: Vec<u8> = (0..24).map(|i| 255 - 9 * i).collect();
    let b: Vec<i8> = (0..16i16).map(|i| (120 - 16 * i) as i8).collect();
    // The last sums wrap around.
    let c = [1, -2, 3, -4, i32::MAX, i32::MIN];
    let mut tiles = Configured::new(Emulated::new(), &small_config());
    let tiles = tiles.tiles();
    tiles.read::<0, _>(&c, 8);
    tiles.read::<1, _>(&a, 8);
    tiles.read::<2, _>(&b, 8);
    tiles.multiply::<0, 1, 2>();
    let mut got = [0; 6];
    tiles.write::<0, _>(&mut got, 8);
    let mut want = c;
    for (m, n) in (0..3).flat_map(|m| [(m, 0), (m, 1)]) {
        for (k, i) in (0..2).flat_map(|k| [(k, 0), (k, 1), (k, 2), (k, 3)]) {
            let product = i32::from(a[8 * m + 4 * k + i]) * i32::from(b[8 * k + 4 * n + i]);
            want[2 * m + n] = want[2 * m + n].wrapping_add(product);
        }
    }
    assert_eq!(got, want);
    assert!(want[4] < 0 && want[5] > 0, "{want:?}: both sums wrap around");
}

/// Whether `run` panics.
fn faults(run: impl FnOnce(&mut Emulated)) -> bool {
    let mut tiles = Emulated::new();
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&mut tiles))).is_err()
}

#[test]
fn what_the_processor_refuses_panics_in_the_emulation() {
    let config = small_config();
    let changed = |at: usize, to: u8| {
        let mut config = small_config();
        config.0[at] = to;
        config
    };
    assert!(!faults(|tiles| tiles.configure(&config)));
    for (at, to) in [(0, 2), (1, 1), (2, 1), (15, 1), (16, 65), (17, 1), (32, 4), (48, 17), (56, 1)] {
        assert!(faults(|tiles| tiles.configure(&changed(at, to))), "byte {at} of {to}");
    }
    assert!(faults(|tiles| tiles.read::<0, _>(&[0u8; 64], 0)), "tiles that are not configured");
    let released = |tiles: &mut Emulated| {
        tiles.configure(&config);
        tiles.release();
        tiles.multiply::<0, 1, 2>();
    };
    assert!(faults(released));
    let with = |run: fn(&mut Emulated)| {
        faults(|tiles| {
            tiles.configure(&config);
            run(tiles);
        })
    };
    assert!(!with(|tiles| tiles.multiply::<0, 1, 2>()));
    assert!(with(|tiles| tiles.multiply::<1, 0, 3>()), "inputs and weights do not match");
    assert!(with(|tiles| tiles.multiply::<3, 1, 2>()), "the result has other columns");
    assert!(with(|tiles| tiles.multiply::<0, 1, 1>()), "one tile twice");
    assert!(with(|tiles| tiles.read::<0, _>(&[0u8; 27], 10)), "outside of memory");
    assert!(with(|tiles| tiles.write::<0, _>(&mut [0u8; 27], 10)), "outside of memory");
    assert!(std::panic::catch_unwind(|| SMALL.check(10, 27)).is_err(), "and for the processor's tiles");
    SMALL.check(10, 28);
}

#[test]
fn products_on_tiles_equal_the_sums_of_a_direct_loop() {
    let ks = [0, 1, 4, 31, 32, 60, 63, 64, 65, 68, 96, 127, 128, 132, 192, 200, 384];
    for (seed, k) in ks.into_iter().enumerate() {
        for rows in [1, 2, 15, 16, 17, 31, 32] {
            let case = Case::new(rows, k, seed as u64);
            let (got, input, panel) =
                (case.run(Emulated::new(), WeightLoad::Pass), case.input.as_u8(), case.panel.as_i8());
            for (row, c) in (0..rows).flat_map(|row| (0..COLUMNS).map(move |c| (row, c))) {
                let inputs = k.next_multiple_of(4);
                let product = |i: usize| {
                    let weight = panel[i / 4 * 4 * COLUMNS + 4 * c + i % 4];
                    i32::from(input[row * case.stride + i]) * i32::from(weight)
                };
                let want = case.initial[c] + (0..inputs).map(product).sum::<i32>();
                assert_eq!(got.0[row][c], want, "{rows} rows, {k} inputs, row {row}, column {c}");
            }
        }
    }
}

#[test]
fn products_cover_the_rows_once_with_as_few_tiles_as_possible() {
    for n in 0..300 {
        let mut next = 7;
        for rows in products(7..7 + n) {
            assert_eq!(rows.start, next, "{n} rows");
            assert!((1..=ROWS).contains(&on_tiles(rows.len())), "{n} rows: {rows:?}");
            next = rows.end;
        }
        assert_eq!(next, 7 + n);
        assert_eq!(products(7..7 + n).count(), on_tiles(n).div_ceil(ROWS));
    }
}

/// The panic of a product of `groups` groups of inputs, if it panics.
fn refusal(operands: Operands<'_>, groups: usize) -> Option<String> {
    let panic = std::panic::catch_unwind(|| run(Emulated::new(), groups, operands, WeightLoad::Keep, |_| ()))
        .err()?;
    Some(panic.downcast::<String>().map_or_else(|_| "no text".to_owned(), |text| *text))
}

#[test]
fn operands_that_are_too_short_are_refused() {
    for (rows, k) in [(1, 4), (16, 64), (17, 96), (32, 96), (5, 132), (32, 384)] {
        let (case, groups) = (Case::new(rows, k, 1), k / 4);
        let mut operands = case.operands();
        let used = (rows.next_multiple_of(16) - 1) * case.stride + k;
        operands.input = &case.input.as_u8()[..used];
        assert_eq!(refusal(operands, groups), None, "{rows} rows, {k} inputs");
        operands.input = &case.input.as_u8()[..used - 1];
        let message = refusal(operands, groups).expect("too few inputs");
        assert!(message.contains("lies within its memory"), "{rows} rows, {k} inputs: {message}");
        operands.input = &case.input.as_u8()[..used];
        operands.panel = &operands.panel[1..];
        let message = refusal(operands, groups).expect("too few weights");
        assert!(message.contains("a panel has"), "{rows} rows, {k} inputs: {message}");
    }
}

#[test]
#[should_panic(expected = "a panel has")]
fn a_panel_that_is_too_short_is_refused_after_the_inputs_were_loaded() {
    let case = Case::new(32, 96, 1);
    let mut operands = case.operands();
    let mut tiles = Resident::new(Emulated::new(), 24);
    tiles.take_rows(operands);
    operands.panel = &operands.panel[1..];
    tiles.product(operands, WeightLoad::Keep, &mut Accumulators::new(0), |_| ());
}

/// Emulated tiles that count configurations and releases, and may be wrong.
struct Observed {
    tiles: Emulated,
    configured: Rc<Cell<usize>>,
    /// Whether inputs are used as signed bytes.
    signed: bool,
}

impl Tiles for Observed {
    fn configure(&mut self, config: &Config) {
        self.configured.set(self.configured.get() + 1);
        self.tiles.configure(config);
    }

    fn release(&mut self) {
        self.configured.set(self.configured.get() - 1);
        self.tiles.release();
    }

    unsafe fn load<const T: usize, E: Element>(&mut self, from: &[E], at: usize, stride: usize) {
        // SAFETY: as promised by the caller.
        unsafe { self.tiles.load::<T, _>(from, at, stride) };
    }

    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        if self.signed {
            // A signed byte is an unsigned one minus 256 where the upper bit is set: clear those bits.
            let mut bytes = [0u8; 1024];
            self.tiles.write::<A, _>(&mut bytes, 64);
            bytes.iter_mut().for_each(|b| *b &= 0x7f);
            self.tiles.read::<A, _>(&bytes, 64);
        }
        self.tiles.multiply::<C, A, B>();
    }

    unsafe fn store<const T: usize, E: Element>(&mut self, to: &mut [E], at: usize, stride: usize) {
        // SAFETY: as promised by the caller.
        unsafe { self.tiles.store::<T, _>(to, at, stride) };
    }
}

#[test]
fn the_self_test_finds_wrong_tiles_and_releases_all() {
    let configured = Rc::new(Cell::new(0));
    let tiles = |signed| {
        let configured = Rc::clone(&configured);
        move || Observed { tiles: Emulated::new(), configured: Rc::clone(&configured), signed }
    };
    assert_eq!(self_test(tiles(false)), Ok(()));
    let error = self_test(tiles(true)).unwrap_err();
    assert!(error.starts_with("a product of 32 rows and 32 inputs has "), "{error}");
    assert_eq!(configured.get(), 0, "every configuration is released");
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _tiles = Configured::new(tiles(false)(), &small_config());
        panic!("in an epilogue");
    }));
    assert!(panic.is_err());
    assert_eq!(configured.get(), 0, "also by a panic");
}

const ALL: Features = Features { instructions: true, saved: true, palette: true };

/// The refusal of tiles that have `features`, whose permission is `permit` and whose self-test gives `test`.
fn refused(features: Features, permit: io::Result<()>, test: Result<(), String>) -> Option<String> {
    examine(features, || permit, || test).err().map(|refusal| refusal.to_string())
}

#[test]
fn each_refusal_has_its_reason() {
    assert_eq!(refused(ALL, Ok(()), Ok(())), None);
    let reason = |features| refused(features, Ok(()), Ok(())).unwrap();
    assert!(reason(Features { instructions: false, ..ALL }).contains("the processor has no INT8 tiles"));
    assert!(reason(Features { saved: false, ..ALL }).contains("does not save tiles"));
    assert!(reason(Features { palette: false, ..ALL }).contains("are not eight of 16 rows by 64 bytes"));
    let wrong = refused(ALL, Ok(()), Err("1 where 2 is right".to_owned())).unwrap();
    assert_eq!(wrong, "the tiles failed the self-test: 1 where 2 is right");
}

#[test]
fn later_checks_wait_for_earlier_ones() {
    let never = || -> io::Result<()> { panic!("asked for the permission") };
    assert!(examine(Features { saved: false, ..ALL }, never, || Ok(())).is_err());
    let untested = || -> Result<(), String> { panic!("ran the self-test") };
    assert!(examine(ALL, || Err(io::Error::from_raw_os_error(1)), untested).is_err());
}

/// Linux's error if a filter forbids the request (EPERM).
fn refused_permission() -> Option<String> {
    refused(ALL, Err(io::Error::from_raw_os_error(1)), Ok(()))
}

static REFUSED: Int8Kernel = kernel("amx_int8", block_real, refused_permission, None, 1);

/// The kernels with `REFUSED` for the real one.
fn with_refused() -> Vec<&'static Int8Kernel> {
    KERNELS.iter().map(|&kernel| if kernel.name == REFUSED.name { &REFUSED } else { kernel }).collect()
}

#[test]
fn a_refused_permission_leaves_avx512() {
    let kernels = with_refused();
    let fastest = Cpu::fastest(&kernels);
    let vnni = Cpu::named("avx512_vnni");
    assert_ne!(fastest.name(), "amx_int8");
    assert!(vnni.is_err() || fastest == vnni.unwrap(), "{fastest}");
    let absent = Cpu::absent_of(&kernels);
    let (_, reason) = absent.iter().find(|(name, _)| *name == "amx_int8").expect("it is absent");
    if Isa::Avx512Vnni.is_available() {
        assert!(reason.starts_with("the operating system refused the use of tiles: "), "{reason}");
    }
    // The products of the kernel that is used instead.
    let spec = LinearSpec { n: 3, k: 2, bias: None, output: None, gelu: None, store: Store::F32 };
    let mut out = [0.0; 3];
    let op = LinearI8::new(fastest, spec, &[1, 2, 3, 4, 5, 6], &[1.0; 3]);
    op.run(&mut Pool::new(1), 1, &[129, 130, 0, 0], LinearOut::F32(&mut out));
    assert_eq!(out, [5.0, 11.0, 17.0]);
}

#[test]
fn the_emulation_is_never_the_default() {
    assert!(Cpu::available().last().is_some_and(|cpu| cpu.name() != EMULATED.name));
    let place = |name| KERNELS.iter().position(|kernel| kernel.name == name);
    // It needs what `avx512_vnni` needs and precedes it.
    assert!(place("amx_emulated") < place("avx512_vnni") && place("avx512_vnni") < place("amx_int8"));
}

#[test]
fn the_processors_tiles_equal_the_emulation() {
    if let Err(error) = Cpu::named("amx_int8") {
        let message = "SKIPPED. AMX: not on this processor, the real tiles were not run";
        // Not `eprintln`, which is shown for failed tests only.
        return writeln!(io::stderr(), "{message} ({error})").unwrap();
    }
    for seed in 0..50 {
        for rows in [1, 15, 16, 17, 32] {
            for k in [0, 1, 4, 32, 60, 64, 65, 96, 128, 132, 768] {
                let case = Case::new(rows, k, seed);
                let want = case.run(Emulated::new(), WeightLoad::Keep);
                for weights in [WeightLoad::Keep, WeightLoad::Pass] {
                    // SAFETY: `amx_int8` is available.
                    let got = case.run(unsafe { Real::assume() }, weights);
                    assert_eq!(got.0[..rows], want.0[..rows], "{rows} rows, {k} inputs, weights {weights:?}");
                }
            }
        }
    }
}
