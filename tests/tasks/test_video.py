"""Videos: from clips in folders to classes; features that are made once, whatever happens meanwhile."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

av = pytest.importorskip("av", reason="PyAV is not installed (extra video)")
transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra video)")

from plait import PlaitError  # noqa: E402
from plait.data import video  # noqa: E402
from plait.tasks import features  # noqa: E402

KINDS = ("down", "flash", "left")
SMALL = ("--features", "resnet", "--frames", "9", "--hidden", "8", "--epochs", "3", "--batch", "4", "--threads", "1")
PARTS = ("--test", "0.25", "--validation", "0")


def write_clip(path: Path, kind: str, frames: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for t in range(frames):
            image = rng.integers(0, 40, (32, 32, 3)).astype(np.uint8)
            at = 2 * t % 24
            if kind == "left":
                image[10:20, 24 - at : 30 - at] = 250
            elif kind == "down":
                image[at : at + 6, 10:20, 0] = 250
            else:
                image[:] = 200 * (t % 2)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 clips in 3 classes, and a small ResNet with random weights."""
    folder = tmp_path_factory.mktemp("videos")
    for kind in KINDS:
        (folder / "clips" / kind).mkdir(parents=True)
        for k in range(4):
            write_clip(folder / "clips" / kind / f"{k}.avi", kind, 7 + k, 10 * k + KINDS.index(kind))
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 12}
    network = transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes))
    network.save_pretrained(folder / "resnet")
    return folder


@pytest.fixture
def here(made: Path, empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The clips and the ResNet in the folder where we are, and a cache of our own; kernels stay where they are."""
    for name in ("clips", "resnet"):
        shutil.copytree(made / name, empty_folder / name)
    monkeypatch.setattr(features, "cache_folder", lambda: empty_folder / "cache")
    return empty_folder


def kept() -> dict[str, float]:
    return {p.name: p.stat().st_mtime_ns for p in Path("cache/features").glob("*.npy")}


def test_from_clips_to_classes(here: Path, plait) -> None:
    command = ("train", "classify", "--data", "clips", *SMALL, *PARTS)
    code, out, err = plait(*command, "--epochs", "40", "--lr", "0.02", "--out", "run", "--json", "j.json")
    assert (code, err) == (0, "")
    assert "clips: 9 to train, 3 to test; 9 steps of 12 numbers, 3 classes" in out
    assert json.loads(Path("j.json").read_text())["epochs"][-1]["loss"] < 0.2
    before = kept()
    assert len(before) == 13  # 12 clips, and a black frame
    assert plait(*command, "--out", "again")[0] == 0
    assert kept() == before  # nothing was made again
    assert plait(*command, "--short", "keep", "--out", "keep")[0] == 0
    assert kept() == before  # padding is not in the cache
    code, out, _ = plait("classify", "run", "clips/left/0.avi")
    assert code == 0
    assert out.splitlines()[1].split()[:2] == ["0.avi", "left"]
    code, out, _ = plait("classify", "run", "clips", "--json", "c.json")
    assert code == 0
    names = [row["name"] for row in json.loads(Path("c.json").read_text())["sequences"]]
    assert names == [f"{kind}/{k}.avi" for kind in KINDS for k in range(4)]


def test_features_are_those_of_the_resnet(here: Path) -> None:
    import torch

    wanted = features.Wanted("resnet", 5, pad=True)
    source = features.read(video.by_class(Path("clips")), "clips", wanted, skip_broken=False)
    network = transformers.ResNetForImageClassification.from_pretrained("resnet").eval()
    with av.open("clips/down/1.avi") as container:
        images = list(container.decode(video=0))[:5]
    pixels = np.stack([f.reformat(width=240, height=240, format="rgb24").to_ndarray() for f in images]) / 255
    x = (pixels - np.array(features.MEAN)) / np.array(features.STD)
    with torch.no_grad():
        expected = network(pixel_values=torch.from_numpy(x).permute(0, 3, 1, 2).float()).logits
    found = source.parts["train"].rows[1]
    assert found.shape == (5, 12)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-4)


def test_short_clips_are_padded_with_black_frames(here: Path) -> None:
    clips = video.by_class(Path("clips"))[:1]  # 7 frames
    padded, as_it_is = (
        features.read(clips, "clips", features.Wanted("resnet", 9, pad=pad), skip_broken=False).parts["train"].rows[0]
        for pad in (True, False)
    )
    assert (len(padded), len(as_it_is)) == (9, 7)
    black = features.ResNet(Path("resnet")).outputs(np.zeros((1, 240, 240, 3), np.uint8))
    np.testing.assert_array_equal(padded[:7], as_it_is)
    np.testing.assert_array_equal(padded[7:], np.repeat(black, 2, 0))


def test_another_clip_model_or_number_of_frames_is_another_key(here: Path) -> None:
    def made_for(**options) -> int:
        before = len(kept())
        wanted = features.Wanted(**({"model": "resnet", "frames": 5, "pad": False} | options))
        features.read(video.by_class(Path("clips")), "clips", wanted, skip_broken=False)
        return len(kept()) - before

    assert made_for() == 12
    assert made_for() == 0
    assert made_for(frames=6) == 12
    config = Path("resnet/config.json")
    config.write_text(config.read_text() + " ")
    assert made_for() == 12
    write_clip(Path("clips/left/0.avi"), "left", 8, 99)
    assert made_for() == 1
    for file in Path("cache/features").glob("*.npy"):
        file.write_bytes(file.read_bytes()[:50])
    made_for()
    shapes = [
        np.load(p, allow_pickle=False).shape for p in Path("cache/features").glob("*.npy") if p.stat().st_size > 50
    ]
    assert shapes == [(5, 12)] * 12  # what was damaged is made again


# --- broken ----------------------------------------------------------------------------------------------------------
def spoil(kind: str) -> str:
    """-> what is said of it"""
    path = Path("clips/flash/9.avi")
    if kind == "no video":
        path.write_bytes(b"this is no video at all")
        return "clips/flash/9.avi cannot be read as a video (Invalid data found when processing input, "
    if kind == "empty":
        path.write_bytes(b"")
        return "clips/flash/9.avi cannot be read as a video ("
    if kind == "sound":
        with av.open(str(path), "w") as container:
            stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
            frame.sample_rate = 8000
            container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return "clips/flash/9.avi has no picture stream: expected a video."
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        container.start_encoding()
    return "clips/flash/9.avi has no frames: expected one or more."


@pytest.mark.parametrize("kind", ["no video", "empty", "sound", "no frames"])
def test_a_broken_clip_is_named_and_skipped_only_if_asked(kind: str, here: Path, plait) -> None:
    says = spoil(kind)
    code, out, err = plait("train", "classify", "--data", "clips", *SMALL, *PARTS)
    assert (code, out) == (2, "")
    assert err.startswith(f"plait: {says}")
    assert err.endswith(" Mend it or take it away, or use --skip-broken.\n")
    assert not Path("runs").exists()
    code, out, err = plait("train", "classify", "--data", "clips", *SMALL, *PARTS, "--skip-broken", "--out", "run")
    assert code == 0
    assert err == "plait: skipped, as they cannot be read: flash/9.avi\n"
    assert "clips: 9 to train, 3 to test; " in out


@pytest.mark.slow
def test_killed_while_features_are_made_it_goes_on_where_it_was(here: Path) -> None:
    """A real process, killed after some clips: those are not made again, and the run is that of one left in peace."""
    code = (
        "import sys, time, pathlib; from plait.tasks import features; from plait.cli import main\n"
        "place = pathlib.Path(sys.argv.pop(1)); features.cache_folder = lambda: place\n"
        "slow = features.ResNet.outputs\n"
        "features.ResNet.outputs = lambda self, frames: (time.sleep(0.1), slow(self, frames))[1]\n"
        "main()"
    )

    def begin(cache: str, out: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-c",
            code,
            cache,
            "train",
            "classify",
            "--data",
            "clips",
            *SMALL,
            *PARTS,
            "--out",
            out,
        ]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        )

    process = begin("cache", "run")
    while len(kept()) < 4:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = kept()
    assert 4 <= len(before) < 12
    assert not Path("run").exists()
    for cache, out in (("cache", "run"), ("other", "peace")):
        process = begin(cache, out)
        said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    after = kept()
    assert len(after) == 13
    assert {name: after[name] for name in before} == before
    assert Path("run/model.safetensors").read_bytes() == Path("peace/model.safetensors").read_bytes()


# --- folders and splits ----------------------------------------------------------------------------------------------
def test_the_official_split_files(here: Path, plait, refused) -> None:
    Path("splits").mkdir()
    for kind in KINDS:
        lines = [f"{k}.avi {mark}" for k, mark in enumerate((1, 2, 1, 0))]
        Path(f"splits/{kind}_test_split1.txt").write_text(" \n".join(lines) + " \n")
    options = ("--data", "clips", *SMALL, "--validation", "0", "--splits", "splits")
    code, out, _ = plait("train", "classify", *options, "--out", "run")
    assert code == 0
    assert "clips: 6 to train, 3 to test; " in out
    says = refused("train", "classify", *options, "--split", "2")
    assert says.startswith("plait: splits/down_test_split2.txt does not exist: expected a file for each class")
    Path("splits/left_test_split1.txt").write_text("7.avi 1\n")
    assert "names 7.avi, which is not in the folder left" in refused("train", "classify", *options)
    Path("splits/left_test_split1.txt").write_text("0.avi yes\n")
    assert "line 1: '0.avi yes'; expected the name of a clip, and 0, 1 or 2." in refused("train", "classify", *options)


def test_some_classes(here: Path, plait) -> None:
    code, out, _ = plait(
        "train", "classify", "--data", "clips", *SMALL, *PARTS, "--classes", "left,flash", "--out", "run"
    )
    assert code == 0
    assert "clips: 6 to train, 2 to test; 9 steps of 12 numbers, 2 classes" in out
    assert len(kept()) == 9  # of the third class none was made


def test_folders_that_are_refused(here: Path, refused) -> None:
    Path("loose").mkdir()
    shutil.copy("clips/left/0.avi", "loose/0.avi")
    says = refused("train", "classify", "--data", "loose", *SMALL)
    assert says.startswith("plait: loose has 1 videos that are in no folder: expected folders, one for each class")
    Path("one/left").mkdir(parents=True)
    shutil.copy("clips/left/0.avi", "one/left/0.avi")
    says = refused("train", "classify", "--data", "one", *SMALL)
    assert says == "plait: one has videos of one class: expected folders of two or more.\n"
    says = refused("train", "classify", "--data", "clips", *SMALL, "--classes", "left,right")
    assert says.startswith("plait: class 'right' is not known: ")
    assert not Path("cache").exists()  # no feature was made for nothing


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda f: (f / "config.json").unlink(), "resnet/config.json does not exist: expected a folder with a ResNet"),
        (lambda f: (f / "model.safetensors").unlink(), "resnet/model.safetensors does not exist: expected a folder"),
        (lambda f: (f / "config.json").write_text("{}"), "resnet/config.json has model_type None: expected 'resnet'."),
        (lambda f: (f / "config.json").write_text("x"), "resnet has a JSON file that cannot be read"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 90), "resnet cannot be loaded as a ResNet ("),
    ],
)
def test_a_folder_that_is_no_resnet(spoil, says: str, here: Path) -> None:
    spoil(Path("resnet"))
    with pytest.raises(PlaitError) as e:
        features.read(video.by_class(Path("clips")), "clips", features.Wanted("resnet", 5, False), skip_broken=False)
    assert str(e.value).startswith(says)


def test_a_name_that_is_not_on_this_machine(
    here: Path, refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(here / "no-hub"))
    says = refused("train", "classify", "--data", "clips", "--features", "resnet34")
    assert says.startswith("plait: resnet34 (microsoft/resnet-34) is not on this machine: add --download to fetch it, ")
    says = refused("train", "classify", "--data", "clips", "--features", "vgg")
    assert says.startswith("plait: features 'vgg': expected a folder with a ResNet, or one of resnet18, resnet34")


def test_new_clips_need_the_same_resnet(here: Path, plait) -> None:
    assert plait("train", "classify", "--data", "clips", *SMALL, *PARTS, "--out", "run")[0] == 0
    config = Path("resnet/config.json")
    config.write_text(config.read_text() + " ")
    code, _, err = plait("classify", "run", "clips")
    assert (code, err) == (2, "plait: clips: its features are not those of the training: give the same ResNet.\n")


def test_a_run_is_used_from_another_folder(here: Path, plait, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plait("train", "classify", "--data", "clips", *SMALL, *PARTS, "--out", "run")[0] == 0
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert plait("classify", "../run", "../clips/left/0.avi")[0] == 0
    Path("../resnet").rename("../moved")
    code, _, err = plait("classify", "../run", "../clips/left/0.avi")
    assert code == 2
    assert "expected a folder with a ResNet" in err
    assert plait("classify", "../run", "../clips/left/0.avi", "--features", "../moved")[0] == 0
    Path("../clips/left/9.avi").write_bytes(b"broken")
    assert plait("classify", "../run", "../clips", "--features", "../moved")[0] == 2
    assert plait("classify", "../run", "../clips", "--features", "../moved", "--skip-broken")[0] == 0
