"""Engine python with textbook backpropagation through time: O(T^2)."""

from collections.abc import Sequence

from ...engines.python import BackThroughTime, Matrix, PythonEngine, zeros


class QuadraticEngine(PythonEngine):
    name, about = "python, O(T^2)", "scalar loops, with textbook O(T^2) backpropagation through time"

    def carry_back(self, way: BackThroughTime, steps: Sequence[int], d_y: list[Matrix], d_end: list[Matrix]) -> None:
        """The loss of each step is carried back to the beginning by itself; then that of the last states."""
        layout, start = way.layout, [(len(d), len(d[0]) if d else 0) for d in d_end]
        for position, t in enumerate(steps):
            first, end = layout.starts[t], layout.starts[t] + layout.sizes[t]
            alone = [[row if first <= i < end else [0.0] * len(row) for i, row in enumerate(matrix)] for matrix in d_y]
            way.back(steps[position:], alone, [zeros(*shape) for shape in start])
        way.back(steps, [[[0.0] * len(row) for row in matrix] for matrix in d_y], d_end)
