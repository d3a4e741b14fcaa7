"""What can be set about each task, beside what can be set about training."""

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import cells
from ..errors import PlaitError, unknown
from ..training.settings import TrainSettings, option

WIDEST = 100_000  # units of a layer, numbers of an embedding


def check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise PlaitError(f"{name} {value}: must be at least 0 and below 1.")


@dataclass(frozen=True)
class NetworkSettings(TrainSettings):
    """The recurrent layers, which all tasks have."""

    cell: str = option("lstm", "rnn, rnn_relu, lstm, gru or implicit_gru.")
    hidden: int = option(32, "Units in a layer.")
    layers: int = option(1, "Layers.")
    dropout: float = option(0.0, "Dropout between layers.")
    engine: str = option("auto", "What runs the recurrence: see plait engines.")
    precision: str = option("float32", "float32, or bf16: products of bfloat16 numbers, with float32 sums and weights.")
    solver: str = option(
        "serial", "How time is solved: serial, shooting or multigrid; with options, as multigrid:levels=3,coarsening=4."
    )

    LIMITS: ClassVar = {"hidden": (1, WIDEST), "layers": (1, 1000)}
    CHOICES: ClassVar = {"precision": ("float32", "bf16")}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("dropout", self.dropout)
        cells.get(self.cell)
        from .. import engines, solvers  # torch comes with them

        engines.check_name(self.engine)
        solver = solvers.parse(self.solver)
        if self.precision == "bf16" and (self.engine not in ("auto", "fused") or solver.sweeps):
            wrong = f"solver {self.solver}" if solver.sweeps else f"engine {self.engine}"
            raise PlaitError(f"precision bf16 with {wrong}: expected engine fused (or auto) and solver serial.")

    def of_layers(self) -> dict[str, Any]:
        """Options of the layers that torch's do not have."""
        from ..solvers import parse

        return {"engine": self.engine, "solver": parse(self.solver), "precision": self.precision}

    def check_between_layers(self) -> None:
        """Asked where dropout acts nowhere else."""
        if self.dropout and self.layers == 1:
            raise PlaitError(
                f"dropout {self.dropout} acts between layers, and there is one: use --layers 2, or leave it out."
            )


@dataclass(frozen=True)
class ForecastSettings(NetworkSettings):
    data: str | None = option(None, "A CSV file; without it, the airline passengers of 1949 to 1960.")
    column: str | None = option(None, "The column to forecast, if there are several.")
    missing: str = option("error", "What to do with cells that are not numbers: error or interpolate.")
    window: int = option(12, "How many steps the network sees.")
    horizon: int = option(12, "How many steps it forecasts at a time.")
    season: int | None = option(None, "Steps in a season, 1 if there is none.  (default: 12 for the airline, else 1)")
    scale: str = option("auto", "log, linear, or auto: log if every value is positive.")
    test: int | None = option(None, "Values held back at the end for the test.  (default: two horizons)")
    validation: int | None = option(None, "Values before those, for validation.  (default: one horizon)")
    decoder: str = option("recursive", "recursive (one step, fed back) or seq2seq (the whole horizon from a decoder).")

    LIMITS: ClassVar = dict.fromkeys(("window", "horizon", "season", "test", "validation"), (1, 10**8))
    CHOICES: ClassVar = {"decoder": ("recursive", "seq2seq"), "scale": ("auto", "log", "linear")}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_between_layers()

    @property
    def steps_per_season(self) -> int:
        return self.season or (12 if self.data is None else 1)

    @property
    def test_size(self) -> int:
        return self.test or 2 * self.horizon

    @property
    def validation_size(self) -> int:
        return self.validation or self.horizon


@dataclass(frozen=True)
class LanguageSettings(NetworkSettings):
    data: str | None = option(None, "A text file, a folder or a zip; files named train, valid and test are the parts.")
    level: str = option("word", "What is predicted: word or char.")
    min_count: int = option(1, "Words seen less often in training are <unk>.")
    validation: float = option(0.05, "Share of the text for validation, if no file is named so.")
    test: float = option(0.05, "Share of the text for the test, if no file is named so.")
    by: str = option("streams", "streams (one long text, state carried on) or sentences (each line by itself).")
    steps: int = option(35, "Steps of a stream that a gradient goes back through (truncated backpropagation).")
    buckets: str = option(
        "pool:50",
        "Which sentences share a batch: none, greedy, optimal:K, lengths such as 8,16,32, or pool:N (sorted).",
    )
    embedding: int | None = option(None, "Numbers that stand for a word.  (default: as many as hidden units)")
    tied: bool = option(False, "One matrix for the words that go in and those that come out.")
    softmax: str = option("auto", "full, adaptive (rare words cost less), or auto: adaptive above 30,000 words.")
    init: float = option(0.1, "Weights start between minus this and this.")
    # these have other defaults than in other tasks
    epochs: int = option(13, "How often every word is seen, at most.")
    batch: str = option("20", "Streams, or sentences, per step.")
    patience: int = option(3, "Stop after that many epochs without a better validation; 0 never stops early.")
    hidden: int = option(200, "Units in a layer.")
    layers: int = option(2, "Layers.")
    dropout: float = option(0.0, "Dropout of what goes into each layer, and into the softmax.")

    LIMITS: ClassVar = {"min_count": (1, 10**9), "steps": (1, 10**6), "init": (1e-12, 100), "embedding": (1, WIDEST)}
    CHOICES: ClassVar = {
        "level": ("word", "char"),
        "by": ("streams", "sentences"),
        "softmax": ("auto", "full", "adaptive"),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data is None:
            raise PlaitError("language needs a text: give a file, a folder or a zip with --data.")
        self.only_with("steps", self.by == "streams", "--by streams")
        self.only_with("buckets", self.by == "sentences", "--by sentences")
        if self.by == "streams" and self.batch == "full":
            raise PlaitError("batch 'full' is for sentences: streams need their number, such as --batch 20.")
        if self.tied and self.width != self.hidden:
            raise PlaitError(
                f"tied with embedding {self.width} and hidden {self.hidden}: one matrix needs them equal; leave "
                "--embedding out."
            )
        if self.tied and self.softmax == "adaptive":
            raise PlaitError("tied with softmax adaptive: it has matrices of its own; leave one of them out.")

    @property
    def width(self) -> int:
        return self.embedding or self.hidden


@dataclass(frozen=True)
class PooledSettings(NetworkSettings):
    """A network that says one thing about a whole sequence."""

    bidirectional: bool = option(False, "Read every sequence in both directions.")
    pool: str = option("last", "What of a sequence is judged: last (the last state) or mean (over all steps).")
    validation: float = option(0.1, "Share of the training sequences for validation, of each class; 0 for none.")
    # these have other defaults than in other tasks
    epochs: int = option(100, "How often every training sequence is seen, at most.")
    cell: str = option("gru", "rnn, rnn_relu, lstm, gru or implicit_gru.")
    hidden: int = option(100, "Units in a layer.")

    CHOICES: ClassVar = {"pool": ("last", "mean")}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("validation", self.validation)


@dataclass(frozen=True)
class ClassifySettings(PooledSettings):
    data: str | None = option(
        None, "A .ts, .npz or long .csv file, UCI HAR's folder or zip, or a folder with a folder of videos per class."
    )
    test_data: str | None = option(None, "A file or folder of the same kind, for the test.")
    test: float = option(0.1, "Share of the sequences for the test, of each class, if the data have no test part.")
    classes: str | None = option(None, "Only these classes, divided by commas.")
    missing: str = option("error", "What to do with numbers that are missing: error or interpolate.")
    class_weights: str = option("none", "balanced: rare classes count as much as frequent ones; or none.")
    buckets: str = option(
        "none", "Which sequences share a batch: none, greedy, optimal:K, 8,16,32, or pool:N (sorted)."
    )
    id_column: str = option("id", "In a CSV file: which sequence a row belongs to.")
    time_column: str = option("time", "In a CSV file: the order of its rows.")
    label_column: str = option("label", "In a CSV file: the class.")
    features: str = option("resnet18", "Of videos: resnet18, resnet34, resnet50, or a folder with a ResNet.")
    download: bool = option(False, "Fetch that ResNet from the Hugging Face hub, if it is not on this machine.")
    frames: int = option(128, "Of videos: frames of a clip, at the most.")
    short: str = option("pad", "Clips with fewer frames: pad (with black ones, as the third paper does) or keep.")
    skip_broken: bool = option(False, "Leave out videos that cannot be read.")
    splits: str | None = option(None, "Of videos: a folder with HMDB51's files CLASS_test_splitN.txt.")
    split: int = option(1, "Which of HMDB51's splits.")
    dropout: float = option(0.3, "Dropout between layers, and of what is judged in the end.")

    LIMITS: ClassVar = {"frames": (1, 10**6), "split": (1, 1000)}
    CHOICES: ClassVar = {"short": ("pad", "keep"), "class_weights": ("none", "balanced")}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data is None:
            raise PlaitError("classify needs sequences: give a file, a folder or a zip with --data.")
        check_share("test", self.test)
        self.only_with("test", self.test_data is None, "data without a test part, not with --test-data")
        from ..data.numbers import MISSING  # torch comes with it

        if self.missing not in MISSING:
            raise unknown("--missing", self.missing, MISSING)
        if self.classes is not None and len(set(self.chosen)) < 2:
            raise PlaitError(f"classes '{self.classes}': expected two or more, divided by commas.")

    @property
    def chosen(self) -> list[str]:
        return [name.strip() for name in (self.classes or "").split(",") if name.strip()]


@dataclass(frozen=True)
class RotateSettings(NetworkSettings):
    """The defaults are those of the fourth paper."""

    data: str | None = option(
        None, "A folder, a zip or a tar: of images of one size, or of CIFAR-10's batches; without it, drawn shapes."
    )
    features: int | None = option(None, "Only the first so many pixels; the paper has 1000 of 1024.  (default: all)")
    steps: int = option(10, "How often an image is turned.")
    degrees: float = option(10.0, "How far each time, counter-clockwise.")
    bias: bool = option(False, "Biases in the layers and in the output.")
    validation: float = option(0.1, "Share of the training images for validation; 0 for none.")
    test: float = option(0.1, "Share of the images for the test, if the data have no test part.")
    # these have other defaults than in other tasks
    epochs: int = option(20, "How often every training image is seen, at most.")
    batch: str = option("1000", "Images per step: a number, or full.")
    optimizer: str = option("sgd", "sgd, adam or adamw.")
    lr: float = option(1e-4, "Learning rate; the loss is the squared error of an image, summed over pixels and steps.")
    clip: float = option(0.0, "Largest norm of the gradient; 0 turns clipping off.")
    cell: str = option("rnn", "rnn, rnn_relu, lstm, gru or implicit_gru.")
    hidden: int = option(1000, "Units in a layer.")

    LIMITS: ClassVar = {"features": (1, WIDEST), "steps": (1, 1000), "degrees": (-360, 360)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_between_layers()
        check_share("validation", self.validation)
        check_share("test", self.test)
