"""What does a training step take beside processes that compute all the time, on one thread and on several?"""

from ..core import options
from ..core.options import option, sized


class Options(options.Options):
    busy: str = sized("0,1,2,4", "0,2", "Processes that are kept busy meanwhile, with commas.")
    shapes: str = option("32,128,64,64,1 32,12,8,32,1", options.SHAPES)
    cells: str = options.cells("lstm,gru")
    engine: str = options.engine()
    quick: bool = options.quick("Beside 0 and 2 processes, with shorter blocks: about a minute, not about 5.")
    repeats: int = options.repeats(5)
