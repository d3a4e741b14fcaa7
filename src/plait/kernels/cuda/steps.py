"""Whole training steps on the device, as the first paper has them: a layer, a linear head on the last h, the mean
squared error and the way back, all in one kernel. The weights are the host's, and it moves them down the gradient.
"""

from collections.abc import Mapping

import numpy as np

from ...cells import Cell
from ...cells.trace import trace
from ...layout import Layout
from .launches import Array, Launch, Moved, kernel
from .samples import Form

WEIGHTS = ("w_ih", "w_hh", "b_ih", "b_hh", "w_out", "b_out")  # the paper's U, W, B; V and b_out


class TrainingStep:
    """weights: by those names, as torch.nn shapes them; then the cell's own. They are changed in place."""

    def __init__(self, cell: type[Cell], weights: Mapping[str, Array], version: int) -> None:
        self.cell, self.version, self.moved = cell, version, Moved()
        self.weights = {name: weights[name] for name in WEIGHTS}
        self.weights |= {f"param_{k}": weights[name] for k, name in enumerate(cell.params)}
        self.form = Form(cell, positioned=version > 1)
        self.kernel = kernel(self.form, "train", weights["w_hh"].dtype.name)

    def __call__(self, x: Array, y: Array, lr: float, lengths: Array | None = None) -> float:
        """x (T, B, I), y (B, O) -> the loss before the step. Lengths, if any, with the longest first."""
        gradients, loss = self.gradients(x, y, lengths)
        for name, d in gradients.items():
            d *= lr
            self.weights[name] -= d
        return loss

    def gradients(self, x: Array, y: Array, lengths: Array | None = None) -> tuple[dict[str, Array], float]:
        T, B, I = x.shape
        dtype, w_hh = x.dtype, self.weights["w_hh"]
        GH, H = w_hh.shape
        layout = Layout(T, B) if lengths is None else Layout.of_sorted(lengths)
        N, extra = layout.N, trace(self.cell).extra
        rows = x.reshape(N, I) if lengths is None else x[layout.steps_and_places]

        def empty(*shape: int) -> Array:
            return np.empty(shape, dtype)

        states = range(len(self.cell.states))
        work = {"wx": empty(N, GH), "gates": empty(N, GH), "extra": empty(N, extra * H), "d_wx": empty(N, GH)}
        work |= {"d_rh": empty(N, GH), **{f"d_state_{k}": empty(B, H) for k in states}}
        past = {f"past_{k}": np.zeros((B + N, H), dtype) for k in states}  # begins with zeros
        read = {
            "starts": layout.bounds.numpy(),
            "x": rows,
            "y": y,
            "scale": np.full(1, 1 / y.size, dtype),
            **self.weights,
        }
        sums = {f"d_{name}": np.zeros_like(w) for name, w in self.weights.items()}
        loss = np.zeros(B, dtype)
        used = set(self.kernel.arrays)
        groups = {"read": read, "work": work, "clear": past, "sums": {**sums, "loss": loss}}
        chosen = {group: {k: v for k, v in some.items() if k in used} for group, some in groups.items()}
        self.kernel.run(Launch((layout.T, B, N, I, H, H), **chosen), self.version, self.moved)
        return {name.removeprefix("d_"): d for name, d in sums.items()}, float(loss.sum())
