"""What does a training step cost, by the size of the batch and by the size of the layer?"""

from ..core import options
from ..core.options import option


class Options(options.Options):
    size: int = option(256, "Units, and inputs, while the batch grows.")
    cell: str = options.cell("rnn")
    engine: str = options.engine()
    repeats: int = options.repeats(9)
