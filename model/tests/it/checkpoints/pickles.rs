//! Pickles without torch.save, of arrays of numpy and of tensors; training checkpoints with methods and
//! modules. The files come from `make_pickles.py`.

use super::*;

#[test]
fn arrays_in_a_pickle_are_the_parameters() {
    let (exact, rounded) = (expected("expected.safetensors"), expected("expected_views.safetensors"));
    let files = [
        ("protocol2.pkl", &exact),
        ("protocol3.pkl", &exact),
        ("protocol4.pkl", &exact),
        ("protocol5.pkl", &exact),
        ("python2.pkl", &rounded),
        ("views5.pkl", &rounded),
        ("mmengine.pth", &exact),
        ("mixed.pth", &exact),
        ("torch3.pkl", &exact),
        ("torch4.pkl", &exact),
        ("methods.pth", &exact),
        ("module_legacy.pth", &exact),
    ];
    for (name, wanted) in files {
        let model = load(&format!("pickles/{name}")).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(&model.tensors, wanted, "{name}");
        assert_eq!(model.source.dialect, "microsoft", "{name}");
    }
}

#[test]
fn what_is_no_array_of_numbers_is_refused_by_name() {
    let cases = [
        ("objects.pkl", "`norm.bias`: is an array of Python objects, not of numbers"),
        ("structures.pkl", "`norm.bias`: is an array of structures, not of numbers"),
        ("strings.pkl", "`norm.bias`: is an array of numpy's type U1, not of numbers"),
        ("dates.pkl", "`norm.bias`: is an array of numpy's type M8, not of numbers"),
        ("big_endian.pkl", "`norm.bias`: is big-endian; save array.astype('<f4') instead"),
        ("scalar.pkl", "`norm.bias`: is an object of numpy._core.multiarray.scalar, not a tensor"),
        (
            "torch2.pkl",
            "holds tensors of torch that Python's pickle wrote by a protocol before 3; save them with torch.save instead",
        ),
        ("list.pkl", "holds a list, not a state dictionary; save one with torch.save"),
        ("blobs.pkl", "model_state_dict or at its top level, which holds: blobs, cfg"),
    ];
    for (name, part) in cases {
        let message = refusal(&format!("pickles/{name}"), &options_with(&[]));
        assert!(message.contains(name) && message.contains(part), "{name}: {message}");
    }
}

/// A storage within a pickle is a file of its own, whose faults are found.
#[test]
fn damage_to_a_storage_within_a_pickle_is_found() {
    let whole = fs::read(fixture("pickles/torch4.pkl")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pkl");
    let message = |from: &[u8], to: &[u8]| {
        let at = whole.windows(from.len()).position(|window| window == from).unwrap();
        let mut bytes = whole.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        fs::write(&path, bytes).unwrap();
        load_float(&path, &options_with(&[])).unwrap_err().to_string()
    };
    // The magic number, the type and the place of the storage.
    let magic = message(&[0x6c, 0xfc, 0x9c, 0x46], &[0]);
    assert!(magic.contains("its storage is no file of torch.save that holds a storage alone"), "{magic}");
    let kind = message(b"FloatStorage", b"Fleat");
    assert!(kind.contains("a storage of the unknown type torch.FleatStorage"), "{kind}");
    let attack = message(b"ctorch\nFloatStorage", b"cposix\nsystem ");
    assert!(attack.contains("tries to execute") || attack.contains("damaged"), "{attack}");
}

#[test]
fn damage_to_a_pickle_of_arrays_is_found() {
    let whole = fs::read(fixture("pickles/protocol5.pkl")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pkl");
    let message = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        load_float(&path, &options_with(&[])).unwrap_err().to_string()
    };
    let short = message(&whole[..whole.len() / 2]);
    assert!(
        short.contains("x.pkl: is a truncated or damaged checkpoint (its pickle ends too early)"),
        "{short}"
    );
    let long = message(&[&whole[..], b"x"].concat());
    assert!(long.contains("has 1 bytes after its pickle"), "{long}");
    // The shape of the first array, a bias of five classes.
    let at = whole.windows(3).position(|window| window == b"K\x05\x85").unwrap();
    let mut wrong = whole.clone();
    wrong[at + 1] = 6;
    let wrong = message(&wrong);
    assert!(
        wrong.contains("`head.bias`: is a truncated or damaged array of numpy (it has 20 bytes of values"),
        "{wrong}"
    );
}
