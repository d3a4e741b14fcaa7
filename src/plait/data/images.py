"""Images of one size, grey, in parts: from CIFAR's batches, or from a folder, a zip or a tar of image files."""

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import PlaitError, counted
from . import cifar
from .containers import Container, container
from .files import reading
from .sequences import PARTS
from .text import PART_OF

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
EXPECTED = "expected a folder, a zip or a tar, with images or with CIFAR-10's data_batch files"
MOST = 4 * 2**30  # bytes
LARGEST = 100_000  # pixels of an image: each is an input of the network
EIGHT_BITS = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


@dataclass(frozen=True, eq=False)
class Images:
    name: str
    height: int
    width: int
    parts: Mapping[str, Tensor]  # train; valid and test, if there are such parts: (n, height * width) of bytes

    @property
    def pixels(self) -> int:
        return self.height * self.width

    @classmethod
    def of(cls, name: str, parts: Mapping[str, NDArray[np.uint8]]) -> "Images":
        _, height, width = next(iter(parts.values())).shape
        rows = {p: torch.from_numpy(np.ascontiguousarray(parts[p])).flatten(1) for p in PARTS if p in parts}
        return cls(name, height, width, rows)

    def cut(self, test: float, validation: float, seed: int) -> "Images":
        """Takes missing parts from the images to train on: a seeded share of each."""
        parts = dict(self.parts)
        for number, (part, share) in enumerate((("test", test), ("valid", validation))):
            if part in parts or not share:
                continue
            n = len(parts["train"])
            count = max(1, round(share * n))
            if count >= n:
                few = f"too few to take {share:.0%} of them for the {part} part; give more, or take a smaller share"
                raise PlaitError(f"{self.name} has {counted(n, 'image')} to train on: {few}.")
            order = torch.from_numpy(np.random.default_rng([seed, number]).permutation(n))
            parts[part], parts["train"] = (parts["train"][k.sort().values] for k in (order[:count], order[count:]))
        return Images(self.name, self.height, self.width, {p: parts[p] for p in PARTS if p in parts})


def read(path: str) -> Images:
    if not path:
        raise PlaitError(f"The path is empty: {EXPECTED}.")
    if Path(path).suffix.lower() in SUFFIXES and Path(path).is_file():
        raise PlaitError(f"{path} is one image: give the folder that it is in.")
    name = Path(path).absolute().name
    with reading(path, EXPECTED), container(Path(path), EXPECTED, "images", MOST) as inside:
        batches = [n for n in inside.names if cifar.part_of(n)]
        files = batches or [n for n in inside.names if PurePosixPath(n).suffix.lower() in SUFFIXES]
        if not files:
            found = ", ".join(inside.names[:3]) + (f" and {len(inside.names) - 3} more" if inside.names[3:] else "")
            raise PlaitError(f"{path} has no images (found: {found or 'nothing'}): {EXPECTED}.")
        inside.check(files)
        by_part: dict[str, list[str]] = {}
        for file in files:
            by_part.setdefault((cifar.part_of if batches else part_of)(file) or "train", []).append(file)
        if "train" not in by_part:
            raise PlaitError(f"{path} has {files[0]} and nothing to train on: expected images beside those of a part.")
        if batches:
            parts = {
                p: np.concatenate([cifar.images(inside.read(n), inside.called(n)) for n in names])
                for p, names in by_part.items()
            }
            empty = [p for p, found in parts.items() if not len(found)]
            if empty:
                raise PlaitError(f"{path} has no images in its {empty[0]} part: {EXPECTED}.")
            return Images.of(name, parts)
        return Images.of(name, stacked(inside, by_part))


def part_of(name: str) -> str | None:
    """By the first folder that is named after a part: train/cat/1.png."""
    return next((PART_OF[step] for step in map(str.lower, PurePosixPath(name).parts[:-1]) if step in PART_OF), None)


def stacked(inside: Container, by_part: Mapping[str, Sequence[str]]) -> dict[str, NDArray[np.uint8]]:
    first: tuple[str, tuple[int, ...]] | None = None
    parts = {}
    for part, names in by_part.items():
        found = []
        for name in names:
            pixels = decoded(inside.read(name), inside.called(name))
            first = first or (inside.called(name), pixels.shape)
            if pixels.shape != first[1]:
                sizes = [f"{shape[1]} x {shape[0]}" for shape in (pixels.shape, first[1])]
                raise PlaitError(
                    f"{inside.called(name)} has {sizes[0]} pixels, and {first[0]} has {sizes[1]}: expected images of "
                    "one size; scale or cut them."
                )
            found.append(pixels)
        parts[part] = np.stack(found)
    return parts


def decoded(content: bytes, where: str) -> NDArray[np.uint8]:  # (height, width)
    """An image file, grey; of a film, the first picture."""
    from PIL import Image, UnidentifiedImageError

    most = f"expected at most {LARGEST:,} in all; scale the images"
    try:
        # What Pillow warns of is of no account (marks of a camera), or it is refused.
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(content)) as image:
            width, height = image.size  # from its head: nothing is unpacked yet
            if width * height > LARGEST:
                raise PlaitError(f"{where} has {width} x {height} pixels: {most}.")
            if image.mode not in EIGHT_BITS:
                raise PlaitError(f"{where} has pixels of kind {image.mode}: expected 8 bits a colour; convert it.")
            return np.asarray(image.convert("L"))
    except PlaitError:
        raise
    except Image.DecompressionBombError:
        raise PlaitError(f"{where} has many millions of pixels: {most}.") from None
    except Exception as e:  # of many kinds, one for each format: OSError, SyntaxError, struct.error
        why = "of no known kind" if isinstance(e, UnidentifiedImageError) else str(e).split("\n")[0]
        raise PlaitError(
            f"{where} cannot be read as an image ({type(e).__name__}: {why:.80}): mend it, or take it away."
        ) from None
