"""What can be asked: the options of every question. Docstrings are for --help."""

from typing import Any

from ..errors import between
from ..tasks.settings import WIDEST, LanguageSettings
from . import options
from .options import CELLS, SHAPES, Options, option, sized

MANY = 1, 10**6
MALLOCS = ("default", "tuned")


class LoopOptions(Options):
    """What does the training loop cost a step, beyond forward, backward and optimizer?"""

    steps: int = option(400, "Steps in one measurement.", limits=MANY)
    repeats: int = options.repeats(9)


class LayersOptions(Options):
    """How much faster is a training step of plait's layers than of torch.nn's?"""

    shapes: str | None = option(None, f"{SHAPES}  (default: twelve from small to large)")
    cells: str = options.cells("lstm,gru,rnn")
    random: int | None = option(None, "Measure this many random shapes, and print the worst.", "N", limits=(1, 10_000))
    engine: str = options.engine()
    input_gradient: bool = option(False, "The gradient of the input, too.")
    quick: bool = options.quick("Four of the shapes: about a minute, not about 8.")
    malloc: str = option("default", "default, or tuned: glibc is told to keep its memory.", choices=MALLOCS)
    precision: str = option(
        "float32", "float32, or bf16: beside plait's float32 and all that torch has.", choices=("float32", "bf16")
    )
    repeats: int = options.repeats(9)


class BatchOptions(Options):
    """What does a training step cost, by the size of the batch and by the size of the layer?"""

    size: int = option(256, "Units, and inputs, while the batch grows.", limits=(1, WIDEST))
    cell: str = options.cell("rnn")
    engine: str = options.engine()
    repeats: int = options.repeats(9)


class PhasesOptions(Options):
    """Where does a training step of engine fused spend its time?"""

    task: str | None = option(None, "rotate: the fourth paper's ten phases, on its network.", choices=("rotate",))
    shapes: str | None = option(None, f"{SHAPES}  (default: 32,128,64,64,1; for rotate 1000,10,1000,1000,1)")
    cells: str | None = option(
        None, "Of lstm, gru and rnn, with commas.  (default: lstm; for rotate rnn)", choices=CELLS
    )
    repeats: int = options.repeats(9)


class ScheduleOptions(Options):
    """What does each decision about the loops buy? About 30 minutes."""

    cell: str = option("rnn", "rnn, rnn_relu, lstm, gru or implicit_gru.")
    batch: int = sized(1000, 100, "Sequences.", limits=(1, WIDEST))
    size: int = sized(1000, 200, "Inputs, and units.", limits=(1, WIDEST))
    steps: int = option(10, "Steps of a sequence.", limits=(1, WIDEST))
    quick: bool = options.quick("A small layer: 1 to 2 minutes, most of it for compiling.")
    repeats: int = options.repeats(5)


class FunctionsOptions(Options):
    """How exact are the kernels' functions, and torch's? Every float32 of a range, or every n-th; float64 at random."""

    bound: float = option(20.0, "The range goes from minus this to this.", limits=(1e-30, 1e6))
    step: int = sized(8, 256, "1 takes every float32 of the range, 8 one of 8.", limits=(1, 10**9))
    quick: bool = options.quick("Fewer numbers: under a minute.")


class RaggedOptions(Options):
    """What does a layer cost on sentences as they come, beside torch's padded and packed ones?"""

    data: str | None = options.text_data()
    cells: str = options.cells("lstm,gru")
    batch: int = option(32, "Sentences in a batch.", limits=MANY)
    hidden: int = option(200, "Units, and inputs.", limits=(1, WIDEST))
    draws: int = option(5, "Batches drawn, each measured by itself.", limits=(1, 10_000))
    repeats: int = options.repeats(9)


class BucketingOptions(Options):
    """What does padding cost, and how much of that do buckets and ragged batches save? About 10 minutes."""

    data: str | None = options.text_data()
    layers: str = sized("8,2", "2", "Layers, with commas.")
    hidden: int = sized(400, 100, "Units in a layer.")
    embedding: int = sized(200, 50, "Numbers that stand for a word.")
    batch: int = option(20, "Sentences in a batch.", limits=MANY)
    sentences: int = sized(160, 60, "Sentences that are trained on in one measurement.")
    engine: str = options.engine()
    quick: bool = options.quick("A small network and few batches: 1 to 2 minutes.")
    picture: str | None = options.picture(text="Draw it there, as a PNG file.")
    repeats: int = options.repeats(5)


class LanguageOptions(Options):
    """How many tokens a second does a language model train on, beside a script with torch's layers?"""

    data: str | None = options.text_data()
    cell: str = options.cell("lstm")
    hidden: int = option(200, "Units in a layer.")
    layers: int = option(2, "Layers.")
    batch: int = option(20, "Streams.")
    steps: int = option(20, "Steps that a gradient goes back through.")
    softmax: str = option("full", "full or adaptive; of plait's task.")
    count: int = option(20, "Training steps in one measurement.", limits=MANY)
    repeats: int = options.repeats(7)


class RanksOptions(Options):
    """What do several processes bring, by data, by layers, or with a server? Up to an hour; with --quick 3 minutes."""

    data: str | None = options.text_data()
    layers: int = sized(8, 4, "Layers of LSTM.", limits=(2, 1000))  # the second paper's, as the other sizes
    hidden: int = sized(400, 96, "Units in a layer.")
    embedding: int = option(None, "Numbers that stand for a word.  (default: half of the units)")
    batch: int = option(20, "Streams, or sentences, in a step of all ranks together.")
    steps: int = sized(35, 20, "Steps of a stream.", limits=(2, 10**6))
    ranks: int = option(4, "Processes, at the most; each has one thread.", limits=(2, 64))
    quick: bool = options.quick("A small network, few batches: all tables in under 3 minutes.")
    picture: str | None = options.picture(text="Draw the wavefront there, measured beside simulated, as a PNG file.")
    repeats: int = options.repeats(5)

    def __post_init__(self) -> None:
        super().__post_init__()
        if vars(self)["embedding"] is None:
            object.__setattr__(self, "embedding", max(1, self.hidden // 2))
        between("batch", self.batch, self.ranks, 10**6)
        self.settings()  # checks the rest

    def settings(self, **changes: Any) -> LanguageSettings:
        """No gradient is as long as `clip`: nothing is scaled."""
        sizes = self.some("layers", "hidden", "embedding", "seed")
        fixed = {"data": "text", "softmax": "full", "optimizer": "sgd", "clip": 5.0}
        return LanguageSettings(**{**sizes, **fixed, **changes})


class ClassifyOptions(Options):
    """How many sequences a second does a classifier train on, beside a PyTorch script with nn.GRU?"""

    data: str | None = option(None, "Sequences, as plait train classify has them.  (default: made up, as UCI HAR)")
    hidden: int = sized(100, 32, "Units in a layer.")
    layers: int = sized(2, 1, "Layers.")
    batch: int = option(100, "Sequences in a step.")
    dropout: float = option(0.0, "Dropout between layers, and before the last one.")
    quick: bool = options.quick("A small network: under a minute.")
    repeats: int = options.repeats(7)


class TimeOptions(Options):
    """What does cutting time bring, how far off is it, and where is one exact walk faster? With --quick 3 minutes."""

    data: str | None = option(None, "Sequences with labels, such as UCI HAR.  (default: made up, as UCI HAR)")
    parts: str | None = options.parts()
    quick: bool = options.quick("Small networks and short sequences: all tables in under 3 minutes.")
    picture: str | None = options.picture()
    repeats: int = options.repeats(7)


class LadderOptions(Options):
    """How far is it from a sequential LSTM to a fast one? The first paper's climb, about 5 minutes."""

    parts: str | None = options.parts()
    hidden: int = sized(64, 8, "Units of the LSTM.", limits=(1, WIDEST))
    quick: bool = options.quick("A smaller LSTM and up to 16 times the data: about 2 minutes.")
    picture: str | None = options.picture()
    repeats: int = options.repeats(7)


class PeersOptions(Options):
    """How fast is the same training step in plait, NumPy, torch, torch.compile, JAX, PyTensor and Halide?"""

    only: str | None = option(None, "Which peers beside plait, with commas.  (default: all)")
    rows: str | None = option(None, "Which networks, with commas.  (default: all)")
    install: bool = option(False, "Make an environment for PyTensor, which needs an older numba, if there is none.")
    quick: bool = options.quick("Short blocks of steps, and not the largest network.")
    repeats: int = options.repeats(7)


class PublicOptions(Options):
    """What do public reports of slow recurrent layers measure on this machine, with torch's layers and with plait's?"""

    reports: str | None = option(None, "Of 149194, 4154 and 81634, with commas.  (default: all)")
    lengths: str | None = option(None, "Of 149194, some of its L from 10 to 4000, with commas.  (default: all)")
    sizes: str = option("32,64,64", "Batch, inputs and units for 149194, which does not give them.")
    malloc: str = option(
        "both", "default, tuned (glibc is told to keep its memory), or both.", choices=("both", *MALLOCS)
    )
    quick: bool = options.quick("Three lengths up to 500, malloc as it comes: a minute or two, not over an hour.")
    repeats: int = options.repeats(9)


class BusyOptions(Options):
    """What does a training step take beside processes that compute all the time, on one thread and on several?"""

    busy: str = sized("0,1,2,4", "0,2", "Processes that are kept busy meanwhile, with commas.")
    shapes: str = option("32,128,64,64,1 32,12,8,32,1", SHAPES)
    cells: str = options.cells("lstm,gru")
    engine: str = options.engine()
    quick: bool = options.quick("Beside 0 and 2 processes, with shorter blocks: about a minute, not about 5.")
    repeats: int = options.repeats(5)


class MemoryOptions(Options):
    """What does a layer keep for its backward pass, with and without checkpoint=, and what is the price?"""

    cell: str = options.cell("lstm")
    batch: int = option(4, "Sequences.", limits=(1, WIDEST))
    inputs: int = option(64, "Inputs.", limits=(1, WIDEST))
    hidden: int = option(256, "Units.", limits=(1, WIDEST))
    checkpoint: str = option("auto", "After how many steps a state is kept; auto: about the root of all steps.")
    steps: str = sized("1024,4096,16384,65536,262144", "1024,4096,16384", "Steps of a sequence, with commas.")
    quick: bool = options.quick("Sequences of up to 16,384 steps: about a minute, not about 15.")
    picture: str | None = options.picture()
    repeats: int = options.repeats(5)


class CudaOptions(Options):
    """What do the CUDA versions bring on this device? First whether they are right, then how long they take."""

    shapes: str = option("8,12,1,16,1 32,12,1,64,1 100,50,64,128,1 64,128,128,256,1", SHAPES)
    cells: str = options.cells("lstm,gru,rnn")
    repeats: int = options.repeats(5)
