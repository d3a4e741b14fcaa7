"""Turning images: all of them by all angles in one operation. And the best linear map from one turn to the next."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from ..kernels import pool

AT_ONCE = 16  # images: 1000 of them took 56 ms so, and 219 ms at once
RIDGE = 1e-5  # of the mean square of an input, added to every square


class Rotation:
    """Turns images (n, height * width) counter-clockwise, each from the original."""

    def __init__(self, height: int, width: int, degrees: Sequence[float]) -> None:
        self.size, self.degrees = (height, width), degrees
        down = torch.arange(height, dtype=torch.float64).unsqueeze(1) - (height - 1) / 2  # (height, 1)
        right = torch.arange(width, dtype=torch.float64) - (width - 1) / 2  # (width,)
        grids = []
        for angle in degrees:
            cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            # where a pixel comes from: in pixels from the centre, then in halves of the image
            x, y = cos * right - sin * down, sin * right + cos * down
            grids.append(torch.stack([2 * x / width, 2 * y / height], 2))
        self.grid = torch.stack(grids)  # (angles, height, width, 2)

    def __call__(self, images: Tensor) -> Tensor:  # (n, P) -> (angles, n, P)
        """The images are channels, so that a grid serves many of them."""
        grid, found = self.grid.to(images.dtype), pool.empty(images, len(self.degrees), *images.shape)
        for k in range(0, len(images), AT_ONCE):
            some = images[k : k + AT_ONCE].unflatten(1, self.size).expand(len(self.degrees), -1, -1, -1)
            found[:, k : k + AT_ONCE] = grid_sample(some, grid, align_corners=False).flatten(2)
        return found


def ridge(images: Tensor, turn: Rotation, features: int) -> Tensor:
    """The linear map (features, features) that takes each turn to the next one with the least squared error.

    A turn is linear itself, x_t = A_t x. So the sums over all images and steps, x_t x_t' and x_t x_{t+1}', are
    A_t G A_t' and A_t G A_{t+1}' with one matrix G = sum of x x' over the images: its rows are turned, and its columns.
    """
    P = images.shape[1]
    G = torch.zeros(P, P, dtype=torch.float64)
    for some in images.split(4096):
        G.addmm_(some.double().t(), some.double())
    rows = [Rotation(*turn.size, [angle])(G)[0][:, :features] for angle in turn.degrees]  # G A_t': (P, features) each
    inputs, pairs = (torch.zeros(features, features, dtype=torch.float64) for _ in range(2))
    for t in range(len(rows) - 1):
        again = Rotation(*turn.size, [turn.degrees[t]])
        inputs += again(rows[t].t())[0][:, :features]
        pairs += again(rows[t + 1].t())[0][:, :features].t()  # x_t x_{t+1}'
    inputs.diagonal().add_(RIDGE * inputs.diagonal().mean() + torch.finfo(torch.float64).tiny)
    found: Tensor = torch.linalg.solve(inputs, pairs)
    return found.float()
