"""Rotate: an image in, the same image turned a little further out, step by step. The task of the fourth paper."""

import hashlib
import math
import shlex
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..data import images, shapes
from ..data.images import Images
from ..data.sampler import Sampler
from ..data.sequences import PARTS
from ..errors import PlaitError, counted
from ..kernels import pool
from ..layers import layer, packed
from ..training.run import Run
from ..training.tensors import dumps, loads
from .base import SampleTask, Table, sizes
from .memory import FLOAT, at_once, build_model, check_fits
from .pictures import curves_picture, turning_picture
from .rotation import Rotation, ridge
from .settings import RotateSettings

FILE = "images.safetensors"
MOST_ROWS = 2**12  # that are evaluated together, more or less
WIDEST_RIDGE = 4096  # pixels: a ridge regression takes a matrix of their square
WITHOUT = {  # what needs no network -> how it is called
    "repeat": "repeat the last image",
    "turn": "turn it by interpolation",
    "ridge": "ridge regression",
}


class Rotator(nn.Module):
    """Pixels (T, B, features) -> those of the next step: tanh(V h), as in the paper."""

    def __init__(self, s: RotateSettings, features: int) -> None:
        super().__init__()
        options: dict[str, Any] = {"bias": s.bias, "dropout": s.dropout, **s.of_layers()}
        self.rnn = layer(s.cell, features, s.hidden, s.layers, **options)
        self.head = nn.Linear(s.hidden, features, bias=s.bias)

    def forward(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """ids: (B,), which sequences they are"""
        h, _ = self.rnn(x, **({} if ids is None else {"ids": ids}))
        return torch.tanh(self.head(h))


def squared_error(predicted: Tensor, truth: Tensor) -> Tensor:
    return nn.functional.mse_loss(predicted, truth, reduction="sum") / truth.shape[1]


class Turned(NamedTuple):
    whole: Tensor  # (T + 1, B, pixels)
    inputs: Tensor  # (T, B, features)
    targets: Tensor  # (T, B, features)


class Rotate(SampleTask):
    """Images in parts, each turned when it is used."""

    name, kind = "rotate", RotateSettings
    settings: RotateSettings
    model: Rotator

    def __init__(self, settings: RotateSettings, data: Images, *, training: bool = True) -> None:
        s = self.settings = settings
        self.data, self.features = data, s.features or data.pixels
        if self.features > data.pixels:
            size = f"{data.width} x {data.height} pixels, {data.pixels} in all"
            raise PlaitError(f"features {s.features}: the images have {size}; take at most those.")
        n = len(data.parts["train"])
        batch = s.batch_size(n)
        make = partial(Rotator, s, self.features)
        self.model = build_model(s, make, batch * s.steps, s.steps, training=training)
        if training:
            rows = 2 * data.pixels + 3 * self.features  # whole images and the cut ones; outputs and their gradients
            what = f"batch {batch}, {s.steps} steps of {data.pixels} pixels"
            check_fits(FLOAT * batch * (s.steps + 1) * rows, what, "lower --batch or --steps")
        self.sampler = Sampler(n, batch, s.seed)
        self.turn = Rotation(data.height, data.width, [t * s.degrees for t in range(s.steps + 1)])

    @classmethod
    def read(cls, settings: RotateSettings) -> "Rotate":
        s = settings
        found = shapes.shapes() if s.data is None else images.read(s.data)
        s.only_with("test", "test" not in found.parts, "data without a test part")
        if "test" not in found.parts and not s.test:
            raise PlaitError(f"{found.name} has no test part: give --test a share.")
        return cls(s, found.cut(s.test, s.validation, s.seed))

    # --- in the folder of a run
    @classmethod
    def reopen(cls, settings: RotateSettings, run: Run, *, training: bool = False) -> "Rotate":
        path = run.path / FILE
        tensors, about = loads(path, run.read(FILE))
        parts = {part: tensors[part] for part in PARTS if part in tensors}
        try:
            name, height, width = (about[key] for key in ("name", "height", "width"))
            fit = [p.dtype == torch.uint8 and p.shape == (len(p), height * width) and len(p) for p in parts.values()]
            if not all(fit) or not {"train", "test"} <= parts.keys() or height < 1:
                raise ValueError("its parts are not images of its size")
        except (KeyError, TypeError, ValueError) as e:
            raise PlaitError(f"{path} has no images ({e}): restore it from a copy, or train again.") from None
        return cls(settings, Images(name, height, width, parts), training=training)

    def files(self) -> dict[str, bytes]:
        data = self.data
        return {FILE: dumps(dict(data.parts), {"name": data.name, "height": data.height, "width": data.width})}

    @cached_property
    def digest(self) -> str:
        content = hashlib.sha256(f"{self.data.height} x {self.data.width}".encode())
        for part, found in self.data.parts.items():
            content.update(f" {part} {len(found)} ".encode())
            content.update(found.numpy().data)
        return content.hexdigest()

    def about(self) -> list[str]:
        s, data = self.settings, self.data
        counts = {part: len(found) for part, found in data.parts.items()}
        used = "" if self.features == data.pixels else f", the first {self.features:,} pixels"
        without = (f"{key} {error_text(self.without[key])}" for key in WITHOUT)
        return [
            f"{data.name}: {sizes(counts)}; {data.width} x {data.height} pixels{used}",
            f"{s.steps} turns of {s.degrees:g} degrees; test error per pixel: {', '.join(without)}",
            f"{s.cell}, {s.layers} x {s.hidden} units, tanh output, {'with' if s.bias else 'no'} bias",
        ]

    # --- training
    def some(self, part: str, indices: Tensor | slice) -> Turned:
        whole = self.turn(self.data.parts[part][indices].float() / 255)
        inputs, targets = whole[:-1, :, : self.features], whole[1:, :, : self.features]
        if not inputs.is_contiguous():
            inputs = pool.empty(inputs, *inputs.shape).copy_(inputs)
        return Turned(whole, inputs, targets)

    def loss(self, indices: Tensor) -> tuple[Tensor, int]:
        indices = self.sampler.share(indices, self.rank, self.ranks)
        if not len(indices):
            return torch.zeros(()), 0
        _, inputs, targets = self.some("train", indices)
        return squared_error(self.model(inputs, indices), targets), len(indices)

    def validate(self) -> float | None:
        if "valid" not in self.data.parts:
            return None
        return self.error("valid") * self.numbers

    # --- how good it is
    @property
    def numbers(self) -> int:
        return self.settings.steps * self.features

    def shown(self, loss: float) -> str:
        return f"error per pixel {error_text(loss / self.numbers)}"

    def pieces(self, part: str) -> Iterator[Turned]:
        n, s = len(self.data.parts[part]), self.settings
        rows = at_once(2 * self.data.pixels + 3 * self.features + 2 * s.hidden, MOST_ROWS)
        size = max(1, rows // s.steps)
        yield from (self.some(part, slice(k, k + size)) for k in range(0, n, size))

    @torch.no_grad()
    def error(self, part: str) -> float:
        self.model.eval()
        with packed(self.model):
            total = sum(float(squared_error(self.model(x), y)) * y.shape[1] for _, x, y in self.pieces(part))
        return total / (len(self.data.parts[part]) * self.numbers)

    @cached_property
    def without(self) -> dict[str, float | None]:
        """Errors per pixel on the test images, of what needs no network."""
        step, F = Rotation(self.data.height, self.data.width, [self.settings.degrees]), self.features
        weights = None
        if self.data.pixels <= WIDEST_RIDGE:
            weights = ridge(self.data.parts["train"].float() / 255, self.turn, F)
        errors = {key: 0.0 for key in WITHOUT if key != "ridge" or weights is not None}
        share = 1 / (len(self.data.parts["test"]) * self.numbers)
        for whole, x, y in self.pieces("test"):
            found = {"repeat": x, "turn": step(whole[:-1].flatten(0, 1))[0].unflatten(0, x.shape[:2])[:, :, :F]}
            if weights is not None:
                found["ridge"] = x @ weights
            for key, predicted in found.items():
                errors[key] += float(squared_error(predicted, y)) * y.shape[1] * share
        return {key: errors.get(key) for key in WITHOUT}

    def evaluate(self) -> dict[str, Any]:
        error = self.error("test")
        if not math.isfinite(error):
            raise PlaitError(f"the error of the network is {error}: train again with a lower --lr.")
        return {"images": len(self.data.parts["test"]), "model": error, **self.without}

    def table(self, metrics: dict[str, Any]) -> Table:
        s = self.settings
        rows = [[s.cell, error_text(metrics["model"])]]
        rows += [[name, error_text(metrics[key])] for key, name in WITHOUT.items()]
        images = counted(metrics["images"], "image")
        title = f"{images} of the test, never seen in training, {s.steps} x {s.degrees:g} degrees:"
        if metrics["ridge"] is not None and metrics["ridge"] < metrics["turn"]:
            title += "\n(a ridge regression is better than interpolation, so interpolation is no bound)"
        return Table(title, ["", "squared error per pixel"], rows)

    @torch.no_grad()
    def pictures(self, metrics: dict[str, Any], history: Sequence[dict[str, Any]]) -> dict[str, bytes]:
        self.model.eval()
        _, x, y = self.some("test", slice(0, 1))
        rows = {"input": x, "prediction": self.model(x), "truth": y}
        shaped = {name: self.shaped(found[:, 0]) for name, found in rows.items()}
        title = f"{self.data.name}, {self.settings.cell}: error per pixel {error_text(metrics['model'])}"
        found = {"turns.png": turning_picture(title, shaped, self.settings.degrees)}
        both = ("loss", "validation")
        curves = [{**row, **{k: row[k] and row[k] / self.numbers for k in both}} for row in history]
        drawn = {"curves.png": curves_picture(self.data.name, curves, "error per pixel")} if history else {}
        return found | drawn

    def shaped(self, rows: Tensor) -> Any:  # (T, features) -> (T, height, width)
        whole = torch.full((len(rows), self.data.pixels), float("nan"))
        whole[:, : self.features] = rows
        return whole.unflatten(1, (self.data.height, self.data.width)).numpy()

    def afterwards(self, folder: Path) -> tuple[str, str]:
        return "evaluate", f"plait evaluate {shlex.quote(str(folder))}"


def error_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}" if value >= 0.001 else f"{value:.2g}"
