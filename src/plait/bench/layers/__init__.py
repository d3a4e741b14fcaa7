"""How much faster is a training step of plait's layers than of torch.nn's?"""

from ..core import options
from ..core.options import option


class Options(options.Options):
    shapes: str | None = option(None, f"{options.SHAPES}  (default: twelve from small to large)")
    cells: str = options.cells("lstm,gru,rnn")
    random: int | None = option(None, "Measure this many random shapes, and print the worst.", "N")
    engine: str = options.engine()
    input_gradient: bool = option(False, "The gradient of the input, too.")
    quick: bool = options.quick("Four of the shapes: about a minute, not about 8.")
    malloc: str = option("default", "default, or tuned: glibc is told to keep its memory.")
    repeats: int = options.repeats(9)
