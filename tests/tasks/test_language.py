"""Language models: batches that lose nothing, a loss of real tokens only, runs that go on where they stopped."""

import json
import math
import re
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from plait import PlaitError
from plait.layout import Layout
from plait.tasks.corpus import Corpus
from plait.tasks.language import Language, pick
from plait.tasks.settings import LanguageSettings
from plait.training.loop import train
from plait.training.run import Run
from reference import data_file

PLAIT = [sys.executable, "-m", "plait"]
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def counting(lines: int) -> str:
    """Lines of one to nine words that count on: what comes next can be known."""
    return "".join(" ".join(WORDS[(k + j) % 10] for j in range(1 + k * 7 % 9)) + "\n" for k in range(lines))


def make(folder: Path, *, lines: int = 120, **options) -> Language:
    (folder / "text.txt").write_text(counting(lines))
    small = {"hidden": 7, "layers": 2, "batch": "4", "epochs": 2, "save_every": 1e9, "init": 0.3}
    if options.get("by", "streams") == "streams":
        small["steps"] = 5
    settings = LanguageSettings(data=str(folder / "text.txt"), **(small | options))
    return Language.read(settings)


# --- the loss --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn", "implicit_gru"])
def test_a_batch_of_sentences_costs_what_each_alone_costs(tmp_path: Path, cell: str) -> None:
    """The loss, and the gradient of every weight."""
    task = make(tmp_path, by="sentences", cell=cell)
    task.model.double()
    weights = list(task.model.parameters())

    def both(indices: list[int]) -> list[torch.Tensor]:
        loss, count = task.loss(torch.tensor(indices))
        assert count == int(task.corpus.parts["train"].lengths[indices].sum())
        return [loss.detach() * count, *(g * count for g in torch.autograd.grad(loss, weights))]

    together = both([4, 8, 1, 30])
    alone = [sum(parts) for parts in zip(*(both([k]) for k in (4, 8, 1, 30)), strict=True)]
    for a, b in zip(together, alone, strict=True):
        assert (a - b).abs().max() / b.abs().max() < 1e-10


def test_a_stream_carries_its_state_and_cuts_the_gradient(tmp_path: Path) -> None:
    """The loss of pieces of time, one after another, is that of the whole; a new epoch starts from nothing."""
    task = make(tmp_path, steps=4)
    whole = make(tmp_path, steps=10_000)
    assert len(whole.sampler) == 1 < len(task.sampler)

    def epoch(t: Language) -> float:
        with torch.no_grad():
            parts = [t.loss(k) for k in t.sampler.batches(0)]
        return sum(loss.item() * n for loss, n in parts) / len(t.corpus.parts["train"].ids)

    expected = epoch(whole)
    assert epoch(task) == pytest.approx(expected, rel=1e-6)
    assert epoch(task) == pytest.approx(expected, rel=1e-6)
    loss, _ = task.loss(torch.tensor([1]))
    loss.backward()
    assert not any(s.requires_grad for s in task.state)


@pytest.mark.parametrize("by", ["streams", "sentences"])
def test_the_entropy_counts_every_token_once(tmp_path: Path, monkeypatch, by: str) -> None:
    task = make(tmp_path, by=by)
    ids, starts = task.corpus.parts["test"].ids, task.corpus.parts["test"].starts
    cuts = [0, len(ids)] if by == "streams" else starts.tolist()
    total = 0.0
    with torch.no_grad():
        for a, b in pairwise(cuts):  # the slow way: token after token
            state = None
            for k in range(a, b):
                h, state = task.model(task.before["test"][k : k + 1], Layout(1, 1), state)
                total -= task.model.softmax.logits(h).log_softmax(1)[0, ids[k]].item()
    monkeypatch.setattr("plait.tasks.language.AT_ONCE", 16)
    assert task.entropy("test") == pytest.approx(total / len(ids), rel=1e-5)


def test_dropout_is_off_while_it_is_evaluated(tmp_path: Path) -> None:
    """Whoever left the network in training, as an interrupted run does."""
    task, without = (make(tmp_path, hidden=30, init=1.0, dropout=share) for share in (0.5, 0.0))
    task.model.train()
    assert task.entropy("test") == without.entropy("test")
    task.model.train()
    written = [t.generate("one", length=9, temperature=1, top=0, seed=0) for t in (task, without)]
    assert written[0] == written[1]


def test_words_and_their_frequencies_are_those_of_the_training_part(tmp_path: Path) -> None:
    for part, content in (("train", "a a b\n" * 3), ("valid", "a c\n"), ("test", "d d b\n")):
        (tmp_path / f"{part}.txt").write_text(content)
    task = Language.read(LanguageSettings(data=str(tmp_path), hidden=2, layers=1, batch="1", steps=3))
    assert sorted(task.vocabulary.words) == ["<eos>", "<unk>", "a", "b"]
    found = task.evaluate()
    assert [(found[part]["tokens"], found[part]["unknown"]) for part in ("validation", "test")] == [(3, 1), (4, 2)]
    p = {"a": 7 / 16, "b": 4 / 16, "<eos>": 4 / 16, "<unk>": 1 / 16}  # 6, 3, 3 and none, and one more each
    for part, words in (("validation", ["a", "<unk>", "<eos>"]), ("test", ["<unk>", "<unk>", "b", "<eos>"])):
        expected = -sum(math.log(p[word]) for word in words) / len(words)
        assert found[part]["unigram"]["entropy"] == pytest.approx(expected)


# --- training --------------------------------------------------------------------------------------------------------
def test_it_learns_to_count(tmp_path: Path) -> None:
    for by in ("streams", "sentences"):
        task = make(tmp_path, by=by, lines=300, hidden=24, epochs=12, lr=0.01, clip=5.0)
        train(task, task.settings)
        found = task.evaluate()["test"]
        assert found["model"]["perplexity"] < 2.5 < 6 < found["unigram"]["perplexity"]
        written = task.generate("three four", length=2, temperature=0, top=0, seed=0)
        assert re.fullmatch(rf"three four( five( six|\n)|\n({'|'.join(WORDS)}))", written)


GROUPS = ["none", "3,6,10", "greedy", "optimal:3", "pool:4"]


@pytest.mark.parametrize(
    "options",
    [
        {"by": "streams", "dropout": 0.3},
        {"by": "streams", "cell": "gru", "tied": True, "optimizer": "sgd", "lr": 1.0, "schedule": "decay"},
        {"by": "streams", "softmax": "adaptive"},
        *({"by": "sentences", "buckets": how, "dropout": 0.2} for how in GROUPS),
    ],
    ids=lambda o: " ".join(map(str, o.values())),
)
def test_a_run_stopped_in_mid_epoch_goes_on_to_the_same_bits(tmp_path: Path, monkeypatch, options) -> None:
    names = iter("abc")

    def start(stop_after: int | None) -> tuple[Language, Run]:
        task = make(tmp_path, **options)
        run = Run.create(str(tmp_path / next(names)), "language", {}, task.files())
        if stop_after is not None:
            stop(task, stop_after)
        return task, run

    def stop(task: Language, after: int) -> None:
        original, done = task.loss, iter(range(1, 10_000))

        def loss(indices):
            if next(done) == after:
                signal.raise_signal(signal.SIGINT)  # as Ctrl-C does, in the middle of a step
            return original(indices)

        monkeypatch.setattr(task, "loss", loss)

    task, undisturbed = start(None)
    assert not train(task, task.settings, undisturbed).interrupted
    steps = len(task.sampler)
    assert steps > 6
    task, run = start(3)
    assert train(task, task.settings, run).interrupted
    for stop_after in (steps, None):  # once more, in the second epoch, then to the end
        task = Language.reopen(task.settings, run)
        if stop_after is not None:
            stop(task, stop_after)
        assert train(task, task.settings, run, resume=True).interrupted is (stop_after is not None)
    expected, found = (r.read_tensors("state.safetensors")[0] for r in (undisturbed, run))
    assert expected.keys() == found.keys()
    assert any(k.startswith("carried.") for k in found) is (options["by"] == "streams")
    for name in expected:
        assert torch.equal(expected[name], found[name]), name


def test_data_that_was_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    task = make(tmp_path)
    run = Run.create(str(tmp_path / "run"), "language", {}, task.files())
    train(task, task.settings, run)
    run.write("vocabulary.json", (run.path / "vocabulary.json").read_bytes().replace(b'"nine"', b'"ten"'))
    again = Language.reopen(task.settings, run)
    with pytest.raises(PlaitError, match="was written with other data"):
        train(again, again.settings, run, resume=True)


# --- from the command line -------------------------------------------------------------------------------------------
QUICK = ("--hidden", "6", "--epochs", "2", "--batch", "4")


def test_train_generate_and_evaluate(plait, empty_folder: Path) -> None:
    Path("book.txt").write_text(counting(200))
    code, out, _ = plait("train", "language", "--data", "book.txt", *QUICK, "--json", "result.json")
    assert code == 0
    assert re.search(r"^book\.txt: [\d,]+ to train, [\d,]+ to validate, [\d,]+ to test; 12 different words$", out, re.M)
    assert re.search(r"^epoch 2/2  perplexity [\d.]+  validation [\d.]+  [\d,]+ tokens/s  0 s left$", out, re.M)
    assert max(map(len, out.splitlines())) <= 80
    run = Path("runs/language-1")
    files = ["config.json", "history.json", "model.safetensors", "perplexity.png", "state.safetensors"]
    assert sorted(p.name for p in run.iterdir()) == [*files, "tokens.safetensors", "vocabulary.json"]
    assert (run / "perplexity.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads(Path("result.json").read_text())
    Path("book.txt").unlink()  # a run has its own copy
    code, out, _ = plait("evaluate", str(run), "--json", "-")
    assert json.loads(out) == result["test"]
    assert result["test"]["test"]["model"]["perplexity"] == math.exp(result["test"]["test"]["model"]["entropy"])

    write = ("generate", str(run), "--prompt", "one two", "--length", "20")
    code, first, err = plait(*write)
    assert code == 0
    assert first.startswith("one two")
    assert "<unk>" not in first
    assert err == ""
    assert plait(*write)[1] == first
    assert plait(*write, "--seed", "1")[1] != first
    _, out, err = plait("generate", str(run), "--prompt", "one xyzzy", "--temperature", "0", "--top", "3")
    assert err == "plait: not in the vocabulary, read as <unk>: xyzzy\n"
    assert out.startswith("one <unk>")
    assert plait("train", "language", "--resume", str(run), "--epochs", "3")[0] == 0
    said = plait("train", "language", "--resume", str(run), "--data", "other.txt")[2]
    assert "--data other.txt: the run has book.txt, and --resume goes on with what" in said


def test_a_prompt_is_read_to_its_end(tmp_path: Path) -> None:
    """A line that is not ended goes on; an ended one is followed by another, which knows nothing of it if sentences are
    trained on one by one.
    """

    def follows(task: Language, prompt: str) -> str:
        return task.generate(prompt, length=12, temperature=1, top=0, seed=0).removeprefix(prompt)

    for level in ("word", "char"):
        task = make(tmp_path, by="sentences", level=level, hidden=30, init=1.0)
        anew = follows(task, "")
        assert follows(task, "one two\n") == follows(task, "five\n") == anew
        assert follows(task, "three\none two") == follows(task, "one two") != anew
        states = make(tmp_path, level=level, hidden=30, init=1.0)
        assert len({follows(states, prompt) for prompt in ("", "one two\n", "five\n")}) == 3
    assert follows(task, "one\n") != follows(task, "one")


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("top", [0, 1, 3, 5, 9])
def test_words_are_drawn_as_often_as_they_should_be(temperature: float, top: int) -> None:
    logits = torch.tensor([0.5, -1.0, 2.0, 1.0, -math.inf])
    p = (logits.double() / temperature).exp()
    if top in (1, 3):
        p[{1: [0, 1, 3], 3: [1]}[top]] = 0  # what is not among the likeliest
    p /= p.sum()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.cat([pick(logits, temperature, top, generator) for _ in range(1500)])
    found = drawn.bincount(minlength=5) / 1500
    assert (found - p).abs().max() < 0.05  # four times what chance does, or more
    assert found[p == 0].eq(0).all()
    assert int(pick(logits, 0, top, generator)) == 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_unknown_word_is_never_written(tmp_path: Path, temperature: float) -> None:
    task = make(tmp_path)
    task.model.softmax.bias.data[task.vocabulary.index["<unk>"]] = 100.0  # by far the likeliest
    written = task.generate("one", length=20, temperature=temperature, top=0, seed=0)
    assert len(written.replace("\n", " \n ").split(" ")) >= 20
    assert "<unk>" not in written


def test_temperature_and_top_reach_the_draw(tmp_path: Path) -> None:
    task = make(tmp_path, hidden=30, init=1.0)
    write = partial(task.generate, "one", length=20, seed=0)
    likeliest = write(temperature=0, top=0)
    assert write(temperature=5, top=1) == likeliest
    assert write(temperature=0.01, top=0) == likeliest
    assert write(temperature=5, top=0) != write(temperature=1, top=0) != likeliest
    assert write(temperature=5, top=2) != write(temperature=5, top=0)


def test_characters_of_a_folder(plait, empty_folder: Path) -> None:
    for part, lines in (("train", 80), ("valid", 9), ("test", 9)):
        Path("corpus").mkdir(exist_ok=True)
        Path(f"corpus/my.{part}.txt").write_text(counting(lines))
    options = ("--level", "char", "--by", "sentences", "--buckets", "greedy", "--cell", "gru", "--tied")
    code, out, _ = plait("train", "language", "--data", "corpus", *options, *QUICK)
    assert code == 0
    assert "different characters" in out
    assert "bits per character" in out
    _, text, _ = plait("generate", "runs/language-1", "--length", "50")
    assert len(text) == 51  # and the end of the line that is printed


def test_text_is_printed_as_it_is(plait, empty_folder: Path) -> None:
    """What looks like an emoji, markup or a variable of the shell is text."""
    Path("odd.txt").write_text(":smile: [bold]x[/] $HOME 'q\n" * 40)
    code, out, _ = plait("train", "language", "--data", "odd.txt", *QUICK, "--out", "a run")
    assert code == 0
    command = re.search(r"^generate  plait (.*)$", out, re.M)[1]
    assert shlex.split(command) == ["generate", "a run", "--prompt", ":smile: [bold]x[/]"]
    said = plait(*shlex.split(command), "--json", "x.json")[1]
    assert said == json.loads(Path("x.json").read_text())["text"] + "\n"
    assert said.startswith(":smile: [bold]x[/]")


@pytest.mark.slow
def test_a_run_stopped_from_outside_goes_on(empty_folder: Path) -> None:
    """A real process, a real signal in the middle of an epoch, and the command that it prints: the same weights."""
    Path("book.txt").write_text(counting(600))
    start = [*PLAIT, "train", "language", "--data", "book.txt", "--hidden", "16", "--epochs", "20", "--batch", "4"]
    start += ["--by", "sentences", "--buckets", "greedy", "--threads", "1", "--save-every", "0.05"]
    subprocess.run([*start, "--out", "whole"], check=True, capture_output=True)
    process = subprocess.Popen([*start, "--out", "parts"], stdout=subprocess.PIPE, text=True)
    while not Path("parts/state.safetensors").is_file():
        time.sleep(0.01)
        assert process.poll() is None
    time.sleep(0.4)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    command = re.search(r"^go on +(plait .*)$", out, re.M)[1]
    subprocess.run([*PLAIT, *shlex.split(command)[1:]], check=True, capture_output=True)
    expected, found = (Run(Path(name)).read_tensors("state.safetensors")[0] for name in ("whole", "parts"))
    assert len(found) == len(expected) > 10
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_run_from_before_there_were_other_settings(tmp_path: Path) -> None:
    task = make(tmp_path)
    run = Run.create(str(tmp_path / "run"), "language", {}, task.files())
    train(task, task.settings, run)
    tensors, meta = run.read_tensors("state.safetensors")
    del meta["belongs_to"]["decay"], meta["belongs_to"]["tied"]
    run.write_tensors("state.safetensors", tensors, meta)
    again = Language.reopen(task.settings, run)
    assert not train(again, again.settings, run, resume=True).interrupted


def test_a_run_of_another_task_is_not_taken_for_this_one(plait, refused, empty_folder: Path) -> None:
    assert plait("train", "forecast", "--epochs", "1", "--hidden", "2")[0] == 0
    assert "is a run of task 'forecast', not 'language'" in refused("generate", "runs/forecast-1")
    said = refused("train", "language", "--resume", "runs/forecast-1")
    assert "is a run of task 'forecast', not 'language'" in said


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "language needs a text: give a file, a folder or a zip with --data"),
        (("--data", "absent.txt"), "absent.txt does not exist: expected a text file"),
        (("--data", "empty.txt"), "empty.txt is empty: expected text in it"),
        (("--data", "latin.txt"), "latin.txt has byte 0xe9 in line 2: expected text in UTF-8; convert it"),
        (("--data", "word.txt"), "fewer than"),
        (("--data", "bad.zip"), "leads out of the zip"),
        (("--data", "root.zip"), "leads out of the zip"),
        (("--data", "book.txt", "--by", "pages"), "by 'pages' is not known"),
        (("--data", "book.txt", "--level", "letter"), "level 'letter' is not known"),
        (("--data", "book.txt", "--softmax", "soft"), "softmax 'soft' is not known"),
        (("--data", "book.txt", "--steps", "0"), "steps 0"),
        (("--data", "book.txt", "--init", "0"), "init 0.0: must be at least 1e-12"),
        (("--data", "book.txt", "--decay", "2"), "decay 2.0: must be above 0 and at most 1"),
        (("--data", "book.txt", "--decay", "0.7"), "decay 0.7 goes with schedule decay"),
        (("--data", "book.txt", "--decay-after", "0"), "decay_after 0"),
        (("--data", "book.txt", "--batch", "full"), "batch 'full' is for sentences"),
        (("--data", "book.txt", "--batch", "999"), "tokens for 999 streams"),
        (("--data", "book.txt", "--buckets", "greedy"), "buckets greedy goes with --by sentences"),
        (("--data", "book.txt", "--by", "sentences", "--steps", "9"), "steps 9 goes with --by streams"),
        (("--data", "ends"), "has no word in its valid part"),
        (("--data", "book.txt", "--tied", "--embedding", "3"), "one matrix needs them equal"),
        (("--data", "book.txt", "--tied", "--softmax", "adaptive"), "it has matrices of its own"),
        (("--data", "book.txt", "--min-count", "1000"), "min_count 1000"),
        (("--data", "book.txt", "--by", "sentences", "--buckets", "some"), "buckets 'some' is not known"),
        (("--data", "book.txt", "--by", "sentences", "--buckets", "8,4,20"), "boundaries 8,4,20: expected ascending"),
        (("--data", "book.txt", "--by", "sentences", "--buckets", "3,5"), "sequences are longer than 5"),
        (("--data", "book.txt", "--by", "sentences", "--buckets", "pool:0"), "pool 0"),
    ],
)
def test_what_cannot_be_trained_on_gets_a_sentence(refused, empty_folder: Path, options, sentence: str) -> None:
    import zipfile

    Path("book.txt").write_text(counting(60))
    Path("empty.txt").write_text("")
    Path("word.txt").write_text("word\n")
    Path("ends").mkdir()
    for part, content in (("train", counting(60)), ("valid", "<eos>\n"), ("test", counting(9))):
        Path(f"ends/{part}.txt").write_text(content)
    Path("latin.txt").write_bytes("plain\ncaf\xe9\n".encode("latin1"))
    for name, member in (("bad.zip", "../train.txt"), ("root.zip", "/train.txt")):
        with zipfile.ZipFile(name, "w") as file:
            file.writestr(member, counting(60))
    assert sentence in refused("train", "language", *options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--length", "0"), "length 0"),
        (("--top", "-1"), "top -1"),
        (("--temperature", "-1"), r"temperature -1.0: must be 0 (always the likeliest), or from 0.001 to 1000."),
        (("--temperature", "1e-300"), "temperature 1e-300: must be 0 (always the likeliest), or from 0.001 to 1000."),
        (("--length", "1000001"), "length 1000001: must be at most 1000000"),
        (("--top", str(2**63)), "must be at most 1000000000"),
        (("--temperature", "nan"), "temperature nan: must be 0 (always"),
        (("--seed", str(2**63)), f"seed {2**63}: must be at least 0 and below"),
    ],
)
def test_what_cannot_be_generated_gets_a_sentence(plait, refused, empty_folder: Path, options, sentence: str) -> None:
    Path("book.txt").write_text(counting(60))
    assert plait("train", "language", "--data", "book.txt", *QUICK)[0] == 0
    assert sentence in refused("generate", "runs/language-1", *options)


def test_an_entropy_that_is_no_number_gets_a_sentence(tmp_path: Path, monkeypatch) -> None:
    task = make(tmp_path)
    nn.init.constant_(task.model.softmax.bias, math.nan)
    with pytest.raises(PlaitError, match="the entropy of the validation part is nan: train again with a lower --lr"):
        task.evaluate()
    assert task.shown(1e9) == f"perplexity {math.exp(700):.5g}"


# --- the real thing --------------------------------------------------------------------------------------------------
ZAREMBA = {
    "hidden": 200,
    "layers": 2,
    "batch": "20",
    "steps": 20,
    "optimizer": "sgd",
    "lr": 20.0,  # for the mean over 20 steps; 1 for their sum, as published
    "clip": 0.25,  # likewise: 5
    "schedule": "decay",
    "init": 0.1,
    "patience": 0,
}


@pytest.mark.slow
def test_an_epoch_of_penn_treebank() -> None:
    """The published small settings: perplexity 177 or so after one epoch, 114.5 on the test after thirteen."""
    settings = LanguageSettings(data=str(data_file("ptb.zip")), epochs=1, **ZAREMBA)
    task = Language(settings, Corpus.read(settings))
    assert len(task.vocabulary) == 10_000
    outcome = train(task, settings)
    assert outcome.progress.history[0]["validation"] < math.log(210)
