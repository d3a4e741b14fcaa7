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

from plait.training.files import read_plain
from plait.training.run import config_file, sha256
from plait.training.tensors import dumps, loads

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


def tensors(
    file: str, change: Callable[[torch.Tensor], torch.Tensor | None], *starts: str, text: dict[str, Any] | None = None
) -> Damage:
    """Some of its tensors, or all of them, otherwise (None: gone), and some of its text; with a checksum that fits."""

    def damage(run: Path) -> None:
        path = run / f"{file}.safetensors"
        found, about = loads(path)
        changed = {name: change(t) if name.startswith(starts or ("",)) else t for name, t in found.items()}
        path.write_bytes(dumps({name: t for name, t in changed.items() if t is not None}, {**about, **(text or {})}))

    return damage


def about(file: str, text: Any) -> Damage:
    """Another text; with a checksum that fits."""
    return lambda run: (run / f"{file}.safetensors").write_bytes(dumps(loads(run / f"{file}.safetensors")[0], text))


def same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def sealed(damage: Damage) -> Damage:
    """The same, and the run's checksums fit: what is behind them must hold by itself."""

    def both(run: Path) -> None:
        damage(run)
        found = json.loads((run / "config.json").read_text())
        if isinstance(found.get("data"), dict):
            found["data"] = {name: sha256(read_plain(run / name)) for name in found["data"]}
        (run / "config.json").write_bytes(config_file(found))

    return both


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
SEALED: dict[str, Damage] = {
    **{f"task {v!r}": config(task=v) for v in ([], {}, None, 5, "nope", ["forecast"], "")},
    **{f"settings {v!r}": config(settings=v) for v in ([], "x", None, 5, {}, {"wings": 2})},
    **{f"threads {v!r}": config(threads=v) for v in ("two", None, -1, 10**9, [], 1.5, True)},
    **{f"hidden {v!r}": config(hidden=v) for v in ("4", 2**63, -1, True, None, [], 1e300, 5)},
    **{f"epochs {v!r}": config(epochs=v) for v in ("4", 2**63, None, [])},
    **{f"data of the run {v!r}": config(data=v) for v in ([], {}, None, 5)},
    "nested setting": config(cell=[[[]]]),
    "layers 2": config(layers=2),
    "cell rnn": config(cell="rnn"),
    "no threads": without("threads"),
    "no settings": without("settings"),
    "no task": without("task"),
    **{f"vocabulary {text[:9]!r}": content("vocabulary.json", text) for text in BROKEN},
    "vocabulary of numbers": content("vocabulary.json", b'{"level": "word", "words": [1, 2]}'),
    "vocabulary twice": content("vocabulary.json", b'{"level": "word", "words": ["a", "a", "<unk>", "<eos>"]}'),
    "vocabulary short": content("vocabulary.json", b'{"level": "word", "words": ["<unk>", "<eos>"]}'),
    "vocabulary of letters": content("vocabulary.json", b'{"level": "char", "words": ["a", "<unk>", "\\n"]}'),
    "vocabulary of lists": content("vocabulary.json", b'{"level": [], "words": ["a", "<unk>", "<eos>"]}'),
    "tokens 2-D": tensors("tokens", lambda t: t.reshape(1, -1), "train.ids"),
    "tokens empty": tensors("tokens", lambda t: t[:0]),
    "tokens negative": tensors("tokens", lambda t: -1 - t, "train.ids", "test.ids"),
    "tokens out of range": tensors("tokens", lambda t: t + 2**30, "valid.ids"),
    "tokens float": tensors("tokens", lambda t: t.float(), "test.ids"),
    "tokens gone": tensors("tokens", lambda t: None, "train"),
    "tokens all gone": tensors("tokens", lambda t: None),
    **{f"tokens with {v!r}": about("tokens", v) for v in ([], 5, {})},
    **{f"tokens with {v!r} unknown": tensors("tokens", same, text={"valid": v}) for v in (-1, "x", None, 10**9, 1.5)},
    "starts wrong": tensors("tokens", lambda t: t.flip(0), "train.starts"),
    "starts far": tensors("tokens", lambda t: t * 1000, "test.starts"),
    "starts float": tensors("tokens", lambda t: t.double(), "train.starts"),
    "starts none": tensors("tokens", lambda t: t[:0], "valid.starts"),
    **{
        f"series {name}": content("series.csv", CONTENTS[name])
        for name in (
            "empty",
            "byte",
            "nuls",
            "utf16",
            "huge",
            "quote",
            "words",
            "same",
            "zeros",
            "row",
            "steps",
            "square",
        )
    },
    "series short": content("series.csv", b"label,v\na,1\n"),
    "series negative": content("series.csv", b"label,v\n" + b"a,-1\nb,2\n" * 72),
    **{
        f"{file}.safetensors {what}": damage
        for file in ("model", "state")
        for what, damage in {
            "nan": tensors(file, lambda t: t * float("nan") if t.is_floating_point() else t),
            "short": tensors(file, lambda t: t[:1] if t.dim() else t),
            "2-D": tensors(file, lambda t: t[None]),
            "float64": tensors(file, lambda t: t.double()),
            "none": tensors(file, lambda t: t.flatten()[:0]),
            "gone": tensors(file, lambda t: None),
            **{f"with {v!r}": about(file, v) for v in ([], 5, {})},
        }.items()
    },
    **{
        f"state.safetensors, its {part} {what}": tensors("state", change, part)
        for part in ("carried", "optimizer", "random")
        for what, change in {
            "short": lambda t: t[:1] if t.dim() else t,
            "2-D": lambda t: t[None],
            "float64": lambda t: t.double(),
            "gone": lambda t: None,
        }.items()
    },
    **{
        f"state.safetensors, its {part} {v!r}": tensors("state", same, text={part: v})
        for part in ("belongs_to", "progress", "groups", "schedule", "random")
        for v in ([], {}, None, 5, [1, 2])
    },
}
DAMAGES: dict[str, Damage] = {
    "whole": lambda run: None,
    **{f"{name}, sealed": sealed(damage) for name, damage in SEALED.items()},
    **{f"config {text[:9]!r}": content("config.json", text) for text in BROKEN},
    "hidden 5": config(hidden=5),
    "threads 'two'": config(threads="two"),
    "no settings": without("settings"),
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
    "vocabulary twice": SEALED["vocabulary twice"],
    "vocabulary fifo": instead("vocabulary.json", os.mkfifo),
    "tokens negative": SEALED["tokens negative"],
    "series huge": SEALED["series huge"],
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


# --- outputs that lead into a run ---------------------------------------------------------------------------------
RUN_FILES = [
    "config.json",
    "history.json",
    "model.safetensors",
    "state.safetensors",
    "series.csv",
    "tokens.safetensors",
]
SPELLED = [  # of the file F of the run
    "run/{F}",
    "run/../run/{F}",
    "./run//{F}",
    "run/{F}/",
    "run/{F}/.",
    "run/nowhere/../{F}",
    "{here}/run/{F}",
    "/proc/self/cwd/run/{F}",
    "into/{F}",
    "soft{end}",
    "softer{end}",
    "far{end}",
    "hard{end}",
]
MAY_BE_WRITTEN = ["run/new{end}", "into/new{end}", "run/future.png"]


def leading_into(folder: Path, file: str, spelled: str, end: str) -> str:
    """Links to a file of the run in a folder, and a way to spell it; -> that. end: of names that are free"""
    links = {
        "into": "run",
        f"soft{end}": f"run/{file}",
        f"softer{end}": f"soft{end}",
        f"far{end}": f"{folder}/run/{file}",
    }
    for name, to in links.items():
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(to)
    if (folder / "run" / file).is_file() and not (folder / f"hard{end}").exists():
        os.link(folder / "run" / file, folder / f"hard{end}")
    return spelled.format(F=file, here=folder, end=end)
