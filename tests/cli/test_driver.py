"""Whatever is typed: exit code 0 or 2, one sentence, no traceback, no hang, little memory, and no file lost."""

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest

from driver import Case, Server
from driver_world import (
    BOOK,
    FILES,
    MAY_BE_WRITTEN,
    NUMBERS,
    RUN_FILES,
    SPELLED,
    WORDS,
    damaged,
    damages,
    leading_into,
    place,
)
from processes import needs_fork

pytestmark = needs_fork
SLICES, CASES, AT_ONCE = 12, 250, 2  # 3,000 command lines in all
FORECAST = ("train", "forecast", "--epochs", "1", "--hidden", "4")
LANGUAGE = ("train", "language", "--epochs", "1", "--hidden", "4", "--layers", "1", "--batch", "4", "--steps", "5")
BENCH = {  # commands that are quick, and their options
    "loop --steps 6": "steps",
    "layers --shapes 1,2,1,2,1 --cells rnn": "shapes cells random engine",
    "phases --shapes 1,2,1,2,1 --cells rnn": "shapes cells task",
    "ragged --data book.txt --cells rnn --batch 2 --hidden 2 --draws 1": "data cells batch hidden draws",
    "bucketing --data book.txt --layers 1 --hidden 2 --embedding 2 --batch 4 --sentences 0": (
        "data layers hidden embedding batch sentences engine"
    ),
    "language --data book.txt --hidden 2 --layers 1 --batch 2 --steps 2 --count 1": (
        "data cell hidden layers batch steps softmax count"
    ),
    "functions --bound 1e-3 --step 1000000": "bound step",
    "batch --size 0": "cell engine",
    "schedule --size 0": "cell batch steps",
}
TRAINING = [
    "epochs",
    "batch",
    "optimizer",
    "lr",
    "momentum",
    "weight-decay",
    "clip",
    "schedule",
    "decay",
    "decay-after",
    "patience",
    "save-every",
    "seed",
    "cell",
    "hidden",
    "layers",
    "dropout",
    "engine",
    "threads",
]
OF_FORECAST = [
    *TRAINING,
    *["column", "missing", "window", "horizon", "season", "scale", "test", "validation", "decoder"],
]
OF_LANGUAGE = [
    *TRAINING,
    *["level", "min-count", "validation", "test", "by", "steps", "buckets", "embedding", "softmax", "init"],
]
GOOD = {  # values that are known, where a random word would never be
    "optimizer": ["sgd", "adam", "adamw"],
    "schedule": ["cosine", "step", "plateau", "decay"],
    "cell": ["rnn", "gru", "lstm"],
    "engine": ["auto", "torch", "numpy", "fused"],
    "decoder": ["seq2seq", "recursive"],
    "scale": ["log", "linear"],
    "missing": ["interpolate"],
    "batch": ["full", "2"],
    "by": ["sentences"],
    "level": ["char"],
    "buckets": ["none", "greedy", "optimal:3", "optimal:9999999999", "pool:9999999999", "8,16", "9999999999", "0"],
    "softmax": ["adaptive", "full"],
    "shapes": ["1,1,1,1,1", "99999,99999,1,1,1", "1,1,99999,99999,99", "0,0,0,0,0", "1,2", " "],
    "cells": ["gru", "lstm,,rnn", ","],
    "task": ["rotate"],
}
OUTPUTS = ["new", "", ".", "..", "/", "x" * 300, "a/b", "full", "file", "\u2603", "dangling", "loop", "file/below"]
JSONS = ["-", "new.json", "", ".", "x" * 300, "no/such.json", "folder", "device", "fifo", "link.json", "dangling"]
PICTURES = ["new.png", "new.jpg", "", ".", "x" * 300 + ".png", "no/such.png", "device.png", "fifo.png", "link.png"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, Path]]]:
    """A server, and two tiny runs."""
    home = tmp_path_factory.mktemp("runs")
    (home / "book.txt").write_text(BOOK)
    with Server() as server:
        for args in ((*FORECAST, "--out", "forecast"), (*LANGUAGE, "--data", "book.txt", "--out", "language")):
            ended = server.run(args, home, 120)  # it may compile
            assert ended.code == 0, ended.err
        yield server, {name: home / name for name in ("forecast", "language")}


class Maker:
    def __init__(self, folder: Path, runs: dict[str, Path], seed: int) -> None:
        self.folder, self.runs, self.random, self.count = folder, runs, random.Random(seed), 0

    def case(self) -> Case:
        self.count += 1
        self.here = self.folder / f"case{self.count}"
        self.here.mkdir()
        self.writes: list[str] = []
        kinds = (self.forecast, self.language, self.run, self.bench, self.small, self.typo)
        (kind,) = self.random.choices(kinds, weights=(30, 22, 30, 6, 6, 6))
        return Case(kind(), self.here, self.writes)

    def value(self, option: str) -> str:
        known = GOOD.get(option, [])
        return self.random.choice([*NUMBERS, *WORDS, *(4 * known)])

    def options(self, names: list[str]) -> list[str]:
        """One option or two, with values that are mostly wrong."""
        found = []
        for option in self.random.sample(names, min(len(names), self.random.choice((1, 1, 2)))):
            value = self.value(option)
            found += [f"--{option}={value}"] if self.random.random() < 0.5 else [f"--{option}", value]
        return found

    def output(self, option: str, names: list[str]) -> list[str]:
        name = self.random.choice(names)
        if name in ("full", "folder"):
            (self.here / name).mkdir()
            (self.here / name / "kept").write_text("kept")
        if name.startswith("file"):
            (self.here / "file").write_text("kept")
        for kind in ("device", "fifo", "dangling", "loop"):
            if name.split(".")[0] == kind:
                place(kind, self.here)
                (self.here / kind).rename(self.here / name)
        if name.startswith("link."):
            (self.here / "target").write_text("old")
            (self.here / name).symlink_to("target")
            self.writes.append("target")
        if option == "--out" and name == ".":
            self.writes.append(".")  # it is empty: a run may be made of it
        elif name not in ("full", "folder", "file", "file/below", ".", "", "..", "/"):
            self.writes.append(name.split("/")[0])
        self.writes += ["nowhere"] if name == "dangling" else []
        return [option, name]

    def into_a_run(self, option: str, run: str | None = None) -> list[str]:
        """An output that is a file of a run, or nearly. run: one that is there already"""
        if run is None:
            run = damaged(self.runs[self.random.choice(list(self.runs))], "whole", self.here)
        end = ".png" if option == "--picture" else ".json"
        file, spelled = self.random.choice(RUN_FILES), self.random.choice([*SPELLED, *MAY_BE_WRITTEN])
        name = leading_into(self.here, file, spelled, end)
        if spelled in MAY_BE_WRITTEN:
            self.writes.append(name.replace("into/", "run/"))
        elif spelled == "hard{end}" or not (self.here / "run" / file).exists():
            self.writes.append(name)  # a name of its own, if another run is read; and no file of a run of this task
        return [option, name]

    def training(self, args: tuple[str, ...], names: list[str], good: str | None) -> list[str]:
        what, found = self.random.random(), [*args]
        if what < 0.55:
            found += ["--data", place(good, self.here)] if good else []
            found += self.options(names)
        elif what < 0.85:
            found += ["--data", place(self.random.choice(FILES), self.here)]
            found += ["--window", "2", "--horizon", "2"] if self.random.random() < 0.5 and "window" in names else []
        else:
            found += ["--data", place(good, self.here)] if good else []
            option, names = self.random.choice((("--out", OUTPUTS), ("--json", JSONS)))
            found += self.into_a_run(option) if self.random.random() < 0.3 else self.output(option, names)
        return found

    def forecast(self) -> list[str]:
        return self.training(FORECAST, OF_FORECAST, None)

    def language(self) -> list[str]:
        return self.training(LANGUAGE, OF_LANGUAGE, "book.txt")

    def run(self) -> list[str]:
        """A run, whole or damaged, and what can be done with it."""
        task = self.random.choice(list(self.runs))
        how = "whole" if self.random.random() < 0.3 else self.random.choice(damages(task))
        name = damaged(self.runs[task], how, self.here)
        use = "forecast" if task == "forecast" else "generate"
        verb = self.random.choice((use, use, "evaluate", "resume"))
        if verb == "resume":
            self.writes.append(name)
            more = ["--epochs", "2"] if self.random.random() < 0.5 else []
            return ["train", task, "--resume", name, *(more if how != "whole" else self.options(TRAINING))]
        found = [verb, name]
        if verb == "forecast":
            self.writes.append(f"{name}/future.png")
            found += ["--steps", "2"]
        if how == "whole" and verb != "evaluate":
            names = {
                "forecast": ["steps", "threads"],
                "generate": ["length", "temperature", "top", "seed", "prompt", "threads"],
            }
            found += self.options(names[verb])
        elif verb == "generate":
            found += ["--length", "3"]
        if self.random.random() < 0.3:
            return found + self.into_a_run(
                "--picture" if verb == "forecast" and self.random.random() < 0.4 else "--json", name
            )
        if how == "whole" and self.random.random() < 0.5:
            other = [("--json", JSONS)]
            if verb == "forecast":
                other += [("--picture", PICTURES), ("--data", FILES)]
            option, values = self.random.choice(other)
            if option == "--data":
                found += [option, place(self.random.choice(values), self.here)]
            else:
                found += self.output(option, values)
        return found

    def bench(self) -> list[str]:
        command = self.random.choice(list(BENCH))
        place("book.txt", self.here)
        found = ["bench", *command.split()]
        if not command.startswith("functions"):
            found += ["--repeats", "5"]
        if self.random.random() < 0.2:
            return found + self.into_a_run("--json")
        return found + self.options([*BENCH[command].split(), "threads"])

    def small(self) -> list[str]:
        kind = self.random.choice(("engines", "equations", "forecast", "evaluate", "generate", "version"))
        if kind == "engines":
            return [kind, *(self.into_a_run("--json") if self.random.random() < 0.5 else self.output("--json", JSONS))]
        if kind == "equations":
            return [kind, self.random.choice(["lstm", "implicit_gru", *WORDS]), *self.options(["dt"])]
        if kind == "version":
            return self.random.choice((["--version"], [], ["train"], ["bench", "layers", "--help"]))
        return [kind, place(self.random.choice(FILES), self.here)]

    def typo(self) -> list[str]:
        args = [*self.random.choice((FORECAST, LANGUAGE, ("bench", "loop"), ("evaluate", "run"), ("equations", "gru")))]
        at = self.random.randrange(len(args))
        how = self.random.randrange(4)
        if how == 0:
            args[at] = args[at][:-1] + "q"
        elif how == 1:
            args.insert(at, self.random.choice([*WORDS, "-z", "--zzz", "--json"]))
        elif how == 2:
            args = args[: at + 1]
        else:
            args[at] = self.random.choice(WORDS)
        # what is then still a command in order must not train for long
        return (
            args if args[:2] not in (["train", "forecast"], ["bench", "loop"]) else [*args, "--epochs=0", "--steps=0"]
        )


def tried(cases: list[Case], servers: list[Server]) -> tuple[Counter[str], list[str]]:
    """All of them, on all servers -> how many ended how, and what was wrong"""
    free: SimpleQueue[Server] = SimpleQueue()
    for server in servers:
        free.put(server)
    counts: Counter[str] = Counter()
    wrong = []

    def one(case: Case) -> None:
        server = free.get()
        try:
            ended, found = server.judge(case)
        finally:
            free.put(server)
        counts[f"{case.kind[:40]!r} ends with {ended.code}"] += 1
        wrong.extend(f"plait {' '.join(map(repr, case.args))[:300]} in {case.folder.name}: {what}" for what in found)
        if not found:
            shutil.rmtree(case.folder)

    with ThreadPoolExecutor(len(servers)) as pool:
        list(pool.map(one, cases))
    return counts, wrong


@pytest.fixture(scope="module")
def warm(world, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kernels are compiled before anything is timed."""
    server, _ = world
    commands = [("bench", *command.split()) for command in BENCH]
    for cell in ("rnn", "gru", "lstm"):
        commands.append((*FORECAST, "--cell", cell))
        commands.append((*LANGUAGE, "--data", "book.txt", "--cell", cell, "--by", "sentences", "--steps", "35"))
    for args in commands:
        folder = tmp_path_factory.mktemp("warm")
        place("book.txt", folder)
        ended = server.run(args, folder, 300)
        assert ended.code == 0 or args[0] == "bench", ended.err


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SLICES))
def test_three_thousand_command_lines(seed: int, tmp_path: Path, world, warm) -> None:
    first, runs = world
    maker = Maker(tmp_path, runs, seed)
    cases = [maker.case() for _ in range(CASES)]
    with Server() as second:
        counts, wrong = tried(cases, [first, second][:AT_ONCE])
    print(*sorted(f"{count:4}  {what}" for what, count in counts.items()), sep="\n")
    assert counts.total() == CASES
    assert not wrong, f"{len(wrong)} of {CASES}:\n" + "\n".join(sorted(wrong))


def test_outputs_that_lead_into_a_run(tmp_path: Path, world) -> None:
    """Every spelling of every file, by commands that read this run and by one that does not."""
    server, runs = world
    cases = []
    for k, spelled in enumerate(SPELLED):
        for file in ("model.safetensors", "series.csv"):
            folder = tmp_path / f"case{k}-{file}"
            folder.mkdir()
            damaged(runs["forecast"], "whole", folder)
            name = leading_into(folder, file, spelled, ".json")
            command = ["forecast", "run", "--steps", "1"] if k % 2 or "hard" in spelled else ["engines"]
            cases.append(Case([*command, "--json", name], folder))
    counts, wrong = tried(cases, [server])
    assert not wrong, "\n".join(wrong)
    assert counts.total() == 2 * len(SPELLED)
    assert all(what.endswith("ends with 2") for what in counts)


NASTIEST = [  # a command line, and the file or the damage that it needs
    ("train forecast --layers 1000000000", None),
    ("train forecast --hidden 9223372036854775807", None),
    ("train forecast --hidden 100000 --layers 1000", None),
    ("train forecast --lr 1e308", None),
    ("train forecast --batch 99999999999999999999", None),
    ("train forecast --season 9223372036854775808", None),
    ("train forecast --seed -1", None),
    ("train forecast --threads 2147483648", None),
    ("train forecast --data huge", "huge"),
    ("train forecast --data fifo", "fifo"),
    ("train forecast --data device", "device"),
    ("train forecast --data to_fifo", "to_fifo"),
    ("train forecast --data loop", "loop"),
    ("train forecast --data commas", "commas"),
    ("train forecast --data quote", "quote"),
    ("train forecast --data terabyte", "terabyte"),
    ("train forecast --data utf16le", "utf16le"),
    ("train forecast --data excel", "excel"),
    ("train forecast --data near", "near"),
    ("train forecast --data " + "x" * 300, None),
    ("train forecast --out " + "x" * 300, None),
    ("train forecast --hidden many", None),
    ("train forecst", None),
    ("train language --data book.txt --init 1e300", "book.txt"),
    ("train language --data book.txt --steps 1000000000000", "book.txt"),
    ("train language --data pipes_inside", "pipes_inside"),
    ("train language --data parquet", "parquet"),
    ("train language --data nuls", "nuls"),
    ("train language --data nozip.zip", "nozip.zip"),
    ("forecast run --steps 1e30", "forecast whole"),
    ("forecast run --steps 2147483648", "forecast whole"),
    ("generate run --temperature 1e-300", "language whole"),
    ("generate run --prompt 2147483648 --top -1", "language whole"),
    ("generate run --length 9223372036854775807", "language whole"),
    ("evaluate run", "forecast config b'{'"),
    ("evaluate run", "forecast hidden 9223372036854775808, sealed"),
    ("evaluate run", "forecast model.safetensors half"),
    ("evaluate run", "language vocabulary twice"),
    ("evaluate run", "language vocabulary twice, sealed"),
    ("evaluate run", "language tokens negative, sealed"),
    ("generate run --length 3", "language model.safetensors nan, sealed"),
    ("evaluate run", "forecast threads 'two', sealed"),
    ("evaluate run", "forecast model.safetensors short, sealed"),
    ("equations implicit_gru --dt 1e308", None),
    ("bench layers --shapes 99999,99999,99999,99999,9", None),
    ("bench loop --repeats 9223372036854775808", None),
]


def test_the_nastiest_command_lines(tmp_path: Path, world) -> None:
    server, runs = world
    cases = []
    for k, (line, needs) in enumerate(NASTIEST):
        folder = tmp_path / f"case{k}"
        folder.mkdir()
        task, _, how = (needs or "").partition(" ")
        if how:
            damaged(runs[task], how, folder)
        elif needs:
            place(needs, folder)
        cases.append(Case(line.split(), folder))
    counts, wrong = tried(cases, [server])
    assert not wrong, "\n".join(wrong)
    assert counts.total() == len(NASTIEST)
    assert all(what.endswith("ends with 2") for what in counts)
