use super::*;

/// A pickle of protocol 2 with this body.
fn pickle(body: &[u8]) -> Vec<u8> {
    [b"\x80\x02", body, b"."].concat()
}

#[test]
fn scalars_and_containers() {
    let body = b"(K\x07M\x01\x02J\xfe\xff\xff\xff\x8a\x01\x80\x8a\x00X\x02\x00\x00\x00abN\x88)\x86t";
    let read = read(&pickle(body)).unwrap();
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
    let read_circle = read(&pickle(b"]q\x00h\x00a")).unwrap();
    let Object::List(items) = read_circle.get(read_circle.root) else { panic!() };
    assert_eq!(items[..], [read_circle.root]);
    let deep = [vec![b']'; 1_000_000], vec![b'a'; 999_999]].concat();
    drop(read(&pickle(&deep)).unwrap());
}

#[test]
fn unknown_classes_become_opaque() {
    let body = b"cyacs.config\nCfgNode\n)\x81}(X\x01\x00\x00\x00aK\x01ub";
    let read = read(&pickle(body)).unwrap();
    assert_eq!(read.kind(read.root), "an object of yacs.config.CfgNode");
}

#[test]
fn attacks_are_refused_by_name() {
    let bodies: [(&[u8], &str); 8] = [
        (b"cos\nsystem\nX\x02\x00\x00\x00ls\x85R", "os.system"),
        (b"cposix\nsystem\nX\x02\x00\x00\x00ls\x85R", "posix.system"),
        (b"cbuiltins\neval\nX\x01\x00\x00\x001\x85R", "builtins.eval"),
        (b"c__builtin__\ngetattr\n0", "__builtin__.getattr"),
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

proptest::proptest! {
    #[test]
    fn random_opcodes_never_panic(body in proptest::collection::vec(proptest::sample::select(
        b"(012hqrjcR\x81\x92bQaesu\x90]l}d\x8f\x91)t\x85\x86\x87N\x88\x89KMJ\x8a\x8bGUX\x8c\x8dCB\x8e\x96\x93\x94.\x00\x01\n".as_slice(),
    ), 0..200)) {
        let _ = read(&pickle(&body));
    }
}
