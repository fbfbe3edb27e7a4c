//! Classes and functions that no checkpoint needs and that attacks use.

/// Modules whose every member marks an attack.
const MODULES: &[&str] = &[
    "os",
    "posix",
    "nt",
    "posixpath",
    "ntpath",
    "subprocess",
    "popen2",
    "commands",
    "sys",
    "runpy",
    "importlib",
    "imp",
    "pkgutil",
    "shutil",
    "socket",
    "ssl",
    "http",
    "urllib",
    "urllib2",
    "ftplib",
    "smtplib",
    "requests",
    "webbrowser",
    "pty",
    "code",
    "codeop",
    "ctypes",
    "_ctypes",
    "marshal",
    "pickle",
    "_pickle",
    "cPickle",
    "shelve",
    "timeit",
    "pdb",
    "bdb",
    "trace",
    "cProfile",
    "profile",
    "signal",
    "asyncio",
    "multiprocessing",
    "threading",
    "_thread",
    "tempfile",
    "atexit",
    "gc",
    "inspect",
    "platform",
    "pip",
    "setuptools",
    "distutils",
];

/// Dangerous members of modules that are otherwise harmless.
const MEMBERS: &[(&str, &[&str])] = &[
    ("builtins", BUILTINS),
    ("__builtin__", BUILTINS),
    ("io", &["open", "open_code", "FileIO"]),
    ("_io", &["open", "open_code", "FileIO"]),
    ("types", &["CodeType", "FunctionType"]),
    ("operator", &["attrgetter", "methodcaller"]),
    ("functools", &["reduce"]),
    ("torch", &["load", "compile"]),
    ("torch.serialization", &["load"]),
    ("torch.hub", &["load", "download_url_to_file", "load_state_dict_from_url"]),
    ("numpy", &["load", "fromfile"]),
];

const BUILTINS: &[&str] = &[
    "eval",
    "exec",
    "execfile",
    "compile",
    "__import__",
    "getattr",
    "setattr",
    "delattr",
    "open",
    "file",
    "input",
    "raw_input",
    "apply",
    "globals",
    "locals",
    "vars",
    "breakpoint",
    "help",
    "exit",
    "quit",
];

/// Whether a pickle that names `module.name` must be refused.
pub(super) fn is_dangerous(module: &str, name: &str) -> bool {
    // A name may be a dotted path of attributes, so its first part decides.
    let first = module.split('.').next().unwrap_or(module);
    let member = name.split('.').next().unwrap_or(name);
    MODULES.contains(&first)
        || MEMBERS.iter().any(|(owner, members)| *owner == module && members.contains(&member))
        || name
            .split('.')
            .any(|part| matches!(part, "__globals__" | "__builtins__" | "__subclasses__" | "__code__"))
}

/// The error for a pickle that names the dangerous `function`.
pub(super) fn refusal(function: &str) -> String {
    format!("tries to execute {function}; this is not a checkpoint to trust; nothing was executed")
}
