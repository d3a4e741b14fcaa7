"""Images: from files, zips, tars and CIFAR's batches; and what is no image, or does more than hold one."""

import io
import os
import pickle
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from plait.data import cifar, images
from plait.data.shapes import shapes
from plait.errors import PlaitError
from reference import data_file


def picture(k: int, size: tuple[int, int] = (6, 5), kind: str = "PNG", mode: str = "RGB") -> bytes:
    """As wide and as high as `size` says."""
    rng = np.random.default_rng(k)
    file = io.BytesIO()
    colours = rng.integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(colours).convert(mode).save(file, kind)
    return file.getvalue()


def grey(content: bytes) -> list[list[int]]:
    """By the formula for luma, one pixel after another."""
    with Image.open(io.BytesIO(content)) as image:
        red, green, blue = (np.asarray(image.convert("RGB"))[:, :, k].astype(float) for k in range(3))
    return np.round(0.299 * red + 0.587 * green + 0.114 * blue).astype(int).tolist()


FILES = {
    "train/train/1.png": picture(1),
    "train/cat/2.PNG": picture(2),
    "test/train/3.png": picture(3),
    "notes.txt": b"not an image",
    ".hidden/4.png": b"broken",
}


def written(kind: str, files: dict[str, bytes]) -> str:
    if kind == "folder":
        for name, content in files.items():
            path = Path("pictures", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return "pictures"
    if kind == "zip":
        with zipfile.ZipFile("pictures.zip", "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return "pictures.zip"
    with tarfile.open(f"pictures.{kind}", "w:gz" if kind == "tar.gz" else "w") as archive:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return f"pictures.{kind}"


@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "tar.gz"])
def test_images_are_read_alike_from_everywhere(kind: str, empty_folder: Path) -> None:
    """The outermost folder says which part it is: a class may be called train."""
    found = images.read(written(kind, FILES))
    assert (found.width, found.height, found.pixels) == (6, 5, 30)
    assert {part: len(some) for part, some in found.parts.items()} == {"train": 2, "test": 1}
    names = {"train": ["train/cat/2.PNG", "train/train/1.png"], "test": ["test/train/3.png"]}
    if kind.startswith("tar"):
        names["train"].reverse()  # in the order of the file
    for part, some in names.items():
        expected = np.array([grey(FILES[name]) for name in some]).reshape(len(some), 30)
        assert np.abs(found.parts[part].numpy().astype(int) - expected).max() <= 1  # half of a grey may go either way


def test_a_share_is_cut_off_by_the_seed(empty_folder: Path) -> None:
    found = images.read(written("folder", {f"{k:02d}.png": picture(k) for k in range(20)}))
    parts = found.cut(0.2, 0.1, seed=3).parts
    assert {part: len(some) for part, some in parts.items()} == {"train": 14, "valid": 2, "test": 4}
    together = sorted(bytes(row) for some in parts.values() for row in some.numpy())
    assert together == sorted(bytes(row) for row in found.parts["train"].numpy())
    again, other = (found.cut(0.2, 0.1, seed=s).parts["test"] for s in (3, 4))
    assert again.tolist() == parts["test"].tolist() != other.tolist()
    assert list(found.cut(0.0, 0.0, seed=0).parts) == ["train"]


def truncated() -> bytes:
    noise = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(noise, "JPEG")
    return noise.getvalue()[:900]


def claiming(side: int) -> bytes:
    """A small PNG whose head says that it is large."""
    content = picture(1)
    head = b"IHDR" + side.to_bytes(4, "big") * 2 + content[24:29]
    return content[:12] + head + zlib.crc32(head).to_bytes(4, "big") + content[33:]


def deep() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((5, 6), np.uint16)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "has no images (found: nothing): expected a folder, a zip or a tar"),
        ({"a.txt": b"a"}, "has no images (found: a.txt): expected a folder, a zip or a tar"),
        ({"test/a.png": picture(1)}, "has test/a.png and nothing to train on"),
        ({"a.png": picture(1), "b.png": picture(2, (7, 5))}, "has 7 x 5 pixels, and "),
        ({"a.png": b"no image"}, "cannot be read as an image (UnidentifiedImageError: of no known kind): mend it"),
        ({"a.jpg": truncated()}, "cannot be read as an image (OSError: image file is truncated"),
        ({"a.png": picture(1)[:60]}, "cannot be read as an image ("),
        ({"a.png": b""}, "cannot be read as an image ("),
        ({"a.png": claiming(317)}, "has 317 x 317 pixels: expected at most 100,000 in all; scale the images."),
        ({"a.png": claiming(12_000)}, "has 12000 x 12000 pixels: expected at most 100,000 in all"),
        ({"a.png": claiming(20_000)}, "has many millions of pixels: expected at most 100,000 in all"),
        ({"a.png": deep()}, ": expected 8 bits a colour; convert it."),
        ({"data_batch_1": b"\x80\x02"}, "cannot be read (EOFError: "),
    ],
)
def test_what_is_refused(kind: str, files: dict[str, bytes], says: str, empty_folder: Path) -> None:
    path = written(kind, files)
    if kind == "folder":
        Path(path).mkdir(exist_ok=True)
    with pytest.raises(PlaitError) as refused:
        images.read(path)
    assert says in str(refused.value)
    assert "pictures" in str(refused.value)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "The path is empty: expected a folder"),
        ("nowhere", "nowhere does not exist: expected a folder"),
        ("some.zip", "some.zip is not a zip, or is damaged"),
        ("some.tar.gz", "some.tar.gz is not a tar, or is damaged"),
        ("cut.tar.gz", "cut.tar.gz is not a tar, or is damaged"),
        ("up.tar", "up.tar has a member '../a.png', which leads out of the tar: do not trust it."),
        ("one.png", "one.png is one image: give the folder that it is in"),
    ],
)
def test_no_place_with_images(path: str, says: str, empty_folder: Path) -> None:
    for name in ("some.zip", "some.tar.gz", "one.png"):
        Path(name).write_bytes(b"something else")
    whole = Path(written("tar.gz", FILES)).read_bytes()
    Path("cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    Path(written("tar", {"../a.png": picture(1)})).rename("up.tar")
    with pytest.raises(PlaitError) as refused:
        images.read(path)
    assert says in str(refused.value)


# --- CIFAR's batches -------------------------------------------------------------------------------------------------
COLOURS = np.random.default_rng(0).integers(0, 256, (7, 3, 32, 32), np.uint8)


def batch(rows: np.ndarray, protocol: int) -> bytes:
    names = [b"a.png"] * len(rows)
    return pickle.dumps({b"data": rows, b"labels": [1] * len(rows), b"filenames": names}, protocol)


def of_python_2() -> bytes:
    """As the published files are: text of one byte a letter, arrays by numpy.core.multiarray."""
    raw = COLOURS.tobytes()
    start = b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85"
    kind = b"U\x01b\x87Rq\x05(K\x01K\x07M\x00\x0c\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNN"
    end = b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    return start + kind + end + b"U\x06labels](K\x01K\x02eu."


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5, "python 2"])
def test_a_batch_is_what_pillow_makes_of_its_images(protocol: int | str) -> None:
    flat = COLOURS.reshape(7, -1)
    content = of_python_2() if isinstance(protocol, str) else batch(flat, protocol)
    found = cifar.images(content, "data_batch_1")
    for pixels, colours in zip(found, COLOURS, strict=True):
        assert pixels.tolist() == np.asarray(Image.fromarray(colours.transpose(1, 2, 0)).convert("L")).tolist()
    columns_first = cifar.images(batch(np.asfortranarray(flat), 4), "data_batch_1")
    assert columns_first.tolist() == found.tolist()


def test_batches_have_parts(empty_folder: Path) -> None:
    flat = COLOURS.reshape(7, -1)
    files = {f"cifar-10-batches-py/data_batch_{k}": batch(flat[k : k + 2], 2) for k in (1, 2)}
    files |= {"cifar-10-batches-py/test_batch": batch(flat[:3], 2), "cifar-10-batches-py/batches.meta": b"whatever"}
    for kind in ("folder", "zip", "tar.gz"):
        found = images.read(written(kind, files))
        assert {part: len(some) for part, some in found.parts.items()} == {"train": 4, "test": 3}
        expected = cifar.images(batch(flat, 2), "")[[1, 2, 2, 3]].reshape(4, -1)
        assert found.parts["train"].tolist() == expected.tolist()


class Runs:
    """Runs a command when it is unpickled by anybody who trusts it."""

    def __init__(self, call, *args) -> None:
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args


ROWS = COLOURS.reshape(7, -1)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Runs(os.system, "touch ran"), "system"),
        ({b"data": ROWS, b"more": Runs(os.mkdir, "ran")}, "mkdir"),
        ({b"data": ROWS, b"labels": 1j}, "complex"),
        ({b"data": Runs(eval, "open('ran', 'w')")}, "eval"),
        ({b"data": Path("a")}, "pathlib"),
        ({b"data": ROWS, b"more": np.float64(1)}, "scalar"),
    ],
)
def test_a_pickle_with_anything_else_runs_nothing(value, name: str, protocol: int, empty_folder: Path) -> None:
    content = pickle.dumps(value, protocol)
    with pytest.raises(PlaitError) as refused:
        cifar.images(content, "data_batch_1")
    said = str(refused.value)
    assert said.startswith("data_batch_1 asks for ")
    assert name in said
    assert said.endswith("expected a pickle of arrays, bytes, lists and dicts alone.")
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "EOFError"),
        (batch(ROWS, 2)[:5000], "cannot be read"),
        (pickle.dumps([1, 2]), "it has no data"),
        (pickle.dumps({b"data": [1, 2]}), "its data is no array"),
        (batch(ROWS.astype(float), 4), "its array is not one of bytes"),
        (batch(ROWS[:, :100], 4), "has data of shape (7, 100): expected a batch of CIFAR-10, with data (n, 3072)"),
        (of_python_2().replace(b"K\x07M\x00\x0c", b"K\x08M\x00\x0c"), "another number of bytes than its shape says"),
        (b"\x80\x02r\xff\xff\xff\xff.", "cannot be read"),
        (b"\x80\x02P1\n.", "asks for a persistent object, which may run code"),
        (b"\x80\x02" + b"]" * 1000 + b".", "it has no data"),
    ],
)
def test_a_batch_that_is_none(content: bytes, says: str) -> None:
    with pytest.raises(PlaitError) as refused:
        cifar.images(content, "data_batch_1")
    assert says in str(refused.value)


# --- shapes, and the real ones ---------------------------------------------------------------------------------------
def test_shapes_are_the_same_each_time_and_differ_from_one_another() -> None:
    found, again = (shapes(30, 16).parts["train"] for _ in range(2))
    assert found.tolist() == again.tolist()
    assert len({bytes(row) for row in found.numpy()}) == 30
    assert found.float().std(1).min() > 3  # none is blank


def test_cifar_as_jpeg() -> None:
    found = images.read(str(data_file("cifar10-jpeg-subset.zip")))
    assert {part: tuple(some.shape) for part, some in found.parts.items()} == {
        "train": (5000, 1024),
        "test": (1000, 1024),
    }
