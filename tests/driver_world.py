"""What a command may be given that it should not be given: numbers, words, files, and runs that are damaged."""

import gzip
import io
import json
import os
import random
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

NUMBERS = [
    "0",
    "-1",
    "1",
    str(2**31),
    str(2**63 - 1),
    str(2**63),
    "1e30",
    "1e308",
    "1e-300",
    "nan",
    "inf",
    "-inf",
    "1.5",
]
WORDS = [
    "",
    "\u2603",
    "x" * 5000,
    "9" * 5000,
    "--",
    "-x",
    "--help=1",
    "0x10",
    "1_0",
    " 1 ",
    "\u0663",
    "null",
    "a\nb",
    "\udcff",
]
BOOK = "the cat sat on the mat\nthe dog sat on the cat and ran\n" * 30
TABLE = "day,sales\n" + "".join(f"2024-01-{d:02d},{10 + d % 7}\n" for d in range(1, 32))
WIDE = "day,a,b\n" + "".join(f"{d},{d},$ 1\n" for d in range(40))


def zipped(members: dict[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


CONTENTS: dict[str, bytes] = {
    "good.csv": TABLE.encode(),
    "book.txt": BOOK.encode(),
    "empty": b"",
    "byte": b"\x01",
    "nuls": bytes(5000),
    "utf16": TABLE.encode("utf-16"),
    "utf16le": TABLE.encode("utf-16-le"),
    "bom": b"\xef\xbb\xbf",
    "latin": b"d,v\n\xe9,1\n" * 40,
    "digits": b"v\n" + b"9" * 400 + b"\n1\n" * 40,
    "huge": ("v\n" + "1e308\n-1e308\n" * 40).encode(),
    "square": ("v\n" + "1e149\n-1e150\n" * 40).encode(),
    "tiny": ("v\n" + "1e-320\n5e-324\n" * 40).encode(),
    "steps": ("v\n" + "".join(f"{10.0**k}\n" for k in range(-60, 60))).encode(),
    "row": b"a,b\n1,2\n",
    "ragged": b"a,b\n1\n1,2,3\n" * 40,
    "quote": b'a,b\n"1,2\n' + b"3,4\n" * 1000,
    "cell": b"a,b\n1," + b"2" * 200_000 + b"\n",
    "commas": b"a" + b"," * 1_000_000 + b"\n1\n",
    "lines": b"\n" * 100_000,
    "same": ("v\n" + "5\n" * 60).encode(),
    "zeros": ("v\n" + "0\n" * 60).encode(),
    "near": WIDE.encode(),
    "pipes": TABLE.replace(",", "|").encode(),
    "shuffled": b"d,v\n2020-01-02,1\n2020-01-01,2\n2020-01-03,3\n" * 20,
    "words": b"a,b\nx,y\n" * 30,
    "excel": zipped({"xl/workbook.xml": "<xml/>"}),
    "office": bytes.fromhex("D0CF11E0A1B11AE1") + bytes(99),
    "parquet": b"PAR1" + bytes(range(256)) + b"PAR1",
    "gzip": gzip.compress(TABLE.encode()),
    "pdf": b"%PDF-1.7\n\xe2\xe3",
    "sqlite": b"SQLite format 3\0" + bytes(84),
    "random": random.Random(0).randbytes(5000),
    "nozip.zip": b"PK\x03\x04" + bytes(99),
    "one.txt": b"word",
    "blank.txt": b" \n\t\n" * 100,
    "line.txt": b"a " * 20_000,
    "marks.txt": "\u202e\u0000".encode()[:3] * 50 + b"\n<eos> <unk>\n" * 30,
    "emoji.txt": ("\U0001f600 " * 9 + "\n").encode() * 30,
}


def link(to: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(to)


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # another /dev/null
    except PermissionError:
        path.symlink_to(os.devnull)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def of_pipes(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "train.txt")


SPECIAL: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "device": device,
    "folder": lambda path: path.mkdir(),
    "dangling": link("nowhere"),
    "loop": link("loop"),
    "to_fifo": link("/proc/self/fd/0"),
    "terabyte": sparse,
    "pipes_inside": of_pipes,
}
NOWHERE = ["nowhere", "x" * 300, "a/" * 3000, "/dev/zero", "/dev/stdin", "/proc/self/mem", "/", ".", "", "\udcff.csv"]
FILES = [*CONTENTS, *SPECIAL, *NOWHERE]


def place(name: str, folder: Path) -> str:
    """Puts it there, if it can be put; -> what to call it by"""
    path = folder / name
    if name in CONTENTS and not path.exists():
        path.write_bytes(CONTENTS[name])
    elif name in SPECIAL and not path.is_symlink() and not path.exists():
        SPECIAL[name](path)
    return name


# --- runs -------------------------------------------------------------------------------------------------------------
Damage = Callable[[Path], None]


def content(name: str, new: bytes) -> Damage:
    return lambda run: (run / name).write_bytes(new) and None


def instead(name: str, make: Callable[[Path], None]) -> Damage:
    def damage(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        make(run / name)

    return damage


def cut(name: str, share: float) -> Damage:
    return lambda run: os.truncate(run / name, int((run / name).stat().st_size * share))


def flipped(name: str, at: float) -> Damage:
    def damage(run: Path) -> None:
        bytes_ = bytearray((run / name).read_bytes())
        for k in range(int(at * len(bytes_)), min(len(bytes_), int(at * len(bytes_)) + 16)):
            bytes_[k] ^= 0xFF
        (run / name).write_bytes(bytes_)

    return damage


def config(**changes: Any) -> Damage:
    def damage(run: Path) -> None:
        found = json.loads((run / "config.json").read_text())
        for name, value in changes.items():
            (found if name in found else found["settings"])[name] = value
        (run / "config.json").write_text(json.dumps(found))

    return damage


def without(*names: str) -> Damage:
    def damage(run: Path) -> None:
        found = json.loads((run / "config.json").read_text())
        for name in names:
            found.pop(name)
        (run / "config.json").write_text(json.dumps(found))

    return damage


def tokens(**changes: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    """With its own header, whatever is in it."""

    def damage(run: Path) -> None:
        path = run / "tokens.safetensors"
        old = path.read_bytes()
        header = json.loads(old[8 : 8 + int.from_bytes(old[:8], "little")])
        found = load(old)
        for name, change in changes.items():
            found[name.replace("_", ".")] = change(found[name.replace("_", ".")]).contiguous()
        path.write_bytes(save(found, header.get("__metadata__")))

    return damage


NESTED = b"[" * 100_000
BROKEN = [
    b"",
    b"{",
    b"[]",
    b"5",
    b"null",
    b'"x"',
    b"{}",
    NESTED,
    b"\xff\xfe",
    b"NaN",
    b"1e999",
    b"[" + b"9" * 5000 + b"]",
]
DAMAGES: dict[str, Damage] = {
    "whole": lambda run: None,
    **{f"config {text[:9]!r}": content("config.json", text) for text in BROKEN},
    **{f"task {v!r}": config(task=v) for v in ([], {}, None, 5, "nope", ["forecast"], "")},
    **{f"settings {v!r}": config(settings=v) for v in ([], "x", None, 5, {}, {"wings": 2})},
    **{f"threads {v!r}": config(threads=v) for v in ("two", None, -1, 10**9, [], 1.5, True)},
    **{f"hidden {v!r}": config(hidden=v) for v in ("4", 2**63, -1, True, None, [], 1e300, 5)},
    **{f"epochs {v!r}": config(epochs=v) for v in ("4", 2**63, None, [])},
    "nested setting": config(cell=[[[]]]),
    "no threads": without("threads"),
    "no settings": without("settings"),
    "no task": without("task"),
    **{
        f"{name} {what}": damage
        for name in ("model.safetensors", "state.safetensors", "tokens.safetensors")
        for what, damage in {
            "empty": content(name, b""),
            "half": cut(name, 0.5),
            "short": cut(name, 0.99),
            "flipped header": flipped(name, 0.02),
            "flipped middle": flipped(name, 0.6),
            "flipped end": flipped(name, 0.99),
            "endless header": content(name, (2**62).to_bytes(8, "little") + b"{}"),
            "nested header": content(name, len(NESTED).to_bytes(8, "little") + NESTED),
            "no header": content(name, (2).to_bytes(8, "little") + b"{}"),
            "fifo": instead(name, os.mkfifo),
            "folder": instead(name, lambda path: path.mkdir()),
            "gone": instead(name, lambda path: None),
            "loop": instead(name, lambda path: path.symlink_to(path.name)),
        }.items()
    },
    **{
        f"config {what}": instead("config.json", SPECIAL[what])
        for what in ("fifo", "folder", "dangling", "loop", "device")
    },
    **{f"vocabulary {text[:9]!r}": content("vocabulary.json", text) for text in BROKEN},
    "vocabulary of numbers": content("vocabulary.json", b'{"level": "word", "words": [1, 2]}'),
    "vocabulary twice": content("vocabulary.json", b'{"level": "word", "words": ["a", "a", "<unk>", "<eos>"]}'),
    "vocabulary short": content("vocabulary.json", b'{"level": "word", "words": ["<unk>", "<eos>"]}'),
    "vocabulary fifo": instead("vocabulary.json", os.mkfifo),
    "tokens 2-D": tokens(train_ids=lambda t: t.reshape(1, -1), valid_ids=lambda t: t.reshape(1, -1)),
    "tokens empty": tokens(train_ids=lambda t: t[:0], valid_ids=lambda t: t[:0], test_ids=lambda t: t[:0]),
    "tokens negative": tokens(train_ids=lambda t: -1 - t, test_ids=lambda t: -1 - t),
    "tokens out of range": tokens(valid_ids=lambda t: t + 10_000, test_ids=lambda t: t + 2**30),
    "tokens float": tokens(train_ids=lambda t: t.float(), test_ids=lambda t: t.float() + 0.5),
    "starts wrong": tokens(train_starts=lambda t: t.flip(0), test_starts=lambda t: t * 1000),
    **{
        f"series {name}": content("series.csv", CONTENTS[name])
        for name in ("empty", "nuls", "utf16", "huge", "quote", "words")
    },
    "series fifo": instead("series.csv", os.mkfifo),
    "history broken": content("history.json", b"{"),
    "history folder": instead("history.json", lambda path: path.mkdir()),
}


def damages(task: str) -> list[str]:
    """Those that a run of the task can have."""
    others = ("tokens", "starts", "vocabulary") if task == "forecast" else ("series",)
    return [how for how in DAMAGES if not how.startswith(others)]


def damaged(run: Path, how: str, folder: Path) -> str:
    """A copy of a run, damaged; -> its name"""
    shutil.copytree(run, folder / "run")
    DAMAGES[how](folder / "run")
    return "run"
