"""Paths, limits and values that the runs share."""
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "samples"
FLOAT = SAMPLE / "swin_micro_cifar10" / "model.safetensors"
CFG = SAMPLE / "swin_micro_cifar10" / "cfg.yaml"
DATA = SAMPLE / "cifar10"
SECONDS = 10
ADDRESS_SPACE = 4 << 30
LONGEST_MESSAGE = 4096
EXIT_CODES = {0, 1, 2, 3, 4}
NUMBERS = [0, 1, -1, 2, 3, 7, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1,
           2**63, 2**64 - 1, 2**64, 10**30, -(2**31), -(2**63), 0.5, 1e-45, 1e38, 1e39, 1e308, -1e308]
WORDS = ["", " ", "NaN", "nan", "inf", "-inf", "-1", "0", "1", "1e9", "1e400", "0x10", "99999999999999999999", "18446744073709551615",
         "4294967296", "1000000", "0.0", "-0", "٣", "\u202e", "a\x1b[31mb", "a\nb", "\x07", "x" * 3000, "**", "re:(", "re:" + "(a*)*" * 50,
         "{" * 60, "[" * 60, "cuda", "cuda:99", "cuda:-1", "/", ".", "..", "../..", "~", "-", "--", "%s%n", "null", "true"]
