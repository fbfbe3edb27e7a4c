"""Executes a run and judges its manners."""
import hashlib
import os
import re
import resource
import signal
import stat
import struct
import subprocess

from damage import value
from safetensors_files import split_safetensors
from settings import ADDRESS_SPACE, EXIT_CODES, LONGEST_MESSAGE, SECONDS


def listing(folder):
    """What is in `folder`: for each path its kind, size and time, and the hash of small files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        text = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(about.st_mode) and about.st_size < 4 << 20 else ""
        found[str(path.relative_to(folder))] = (stat.S_IFMT(about.st_mode), 0 if path.is_dir() else about.st_size, text)
    return found


def logits(path):
    header, body = split_safetensors(path.read_bytes())
    return header["logits"]["shape"], body


def fault_of_maps(path):
    """What is wrong with a file of feature maps; None if it is whole."""
    data = path.read_bytes()
    try:
        header, body = split_safetensors(data)
        places = sorted(about["data_offsets"] for about in header.values())
        whole = [place[0] for place in places] + [len(body)] == [0] + [place[1] for place in places]
        named = all(re.fullmatch(r"\d+\.stage\d", name) and about["dtype"] == "F32" and len(about["shape"]) == 3 for name, about in header.items())
        finite = all(abs(value) < float("inf") for value in memoryview(body).cast("f"))
    except (ValueError, KeyError, TypeError, struct.error) as error:
        return f"writes maps that cannot be read: {error}"
    return None if places and whole and named and finite else "writes maps that are not whole"


def execute(binary, run, folder):
    """The exit code (None: it hung), standard output and standard error."""
    def limits():
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    arguments = [argument.replace("\0", "") for argument in run.arguments]
    keep = {name: value for name, value in os.environ.items() if name not in ("RUST_BACKTRACE", "SWINQ_ISA")}
    process = subprocess.Popen([binary, *arguments], cwd=folder, env=keep, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=limits, start_new_session=True)
    try:
        out, err = process.communicate(run.stdin or b"", timeout=SECONDS)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        out, err = process.communicate()
        return None, out, err


def judge(run, folder, before, code, out, err, base):
    """The faults of a run, as short texts."""
    faults = []
    text = err.decode("utf-8", "replace")
    # A measurement of large batches says how long it will take, and may take as long.
    if code is None and "takes about" not in text:
        faults.append(f"hangs for {SECONDS} s")
    elif code is not None and code < 0:
        faults.append(f"dies of signal {-code}")
    elif code is not None and code not in EXIT_CODES:
        faults.append(f"exit code {code}")
    if "panicked" in text or "RUST_BACKTRACE" in text:
        faults.append("panics")
    for name, stream in [("error", text), ("output", out.decode("utf-8", "replace"))]:
        raw = {c for c in stream if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160}
        if raw:
            faults.append(f"raw control characters on standard {name}: {sorted(raw)}")
    if code not in (0, None):
        lines = [line.encode() for line in text.splitlines()]
        longest = max([sum(len(line) for line in lines if not line.startswith(b"warning:")), *map(len, lines)])
        if longest > LONGEST_MESSAGE:
            faults.append(f"a message of {longest} bytes")
        if code in (1, 2) and text.count("error:") == 0:
            faults.append("fails without a message")
    after = listing(folder)
    changed = {name for name, about in before.items() if after.get(name) != about}
    allowed = run.outputs if code == 0 else run.keeps
    created = set(after) - set(before) - allowed
    if changed:
        faults.append(f"changes {sorted(changed)}")
    if created and code is not None:
        faults.append(f"leaves {sorted(created)} with exit code {code}")
    if code == 0 and run.refused:
        faults.append("accepts what it must refuse, such as a file outside of its folder")
    for name in sorted(run.outputs) if run.maps else []:
        fault = fault_of_maps(folder / name) if (folder / name).is_file() else None
        faults += [fault] if fault else []
    if code == 0:
        missing = run.outputs - set(after)
        if missing - {"out.ranges.json"}:
            faults.append(f"succeeds without writing {sorted(missing)}")
        elif run.same_logits and logits(folder / "logits.safetensors") != base.logits:
            faults.append("accepts a damaged checkpoint that gives other logits")
    return faults
