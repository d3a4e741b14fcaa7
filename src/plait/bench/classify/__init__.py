"""How many sequences a second does a classifier train on, beside a PyTorch script with nn.GRU?

A whole epoch each: batches in a random order, both passes, clipping, Adam, and the validation part at its end. plait's
is the loop that `plait train classify` runs. The script has its data as tensors, padded and packed if lengths differ.
"""

from ..core import options
from ..core.options import option, sized


class Options(options.Options):
    data: str | None = option(None, "Sequences, as plait train classify has them.  (default: made up, as UCI HAR)")
    hidden: int = sized(100, 32, "Units in a layer.")
    layers: int = sized(2, 1, "Layers.")
    batch: int = option(100, "Sequences in a step.")
    dropout: float = option(0.0, "Dropout between layers, and before the last one.")
    quick: bool = options.quick("A small network: under a minute.")
    repeats: int = options.repeats(7)
