"""How many tokens a second does a language model train on, beside a script with torch's layers?

plait's task; the same with torch.nn's layer in it; and the model as a PyTorch script has it: nn.LSTM, nn.Linear and
cross_entropy. All with the same optimizer, clipping and data.
"""

from ..core import options
from ..core.options import option


class Options(options.Options):
    data: str | None = options.text_data()
    cell: str = options.cell("lstm")
    hidden: int = option(200, "Units in a layer.")
    layers: int = option(2, "Layers.")
    batch: int = option(20, "Streams.")
    steps: int = option(20, "Steps that a gradient goes back through.")
    softmax: str = option("full", "full or adaptive; of plait's task.")
    count: int = option(20, "Training steps in one measurement.")
    repeats: int = options.repeats(7)
