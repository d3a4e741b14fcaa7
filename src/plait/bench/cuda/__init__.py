"""What do the CUDA versions bring on this device? First whether they are right, then how long they take.

A training step is a layer, a linear head on its last state, the squared error and gradient descent. Versions 1 to 3
begin and end in the host's memory; version 4 and torch's own layer stay on the device. A version skips shapes that
would take it too long: one thread is slow. Send the table back: see docs/cuda.md.
"""

from ..core import options
from ..core.options import option


class Options(options.Options):
    shapes: str = option("8,12,1,16,1 32,12,1,64,1 100,50,64,128,1 64,128,128,256,1", options.SHAPES)
    cells: str = options.cells("lstm,gru,rnn")
    repeats: int = options.repeats(5)
