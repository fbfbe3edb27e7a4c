"""Damaged YAML."""
import json

from damage import damage, number, value
from settings import WORDS


def hostile_yaml(rng, text, folder):
    lines = text.splitlines()
    depth = rng.choice([100, 10_000, 300_000])
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 12))
    whole = ["[" * depth, "{a: " * depth, "- " * depth, "".join(" " * k + "a:\n" for k in range(min(depth, 2000))), bomb + text, "? " * depth,
             text + "\n---\n" + text, text + "\n" + text, "&a [*a]", "a: &a {b: *a}", "!!binary AAAA", "!!python/object/apply:os.system ['touch escaped']",
             "\ufeff" + text, "\0", text.replace("\n", "\r"), "%YAML 9.9\n---\n" + text, "'" + "x" * 3_000_000, "", "null", "[]", "3", "x: " + "9" * 100_000,
             "BASE: [/dev/zero]\n" + text, "BASE: ['.']\n" + text, "BASE: [own.yaml]\n" + text, "BASE: [/etc/passwd, /etc/shadow]\n" + text,
             "BASE: [" + "fine.yaml, " * 10_000 + "]\n" + text, "<<: *x\n" + text, "&x\x1b[31m: *y\x1b", "\x1b[2Ja: \x07", "a\u0085b\u009b31m: 1"]
    kind = rng.randrange(6)
    if kind < 2:
        text = rng.choice(whole)
    elif kind == 2:
        return damage(rng, text.encode())
    else:
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = rng.randrange(len(lines))
            key, colon, _ = lines[at].partition(":")
            if colon and rng.random() < 0.8:
                evil = rng.choice([str(number(rng)), json.dumps(value(rng)), ".nan", ".inf", "-.inf", "~", "*x", "!!str 1", "'" + rng.choice(WORDS) + "'",
                                   "[" + "1, " * 1000 + "]", "{" + key.strip() + ": 1}", "0o777", "1_000", "2001-01-01", "|\n  x", str(folder)])
                lines[at] = f"{key}: {evil}"
            else:
                lines.insert(at, rng.choice([lines[at], "\t" + lines[at], "X\x07Y: 1", "? [a]", "- 1", "  " + lines[at], "match: '" + "*" * 300 + "'"]))
        text = "\n".join(lines)
    return text.encode("utf-8", "surrogatepass")
