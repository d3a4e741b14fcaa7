"""What `plait bench` refuses."""

from importlib.util import find_spec

import pytest


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ["layers", "--malloc", "tune"],
            "malloc 'tune' is not known: did you mean 'tuned'? Expected one of default, tuned",
        ),
        (["layers", "--shapes", "32,12"], "shape '32,12': expected B,T,I,H,layers, each 1 to 99999, such as"),
        (["layers", "--shapes", "1,1,1,1,1 2,2,2,2,0"], "shape '2,2,2,2,0': expected"),
        (["layers", "--shapes", "1,1,1,1,100000"], "shape '1,1,1,1,100000': expected"),
        (["layers", "--shapes", ""], "shape '': expected"),
        (["layers", "--cells", "lstm,gruu"], "cell 'gruu' is not known: did you mean 'gru'?"),
        (["layers", "--cells", "implicit_gru"], "cell 'implicit_gru' is not known"),
        (["layers", "--engine", "fusd"], "engine 'fusd' is not known: did you mean 'fused'?"),
        (["layers", "--random", "0"], "random 0: must be at least 1."),
        (["layers", "--random", "5", "--shapes", "1,1,1,1,1"], "--shapes and --random were both given"),
        (["layers", "--repeats", "4"], "repeats 4: must be at least 5."),
        (["layers", "--threads", "0"], "threads 0: must be at least 1."),
        (["batch", "--size", "0"], "size 0: must be at least 1."),
        (["batch", "--cell", "lstm,gru"], "cell 'lstm,gru' is not known"),
        (["batch", "--repeats", "1"], "repeats 1: must be at least 5."),
        (["phases", "--shapes", "1,2,3,4,2"], "shape '1,2,3,4,2': the phases are those of one layer"),
        (["phases", "--cells", ""], "cell '' is not known"),
        (["phases", "--task", "rotat"], "task 'rotat' is not known: did you mean 'rotate'?"),
        (["phases", "--task", "rotate", "--cells", "rnn,gru"], "cells 'rnn,gru': task rotate takes one of each."),
        (["phases", "--task", "rotate", "--shapes", "1,2,3,4,2"], "shape '1,2,3,4,2': the phases are those of one la"),
        (["phases", "--repeats", "0"], "repeats 0: must be at least 5."),
        (["cuda", "--shapes", "1,2,3,4,2"], "shape '1,2,3,4,2': the training steps are those of one layer"),
        (["functions", "--seed", "-1"], "seed -1: must be at least 0"),
    ],
)
def test_mistakes(refused, args: list[str], sentence: str) -> None:
    assert sentence in refused("bench", *args)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("ragged",), "ragged batches need sentences"),
        (("bucketing",), "language needs a text"),
        (("language",), "language needs a text"),
        (("ragged", "--data", "book.txt", "--batch", "1000"), "expected at least a batch, 1000"),
        (("bucketing", "--data", "book.txt", "--layers", "two"), "layers 'two'"),
        (("bucketing", "--data", "book.txt", "--layers", "1001"), "layers '1001': expected numbers from 1 to 1000"),
        (("bucketing", "--data", "book.txt", "--picture", "b.jpg"), "--picture b.jpg"),
        (("bucketing", "--data", "book.txt", "--sentences", "3"), "sentences 3"),
        (("language", "--data", "book.txt", "--cell", "implicit_gru"), "cell 'implicit_gru' is not known"),
    ],
)
def test_what_cannot_be_measured_on_a_text(refused, book: str, args, sentence: str) -> None:
    assert sentence in refused("bench", *args)


@pytest.mark.skipif(find_spec("numba_cuda") is not None, reason="numba-cuda is installed")
def test_without_a_device_it_is_said_what_is_missing(refused) -> None:
    sentence = refused("bench", "cuda")
    assert "no version can run here. cuda v1, v2 and v3 are left out: numba-cuda is not installed" in sentence
