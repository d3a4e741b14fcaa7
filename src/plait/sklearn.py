"""scikit-learn estimators: sequences in, classes or numbers out.

    from plait.sklearn import SequenceClassifier
    SequenceClassifier().fit(X, y).predict(X)

X is a list of arrays (T, features), of different lengths if they are; or an array (n, T, features); or an array (n, T),
of which a row is one sequence of single numbers.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from .data.sequences import LARGEST, RawSequences, Scale, Sequences, Source, check_rows
from .errors import PlaitError
from .tasks.classify import Classify
from .tasks.dataset import Dataset
from .tasks.pooled import predict
from .tasks.regress import Regress
from .tasks.settings import ClassifySettings, PooledSettings
from .training.loop import train
from .training.task import Task

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.class_weight import compute_class_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_array, check_is_fitted, check_X_y, column_or_1d, validate_data
except ImportError as e:
    raise ImportError("plait.sklearn needs scikit-learn: pip install 'plait[sklearn]'") from e

Numbers = NDArray[np.float64]
NONE = "no_validation"  # scikit-learn's word for a call without y; None is a y that was forgotten


@dataclass(eq=False, repr=False)
class SequenceEstimator(BaseEstimator):
    """What both have: a recurrent network that reads a sequence, and says one thing about it.

    validation: share of the sequences that is held back, to keep the weights of the best epoch, and to stop after
        `patience` epochs without a better one. 0 trains on all of them.
    random_state: a number for the same result each time.
    """

    cell: str = "gru"
    hidden: int = 100
    layers: int = 1
    bidirectional: bool = False
    dropout: float = 0.0
    pool: str = "last"
    epochs: int = 100
    batch: int = 32
    optimizer: str = "adam"
    lr: float = 0.002
    weight_decay: float = 0.0
    clip: float = 1.0
    validation: float = 0.0
    patience: int = 40
    engine: str = "auto"
    random_state: Any = None

    def options(self) -> dict[str, Any]:
        mine = {
            name: value for name, value in self.get_params().items() if name not in ("random_state", "class_weight")
        }
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return mine | {"batch": str(self.batch), "seed": seed}

    def learn(self, task: Task, settings: PooledSettings) -> None:
        outcome = train(task, settings)
        if outcome.interrupted:
            raise KeyboardInterrupt
        self.network_: Any = task.model.eval()
        self.n_iter_ = outcome.progress.epoch

    def checked(self, X: Any) -> RawSequences:
        check_is_fitted(self)
        return rows_of(self, X, reset=False)

    def judged(self, found: RawSequences) -> Numbers:  # (n, outputs)
        logits: Numbers = predict(self.network_, Sequences.of(found, self.scale_, ())).double().numpy()
        return logits

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.non_deterministic = False
        return tags


@dataclass(eq=False, repr=False)
class SequenceClassifier(ClassifierMixin, SequenceEstimator):
    """A class for each sequence.

    class_weight: how much each class counts, by its name; 'balanced': rare classes count as much as frequent ones.
    """

    dropout: float = 0.3
    class_weight: dict[Any, float] | str | None = None

    def fit(self, X: Any, y: Any) -> Self:
        found = rows_of(self, X, y)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise PlaitError(f"y has one class, {self.classes_[0]!r}: expected two or more.")
        given = compute_class_weight(self.class_weight, classes=self.classes_, y=y)  # (C,)
        if not (np.isfinite(given).all() and (given >= 0).all() and given.any()):
            raise PlaitError(f"class_weight {self.class_weight!r}: expected numbers of at least 0, and one above it.")
        s = ClassifySettings(data="X", **self.options())
        source = Source("X", columns_of(found), {"train": found._replace(labels=[str(k) for k in numbers.tolist()])})
        with torch.random.fork_rng([]):
            data = Dataset.of(source, validation=s.validation, test=0.0, missing="error", seed=s.seed)
            task = Classify(s, data)
            task.weights = torch.from_numpy(given / given[numbers].mean()).float()
            self.learn(task, s)
        self.scale_ = data.scale
        return self

    def decision_function(self, X: Any) -> Numbers:
        logits = self.judged(self.checked(X))
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict_proba(self, X: Any) -> Numbers:
        logits = self.judged(self.checked(X))
        parts = np.exp(logits - logits.max(1, keepdims=True))
        shares: Numbers = parts / parts.sum(1, keepdims=True)
        return shares

    def predict(self, X: Any) -> NDArray[Any]:
        best = self.judged(self.checked(X)).argmax(1)
        named: NDArray[Any] = self.classes_[best]
        return named


class SequenceRegressor(RegressorMixin, MultiOutputMixin, SequenceEstimator):
    """A number, or several, for each sequence."""

    def fit(self, X: Any, y: Any) -> Self:
        found = rows_of(self, X, y, several=True)
        targets = np.asarray(y, np.float64)
        self.is_single_ = targets.ndim == 1
        if (beyond := np.abs(targets) > LARGEST).any():
            raise PlaitError(f"y has {targets[beyond][0]:g}: expected up to {LARGEST:g}; divide it by something.")
        targets = targets.reshape(len(targets), -1) - self.base(found)  # (n, K)
        if len(targets) < 2:
            raise PlaitError("X has n_samples=1 sequence: expected two or more.")
        s = PooledSettings(**self.options())
        order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(s.seed))
        held_back = round(s.validation * len(order))
        if s.validation and not 0 < held_back < len(order):
            raise PlaitError(f"validation {s.validation} of {len(order)} sequences: expected one or more in each part.")
        valid, train = order[:held_back].sort().values, order[held_back:].sort().values
        self.scale_ = Scale.fit([found.rows[k] for k in train.tolist()])
        self.target_scale_ = Scale.fit([targets[train.numpy()]])
        sequences = Sequences.of(found, self.scale_, ())
        scaled = torch.from_numpy(self.target_scale_.apply(targets))
        with torch.random.fork_rng([]):
            self.learn(Regress(s, sequences, scaled, train, valid), s)
        return self

    def predict(self, X: Any) -> Numbers:
        found, scale = self.checked(X), self.target_scale_
        result = self.judged(found) * scale.std + scale.mean + self.base(found)
        return result[:, 0] if self.is_single_ else result

    def base(self, found: RawSequences) -> Numbers:  # (n, 1)
        """What the network's numbers are counted from."""
        return np.zeros((len(found.rows), 1))


class SequenceForecaster(SequenceRegressor):
    """The next values of each window. Windows (n, T), or (n, T, features) whose first column is forecast; y (n, steps).

    The network learns how far they are from the last value of the window.
    """

    def base(self, found: RawSequences) -> Numbers:
        return np.array([[rows[-1, 0]] for rows in found.rows])


def rows_of(estimator: Any, X: Any, y: Any = NONE, *, reset: bool = True, several: bool = False) -> RawSequences:
    """Sequences, checked. reset: to learn from; later ones must be like them"""
    of_rows = not reset and not estimator.is_flat_  # it has learned from a list
    is_list = isinstance(X, list | tuple) and len(X) > 0
    if is_list and not (np.ndim(X[0]) == 2 or of_rows):  # numbers, if not all sequences are equally long
        is_list = all(np.ndim(x) == 1 for x in X) and len({len(x) for x in X}) > 1
    is_flat = not (is_list or getattr(X, "ndim", None) == 3)
    if not is_flat:
        rows = [as_rows(x, k) for k, x in enumerate(X)]
        if not rows:
            raise PlaitError(f"X has shape {np.shape(X)}: expected one sequence or more.")
        if y is not NONE:
            check_X_y(np.zeros((len(rows), 1)), y, multi_output=several, y_numeric=several)
        widths = {r.shape[1] for r in rows}
        if len(widths) > 1:
            raise PlaitError(f"X has sequences of {min(widths)} to {max(widths)} features: expected the same in all.")
        if reset:
            estimator.n_features_in_ = rows[0].shape[1]
    else:
        more = {"multi_output": several, "y_numeric": several} if y is not NONE and y is not None else {}
        X = validate_data(estimator, X, y, dtype=np.float64, reset=reset, **more)
        rows = [row[:, None] for row in (X[0] if more else X)]
    if reset:
        estimator.is_flat_ = is_flat
        estimator.width_ = rows[0].shape[1]  # of a row, that is 1
    elif rows[0].shape[1] != estimator.width_:
        found, name = rows[0].shape[1], type(estimator).__name__
        raise PlaitError(f"X has {found} features, but {name} is expecting {estimator.width_} features as input.")
    sequences = RawSequences(rows, None, [f"sequence {k + 1}" for k in range(len(rows))])
    return check_rows(Source("X", columns_of(sequences), {}), sequences, "error", "put it in first")


def as_rows(x: Any, k: int) -> Numbers:  # (T, D)
    found = np.asarray(x)
    if found.ndim == 1:
        found = found[:, None]
    if found.ndim != 2 or not len(found):
        raise PlaitError(f"X, sequence {k + 1} has shape {found.shape}: expected (T, features), with a step or more.")
    checked: Numbers = check_array(found, dtype=np.float64, ensure_all_finite=False, input_name="X")
    return checked


def columns_of(found: RawSequences) -> list[str]:
    return [str(d + 1) for d in range(found.rows[0].shape[1])]
