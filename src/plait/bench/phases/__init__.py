"""Where does a training step of engine fused spend its time?

Each phase of engine `fused` is called by itself, one after another. In a layer's own step small matrix products are
done inside the recurrence, and autograd adds its part: so the step stands beside the sum.
"""

from ..core import options
from ..core.options import option


class Options(options.Options):
    task: str | None = option(None, "rotate: the fourth paper's ten phases, on its network.")
    shapes: str | None = option(None, f"{options.SHAPES}  (default: 32,128,64,64,1; for rotate 1000,10,1000,1000,1)")
    cells: str | None = option(None, "Of lstm, gru and rnn, with commas.  (default: lstm; for rotate rnn)")
    repeats: int = options.repeats(9)
