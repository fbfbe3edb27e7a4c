use super::*;

/// A pickle of protocol 2 with this body.
fn pickle(body: &[u8]) -> Vec<u8> {
    [b"\x80\x02", body, b"."].concat()
}

#[test]
fn scalars_and_containers() {
    let body = b"(K\x07M\x01\x02J\xfe\xff\xff\xff\x8a\x01\x80\x8a\x00X\x02\x00\x00\x00abN\x88)\x86t";
    let bytes = pickle(body);
    let read = read(&bytes).unwrap();
    let Object::Tuple(items) = read.get(read.root) else { panic!("{read:?}") };
    let objects: Vec<&Object> = items.iter().map(|&id| read.get(id)).collect();
    assert_eq!(objects[..4], [&Object::Int(7), &Object::Int(513), &Object::Int(-2), &Object::Int(-128)]);
    assert_eq!(objects[4..7], [&Object::Int(0), &Object::Text("ab".into()), &Object::None]);
    assert!(matches!(objects[7], Object::Tuple(pair) if pair.len() == 2));
    assert_eq!(read.consumed, body.len() + 3);
}

#[test]
fn cycles_and_deep_nesting_are_harmless() {
    // A list that holds itself, and a chain of nested lists.
    let bytes = pickle(b"]q\x00h\x00a");
    let circle = read(&bytes).unwrap();
    let Object::List(items) = circle.get(circle.root) else { panic!() };
    assert_eq!(items[..], [circle.root]);
    let deep = [vec![b']'; 1_000_000], vec![b'a'; 999_999]].concat();
    drop(read(&pickle(&deep)).unwrap());
}

#[test]
fn unknown_classes_become_opaque() {
    let body = b"cyacs.config\nCfgNode\n)\x81}(X\x01\x00\x00\x00aK\x01ub";
    let bytes = pickle(body);
    let read = read(&bytes).unwrap();
    assert_eq!(read.kind(read.root), "an object of yacs.config.CfgNode");
}

#[test]
fn attacks_are_refused_by_name() {
    let bodies: [(&[u8], &str); 7] = [
        (b"cos\nsystem\nX\x02\x00\x00\x00ls\x85R", "os.system"),
        (b"cposix\nsystem\nX\x02\x00\x00\x00ls\x85R", "posix.system"),
        (b"cbuiltins\neval\nX\x01\x00\x00\x001\x85R", "builtins.eval"),
        (b"csubprocess\nPopen\n", "subprocess.Popen"),
        (b"(X\x02\x00\x00\x00lsios\nsystem\n", "os.system"),
        (b"X\x02\x00\x00\x00osX\x06\x00\x00\x00system\x93", "os.system"),
        (b"cimportlib.util\nfind_spec\n", "importlib.util.find_spec"),
    ];
    for (body, name) in bodies {
        let message = read(&pickle(body)).unwrap_err();
        assert!(message.contains(&format!("tries to execute {name}")), "{message}");
        assert!(message.contains("nothing was executed"), "{message}");
    }
}

#[test]
fn malformed_pickles_are_errors() {
    let bodies: [&[u8]; 16] = [
        b"",
        b"0",
        b"t",
        b"R",
        b"(R",
        b"a",
        b"K\x01K\x02a",
        b"}(K\x01u",
        b"h\x05",
        b"X\xff\xff\xff\xffa",
        b"\x86",
        b"P1\n",
        b"\x82\x01",
        b"cos",
        b"(K\x01\x86",
        b"K\x01Q",
    ];
    for body in bodies {
        assert!(read(&pickle(body)).is_err(), "{body:?}");
    }
    assert!(read(b"\x80\x09.").is_err());
    let flood = vec![b']'; 5_000_000];
    assert!(read(&pickle(&flood)).unwrap_err().contains("more than"));
}

#[test]
fn one_long_object_named_often_stays_bounded() {
    // A list of 1000 pairs made into 100 000 dictionaries; a long class name; a long storage name.
    let pair = [&b"X\x01\x00\x00\x00aK\x01\x86"[..]; 1000].concat();
    let call = [&b"h\x00h\x01\x85R0"[..]; 100_000].concat();
    let bomb = [b"ccollections\nOrderedDict\nq\x000](".as_slice(), &pair, b"eq\x010", &call, b"N"].concat();
    assert!(read(&pickle(&bomb)).unwrap_err().contains("more than"));
    let name = "x".repeat(1000);
    assert!(read(&pickle(format!("c{name}\n{name}\n").as_bytes())).unwrap_err().contains("class name"));
    let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let stack = [text(&name), text("f"), vec![0x93]].concat();
    assert!(read(&pickle(&stack)).unwrap_err().contains("class name"));
    let id = [b"(", &text("storage")[..], b"ctorch\nFloatStorage\n", &text(&name), &text("cpu"), b"K\x01tQ"]
        .concat();
    assert!(read(&pickle(&id)).unwrap_err().contains("persistent id"));
}

/// A text of fewer than 256 bytes, which the opcode `opcode` writes with its length in four bytes.
fn string(opcode: u8, value: &[u8]) -> Vec<u8> {
    [&[opcode], &(value.len() as u32).to_le_bytes()[..], value].concat()
}

fn text(value: &str) -> Vec<u8> {
    string(b'X', value.as_bytes())
}

const HISTORY: &[u8] = b"cmmengine.logging.history_buffer\nHistoryBuffer\n";

/// Python's form of `torch.relu` and of a method of an object.
#[test]
fn methods_are_kept_and_never_called() {
    let getattr = b"c__builtin__\ngetattr\n";
    let owners: [&[u8]; 3] = [
        b"ctorch._C\n_VariableFunctionsClass\n",
        b"ctorch._C\nTensorBase\n",
        b"ctorch.optim.lr_scheduler\nLambdaLR\n)\x81",
    ];
    for owner in owners {
        let method = |name: &str| [&getattr[..], owner, &text(name), b"\x86R"].concat();
        let bytes = pickle(&method("relu"));
        let read = read(&bytes).unwrap();
        assert!(matches!(read.get(read.root), Object::Method(name) if name.ends_with(".relu")));
        let relu = method("relu");
        let refused: [Vec<u8>; 7] = [
            [&relu[..], b")R"].concat(),
            [&relu[..], b")\x81"].concat(),
            [&relu[..], b")}\x92"].concat(),
            [b"(", &relu[..], b"o"].concat(),
            [&getattr[..], &relu, &text("system"), b"\x86R"].concat(),
            method("__globals__"),
            method("relu.__self__"),
        ];
        for body in refused {
            let message = read_pickle(&body).unwrap_err();
            assert!(message.starts_with("tries to execute"), "{message}: {}", String::from_utf8_lossy(&body));
        }
    }
    let class = [&getattr[..], b"ctorch.nn.modules.linear\nLinear\n", &text("forward"), b"\x86R"].concat();
    assert!(read_pickle(&class).unwrap_err().starts_with("tries to execute"));
}

/// Modules in the older format of torch.save are named by a persistent id with their source.
#[test]
fn classes_with_their_source_are_names() {
    let id = [b"(", &text("module")[..], b"cnet\nNet\n", &text("net.py"), &text("class Net: pass"), b"tQ"]
        .concat();
    let bytes = pickle(&id);
    let found = read(&bytes).unwrap();
    assert_eq!(found.kind(found.root), "the class or function net.Net");
    let bytes = pickle(&[&id[..], b")\x81}b"].concat());
    let found = read(&bytes).unwrap();
    assert_eq!(found.kind(found.root), "an object of net.Net");
    let no_class = [b"(", &text("module")[..], &text("Net"), b"NNtQ"].concat();
    assert!(read_pickle(&no_class).unwrap_err().contains("persistent id"));
}

#[test]
fn statistics_of_mmengine_are_kept_and_other_uses_of_getattr_refused() {
    for module in ["builtins", "__builtin__"] {
        let getattr = format!("c{module}\ngetattr\n").into_bytes();
        let stack_global = [text(module), text("getattr"), vec![0x93]].concat();
        let call = |function: &[u8], method: &[u8]| [function, HISTORY, method, b"\x86R"].concat();
        for method in ["min", "max", "current", "mean"] {
            let body = call(&getattr, &text(method));
            let bytes = pickle(&body);
            let read = read(&bytes).unwrap();
            assert_eq!(
                read.kind(read.root),
                format!("the method mmengine.logging.history_buffer.HistoryBuffer.{method}")
            );
        }
        // Python remembers the function and calls it again; Python 2 has strings of bytes.
        let again =
            [b"](", &getattr[..], b"q\x00", HISTORY, &text("min"), b"\x86R", &call(b"h\x00", &text("max"))];
        read_pickle(&[&again.concat()[..], b"e"].concat()).unwrap();
        read_pickle(&call(&stack_global, &string(b'T', b"mean"))).unwrap();

        let min = &text("min")[..];
        let refused: [Vec<u8>; 24] = [
            [&getattr[..], b"0N"].concat(),
            getattr.clone(),
            [&getattr[..], b"N"].concat(),
            [&getattr[..], b"q\x000"].concat(),
            [b"]", &getattr[..], b"a"].concat(),
            [b"}", &getattr[..], b"Ns"].concat(),
            [b"}N", &getattr[..], b"s"].concat(),
            [&getattr[..], b"\x85"].concat(),
            [b"(", &getattr[..], b"t"].concat(),
            [b"(", &getattr[..], b"1N"].concat(),
            [b"(", &getattr[..], b"l"].concat(),
            [&getattr[..], b"2"].concat(),
            [&getattr[..], b"}b"].concat(),
            [&getattr[..], b"Na"].concat(),
            [&getattr[..], b"Q"].concat(),
            [&getattr[..], b")R"].concat(),
            [&getattr[..], HISTORY, min, b"]\x87R"].concat(),
            [&getattr[..], HISTORY, min, b"\x86\x81"].concat(),
            [&getattr[..], HISTORY, min, b"\x86}\x92"].concat(),
            [b"(", &getattr[..], HISTORY, min, b"o"].concat(),
            call(&getattr, &text("__init__")),
            call(&getattr, &text("min.__globals__")),
            [&getattr[..], b"cmmengine.logging\nMMLogger\n", min, b"\x86R"].concat(),
            // The result of a call is not the class.
            [&getattr[..], &call(&getattr, min), &text("max"), b"\x86R"].concat(),
        ];
        for body in refused {
            let message = read_pickle(&body).unwrap_err();
            let wanted = format!(
                "tries to execute {module}.getattr; this is not a checkpoint to trust; nothing was executed"
            );
            assert_eq!(message, wanted, "{:?}", String::from_utf8_lossy(&body));
        }
        for other in [format!("c{module}\ngetattr.__call__\n"), format!("(i{module}\ngetattr\n")] {
            assert!(read_pickle(other.as_bytes()).unwrap_err().contains("tries to execute"));
        }
    }
}

fn read_pickle(body: &[u8]) -> Result<(), String> {
    read(&pickle(body)).map(drop)
}

/// A type of numpy.
fn dtype(code: &str, order: &str) -> Vec<u8> {
    let state = b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb";
    [b"cnumpy\ndtype\n", &text(code)[..], b"\x89\x88\x87R(K\x03", &text(order), state].concat()
}

/// An array that is rebuilt from a state.
fn array(shape: &[u8], dtype: &[u8], fortran: bool, values: &[u8]) -> Vec<u8> {
    let empty = b"cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01";
    [empty, shape, dtype, &[0x89 - u8::from(fortran)], values, b"tb"].concat()
}

/// An array of protocol 5.
fn buffer(values: &[u8], dtype: &[u8], shape: &[u8], order: &str, axes: &[u8]) -> Vec<u8> {
    let function = b"cnumpy.core.numeric\n_frombuffer\n(";
    [function, values, dtype, shape, &text(order), axes, b"tR"].concat()
}

/// The values of the array that the pickle holds, row-major.
fn values(body: &[u8]) -> Result<(Vec<usize>, Vec<f32>), String> {
    let bytes = pickle(body);
    let read = read(&bytes)?;
    let Object::Array(array) = read.get(read.root) else { panic!("{}", read.kind(read.root)) };
    let tensor = read.array(array)?.to_f32()?;
    Ok((tensor.shape, tensor.data))
}

/// The numbers from 0 in f32. Their bytes are those of the characters in `latin1` too, two bytes each from
/// 0x80 on.
fn numbers(count: u8) -> Vec<u8> {
    (0..count).flat_map(|value| f32::from(value).to_le_bytes()).collect()
}

fn latin1(bytes: &[u8]) -> Vec<u8> {
    let characters: String = bytes.iter().map(|&byte| char::from(byte)).collect();
    [b"c_codecs\nencode\n", &text(&characters)[..], &text("latin1"), b"\x86R"].concat()
}

const SHAPE: &[u8] = b"K\x02K\x03\x86";

#[test]
fn arrays_of_numpy_are_read_in_every_form() {
    let (bytes, f4) = (numbers(6), dtype("f4", "<"));
    let rows = (vec![2, 3], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let columns = (vec![2, 3], vec![0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
    let eight = |opcode| [&[opcode], &24u64.to_le_bytes()[..], &bytes].concat();
    let python2 = string(b'T', &bytes);
    for stored in [string(b'B', &bytes), eight(0x8e), eight(0x96), latin1(&bytes), python2] {
        assert_eq!(values(&array(SHAPE, &f4, false, &stored)).unwrap(), rows);
        assert_eq!(values(&array(SHAPE, &f4, true, &stored)).unwrap(), columns);
        assert_eq!(values(&buffer(&stored, &f4, SHAPE, "C", b"")).unwrap(), rows);
        assert_eq!(values(&buffer(&stored, &f4, SHAPE, "F", b"")).unwrap(), columns);
        let turned = values(&buffer(&stored, &f4, SHAPE, "K", b"K\x01K\x00\x86")).unwrap();
        assert_eq!(turned, (vec![3, 2], vec![0.0, 3.0, 1.0, 4.0, 2.0, 5.0]));
    }
    let half = string(b'B', &[0x00, 0x3e, 0x00, 0xc0]);
    assert_eq!(values(&array(b"K\x02\x85", &dtype("f2", "<"), false, &half)).unwrap().1, [1.5, -2.0]);
    let double = string(b'B', &(-0.25f64).to_le_bytes());
    assert_eq!(values(&array(b")", &dtype("f8", "<"), false, &double)).unwrap(), (vec![], vec![-0.25]));
    let empty = b"c__builtin__\nbytes\n)R";
    assert_eq!(values(&array(b"K\x00K\x05\x86", &f4, false, empty)).unwrap(), (vec![0, 5], vec![]));
}

#[test]
fn arrays_that_are_no_numbers_or_lie_are_refused() {
    let (stored, f4) = (string(b'B', &numbers(6)), dtype("f4", "<"));
    let typed = |code, order| array(SHAPE, &dtype(code, order), false, &stored);
    let shaped = |shape| array(shape, &f4, false, &stored);
    let structure =
        b"cnumpy\ndtype\nX\x02\x00\x00\x00V4\x89\x88\x87R(K\x03X\x01\x00\x00\x00|N)}K\x04K\x01K\x10tb";
    let order = |order: &str, axes: &[u8]| buffer(&stored, &f4, SHAPE, order, axes);
    let beyond: Vec<u8> =
        [b"c_codecs\nencode\n", &text("0123456789abcdefghijklm\u{100}")[..], &text("latin1"), b"\x86R"]
            .concat();
    let cases: [(Vec<u8>, &str); 27] = [
        (typed("O8", "|"), "an array of Python objects"),
        (typed("f4", ">"), "is big-endian; save array.astype('<f4')"),
        (typed("f4", "|"), "byte order"),
        (typed("f4", "="), "byte order"),
        (typed("V4", "|"), "numpy's type V4, not of numbers"),
        (typed("S4", "|"), "numpy's type S4"),
        (typed("f16", "<"), "numpy's type f16"),
        (typed("i8", "<"), "has 24 bytes of values, which is wrong for its shape [2, 3]"),
        (array(SHAPE, structure, false, &stored), "an array of structures"),
        (
            array(SHAPE, b"cnumpy\ndtype\nX\x02\x00\x00\x00f4\x85R", false, &stored),
            "type is not one of numpy",
        ),
        (array(SHAPE, b"N", false, &stored), "type is not one of numpy"),
        (shaped(b"K\x02K\x04\x86"), "24 bytes of values"),
        (shaped(b"K\x05\x85"), "24 bytes of values"),
        (shaped(b"K\x00\x85"), "24 bytes of values"),
        (shaped(b"J\xfe\xff\xff\xffJ\xfd\xff\xff\xff\x86"), "whole numbers"),
        (shaped(b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x40\x8a\x01\x08\x86"), "24 bytes of values"),
        (shaped(b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x40\x01\x85"), "whole numbers"),
        (shaped(b"K\x06"), "whole numbers"),
        (array(SHAPE, &f4, false, b"](NNe"), "whose values are a list, not bytes"),
        (array(SHAPE, &f4, false, &text("0123456789abcdefghijklmn")), "whose values are a string"),
        (array(SHAPE, &f4, false, &latin1(&[0xff; 23])), "23 bytes of values"),
        (array(SHAPE, &f4, false, &beyond), "not Latin-1"),
        (order("A", b""), "not stored as numpy stores"),
        (order("K", b""), "not stored as numpy stores"),
        (order("K", b"K\x00K\x00\x86"), "order of its axes"),
        (
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R".to_vec(),
            "has no values",
        ),
        (
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R)b".to_vec(),
            "not stored as numpy",
        ),
    ];
    for (body, part) in cases {
        let message = values(&body).unwrap_err();
        assert!(message.contains(part), "{part}: {message}");
    }
    // Integers have a size, but no values that a parameter could have.
    let longs = array(b"K\x03\x85", &dtype("i8", "<"), false, &stored);
    assert!(values(&longs).unwrap_err().contains("parameters are f16"));
}

#[test]
fn values_may_be_large_and_nothing_else() {
    let large = vec![0xff; 65 << 20];
    read_pickle(&string(b'B', &large)).unwrap();
    let ascii = vec![b'a'; 65 << 20];
    read_pickle(&string(b'X', &ascii)).unwrap();
    // A text that is not UTF-8 is copied, and a long number has no use.
    for opcode in [b'X', 0x8b] {
        assert!(read_pickle(&string(opcode, &large)).unwrap_err().contains("more than 67108864 bytes"));
    }
    let line = [b"c", &ascii[..], b"\nname\n"].concat();
    assert!(read_pickle(&line).unwrap_err().contains("more than 67108864 bytes"));
}

#[test]
fn storages_that_pickle_wrote_are_files_of_torch_save() {
    let tensor = |file: &[u8]| {
        let storage = [b"ctorch.storage\n_load_from_bytes\n", file, b"\x85R"].concat();
        [b"ctorch._utils\n_rebuild_tensor_v2\n(", &storage[..], b"K\x00K\x01\x85K\x01\x85\x89NtR"].concat()
    };
    read_pickle(&tensor(b"C\x01x")).unwrap();
    // Before protocol 3 Python writes bytes as a call.
    assert!(read_pickle(&tensor(&latin1(b"xyz"))).unwrap_err().contains("save them with torch.save instead"));
}

/// Parts of pickles that random bytes would not make.
fn parts() -> Vec<Vec<u8>> {
    let opcodes = b"(012hqrjcRio\x81\x92bQaesu\x90]l}d\x8f\x91)t\x85\x86\x87N\x88\x89KMJ\x8a\x8bGUTX\x8c\x8dCB\x8e\x96\x93\x94.\x00\x01\n";
    let texts = ["min", "f4", "<", "latin1", "C", "F", "K", "builtins", "getattr"].map(text);
    let globals: [&[u8]; 9] = [
        b"cbuiltins\ngetattr\n",
        b"c__builtin__\ngetattr\n",
        HISTORY,
        b"cnumpy\nndarray\n",
        b"cnumpy\ndtype\n",
        b"cnumpy.core.multiarray\n_reconstruct\n",
        b"cnumpy._core.numeric\n_frombuffer\n",
        b"c_codecs\nencode\n",
        b"c__builtin__\nbytes\n",
    ];
    let stored = string(b'B', &numbers(6));
    let wholes = [
        dtype("f4", "<"),
        array(SHAPE, &dtype("f4", "<"), true, &stored),
        buffer(&latin1(&numbers(6)), &dtype("f4", "<"), SHAPE, "K", b"K\x01K\x00\x86"),
        SHAPE.to_vec(),
        stored,
        latin1(&numbers(6)),
    ];
    let bytes = opcodes.iter().map(|&byte| vec![byte]);
    bytes.chain(texts).chain(globals.map(<[u8]>::to_vec)).chain(wholes).collect()
}

proptest::proptest! {
    #[test]
    fn random_opcodes_never_panic(
        parts in proptest::collection::vec(proptest::sample::select(parts()), 0..200),
    ) {
        let bytes = pickle(&parts.concat());
        if let Ok(read) = read(&bytes) {
            for object in &read.objects {
                if let Object::Array(array) = object {
                    let _ = read.array(array).map(|tensor| tensor.to_f32());
                }
            }
        }
    }

    /// An array whose bytes are changed here and there is refused or has no more values than bytes.
    #[test]
    fn damaged_arrays_never_panic(
        form in 0usize..3,
        edits in proptest::collection::vec((proptest::prelude::any::<proptest::sample::Index>(), 0u8..=255), 1..4),
    ) {
        let (stored, f4) = (string(b'B', &numbers(6)), dtype("f4", "<"));
        let body = match form {
            0 => array(SHAPE, &f4, true, &stored),
            1 => array(SHAPE, &f4, false, &latin1(&numbers(6))),
            _ => buffer(&stored, &f4, SHAPE, "K", b"K\x01K\x00\x86"),
        };
        let mut bytes = pickle(&body);
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(read) = read(&bytes)
            && let Object::Array(array) = read.get(read.root)
            && let Ok(tensor) = read.array(array)
        {
            proptest::prop_assert!(tensor.elements() <= bytes.len());
            let _ = tensor.to_f32();
        }
    }
}
