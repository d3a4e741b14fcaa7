"""How exact are the kernels' functions, and torch's? Every float32 of a range, or every n-th; float64 at random."""

from ..core import options
from ..core.options import option, sized


class Options(options.Options):
    bound: float = option(20.0, "The range goes from minus this to this.")
    step: int = sized(8, 256, "1 takes every float32 of the range, 8 one of 8.")
    quick: bool = options.quick("Fewer numbers: under a minute.")
