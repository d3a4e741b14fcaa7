"""A generator of small grey images: discs, rings, bars, rectangles and triangles on a slope of grey."""

import numpy as np
from numpy.typing import NDArray

from .images import Images

SIDE, COUNT, SEED = 32, 2000, 0
Values = NDArray[np.float64]


def shapes(count: int = COUNT, side: int = SIDE, seed: int = SEED) -> Images:
    """The same images whenever it is called with the same numbers."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] * (2 / (side - 1)) - 1  # -1 to 1
    found = np.empty((count, side, side), np.uint8)
    for k in range(count):
        tilt, level = rng.uniform(-0.2, 0.2, 2), rng.uniform(0.1, 0.5)
        image = level + tilt[0] * x + tilt[1] * y
        for _ in range(rng.integers(1, 4)):
            (right, down), angle, size = rng.uniform(-0.5, 0.5, 2), rng.uniform(0, np.pi), rng.uniform(0.2, 0.6)
            u = (x - right) * np.cos(angle) + (y - down) * np.sin(angle)
            v = (y - down) * np.cos(angle) - (x - right) * np.sin(angle)
            inside = distance(int(rng.integers(5)), u, v, size)  # below 0 inside
            cover = np.clip(0.5 - inside * side / 2, 0, 1)  # an edge is one pixel wide
            image += cover * (rng.uniform(0, 1) - image)
        found[k] = np.clip(255 * image, 0, 255).round()
    return Images.of("shapes", {"train": found})


def distance(kind: int, u: Values, v: Values, size: float) -> Values:
    """From the edge of a shape about (0, 0), more or less."""
    if kind == 0:
        return np.asarray(np.hypot(u, v) - size)  # a disc
    if kind == 1:
        return np.asarray(np.abs(np.hypot(u, v) - size) - 0.25 * size)  # a ring
    if kind == 2:
        return np.asarray(np.maximum(np.abs(u) - 1.5 * size, np.abs(v) - 0.2 * size))  # a bar
    if kind == 3:
        return np.asarray(np.maximum(np.abs(u) - size, np.abs(v) - 0.6 * size))  # a rectangle
    return np.asarray(np.maximum(0.87 * np.abs(u) + 0.5 * v - 0.5 * size, -v - 0.5 * size))  # a triangle
