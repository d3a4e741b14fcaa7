"""How exact are the kernels' functions, and torch's? Every float32 of a range, or every n-th; float64 at random."""

from ..core import options
from ..core.options import option


class Options(options.Options):
    bound: float = option(20.0, "The range goes from minus this to this.")
    step: int = option(8, "1 takes every float32 of the range, 8 one of 8.")
