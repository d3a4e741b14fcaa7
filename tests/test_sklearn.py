"""plait.sklearn: scikit-learn's own checks, sequences of all shapes, pipelines and searches."""

import pickle
import warnings
from collections import Counter

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed (extra sklearn)")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from plait import PlaitError
from plait.sklearn import SequenceClassifier, SequenceForecaster, SequenceRegressor

SMALL = {"hidden": 16, "epochs": 20, "batch": 8, "lr": 0.01, "random_state": 0}
# Checks that are expected to fail, and why
EXCEPTED = {
    "check_methods_subset_invariance": "float32: the last bit of a sum depends on the size of the batch (1e-7)",
}
# Checks that scikit-learn itself leaves out here
LEFT_OUT = {"check_array_api_input", "check_classifier_data_not_an_array", "check_regressor_data_not_an_array"}


def waves(n: int = 40, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    X = []
    for k in range(n):
        phase = rng.uniform(0, 6) + np.arange(int(rng.integers(6, 15))) * (1.6 if k % 2 else 0.4)
        X.append(np.stack([np.sin(phase), np.cos(phase)], 1))
    return X, np.array(["slow", "quick"] * (n // 2))


@pytest.mark.parametrize(
    ("estimator", "passed"),
    [
        pytest.param(SequenceClassifier(**SMALL), 53, marks=pytest.mark.slow),
        (SequenceRegressor(**(SMALL | {"epochs": 10, "lr": 0.02})), 51),
        pytest.param(SequenceForecaster(**(SMALL | {"epochs": 60})), 51, marks=pytest.mark.slow),
    ],
)
def test_scikit_learns_own_checks(estimator, passed: int) -> None:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(estimator, expected_failed_checks=EXCEPTED, on_fail=None, on_skip=None)
    by_status = Counter(check["status"] for check in found)
    failed = [(c["check_name"], c["exception"]) for c in found if c["status"] == "failed"]
    assert failed == []
    assert {c["check_name"] for c in found if c["status"] == "skipped"} <= LEFT_OUT
    assert {c["check_name"] for c in found if c["status"] == "xfail"} <= EXCEPTED.keys()
    assert by_status["passed"] + by_status["xfail"] + by_status["skipped"] == len(found)
    assert by_status["passed"] >= passed - 5  # scikit-learn has a few more or less from version to version


# --- shapes ----------------------------------------------------------------------------------------------------------
def test_lists_of_sequences_of_different_lengths() -> None:
    X, y = waves()
    model = SequenceClassifier(**SMALL).fit(X, y)
    assert model.score(X, y) == 1.0
    new, labels = waves(seed=1)
    assert model.score(new, labels) >= 0.9
    assert model.classes_.tolist() == ["quick", "slow"]
    shares = model.predict_proba(new)
    assert shares.shape == (40, 2)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert (model.classes_[shares.argmax(1)] == model.predict(new)).all()
    assert model.n_features_in_ == 2


def test_arrays_are_the_same_as_lists() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 6, 3)), np.arange(20) % 3
    X += y[:, None, None]
    models = [SequenceClassifier(**SMALL).fit(x, y) for x in (X, list(X), X.tolist())]
    for other in models[1:]:
        np.testing.assert_array_equal(models[0].predict_proba(X), other.predict_proba(list(X)))
    single = X[:, :, 0]
    flat = SequenceClassifier(**SMALL).fit(single, y)
    deep = SequenceClassifier(**SMALL).fit(single[:, :, None], y)
    np.testing.assert_array_equal(flat.predict_proba(single), deep.predict_proba(single[:, :, None]))
    uneven = [row[: 3 + k % 3] for k, row in enumerate(single)]
    assert SequenceClassifier(**SMALL).fit(uneven, y).predict(uneven).shape == (20,)


def test_numbers_out() -> None:
    X, _ = waves()
    y = np.array([x[:, 0].mean() for x in X])
    both = np.stack([y, [len(x) for x in X]], 1)
    model = SequenceRegressor(**(SMALL | {"epochs": 100})).fit(X, both)
    assert model.predict(X).shape == (40, 2)
    assert model.score(X, both) > 0.8
    assert SequenceRegressor(**SMALL).fit(X, y).predict(X).shape == (40,)


def test_a_regressor_holds_back_a_part_and_scales_by_the_rest() -> None:
    X, _ = waves()
    y = np.arange(40.0)
    model = SequenceRegressor(**SMALL, validation=0.25).fit(X, y)
    assert model.target_scale_.mean[0] != y.mean()  # of 30 sequences
    for n, share in ((4, 0.1), (2, 0.9)):
        with pytest.raises(PlaitError, match=f"validation {share} of {n} sequences: expected one or more in each part"):
            SequenceRegressor(**SMALL, validation=share).fit(X[:n], y[:n])


def test_what_a_list_means_does_not_depend_on_its_lengths() -> None:
    X, y = waves()
    uneven = [x[:, 0] for x in X]
    model = SequenceClassifier(**SMALL).fit(uneven, y)
    assert model.predict(uneven[:1]) == model.predict(uneven)[:1]
    even = [x[:6] for x in uneven]
    assert model.predict(even).shape == (40,)
    with pytest.raises(PlaitError, match=r"X has shape \(0, 6, 1\): expected one sequence or more"):
        model.predict(np.zeros((0, 6, 1)))


def test_numbers_that_cannot_be_learned() -> None:
    X, y = waves()
    with pytest.raises(PlaitError, match=r"y has 1e[+]200: expected up to 1e[+]150"):
        SequenceRegressor(**SMALL).fit(X, np.full(40, 1e200))
    for wrong in ({"slow": 0, "quick": 0}, {"slow": -1, "quick": 1}):
        with pytest.raises(PlaitError, match=r"class_weight .*: expected numbers of at least 0"):
            SequenceClassifier(**SMALL, class_weight=wrong).fit(X, y)


def test_forecasts() -> None:
    """Of waves on a slope: windows are counted from their last value, so one that was never so high is fine."""
    series = np.sin(np.arange(300) / 5) + np.arange(300) / 20
    windows = np.lib.stride_tricks.sliding_window_view(series, 23)
    X, y = windows[:, :20], windows[:, 20:]
    model = SequenceForecaster(**(SMALL | {"epochs": 60})).fit(X[:200], y[:200])
    error = np.abs(model.predict(X[220:]) - y[220:]).mean()
    naive = np.abs(X[220:, -1:] - y[220:]).mean()
    assert error < naive / 2


# --- as part of scikit-learn -----------------------------------------------------------------------------------------
def test_in_pipelines_and_searches() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(30) % 2
    X = rng.normal(size=(30, 8)) + y[:, None]
    pipe = make_pipeline(StandardScaler(), SequenceClassifier(**SMALL))
    assert cross_val_score(pipe, X, y, cv=3).mean() > 0.8
    sequences, labels = waves(30)
    assert cross_val_score(SequenceClassifier(**SMALL), sequences, labels, cv=3).mean() > 0.8
    grid = GridSearchCV(SequenceClassifier(**SMALL), {"cell": ["gru", "lstm"], "pool": ["last", "mean"]}, cv=2)
    grid.fit(sequences, labels)
    assert grid.best_params_.keys() == {"cell", "pool"}
    assert grid.predict(sequences).shape == (30,)


def test_parameters_clones_and_pickles() -> None:
    X, y = waves()
    model = SequenceClassifier(**SMALL, class_weight="balanced").fit(X, y)
    again = clone(model)
    assert again.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        again.predict(X)
    np.testing.assert_array_equal(again.fit(X, y).predict_proba(X), model.predict_proba(X))  # the same seed
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))
    other = clone(model).set_params(random_state=1).fit(X, y)
    assert (other.predict_proba(X) != model.predict_proba(X)).any()


def test_fitting_leaves_torchs_random_numbers_alone() -> None:
    X, y = waves()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    SequenceClassifier(**SMALL).fit(X, y)
    SequenceRegressor(**SMALL).fit(X, np.arange(40.0))
    assert torch.equal(torch.rand(3), expected)


def test_class_weights_by_name() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 5)), np.array(["a", "b"] * 20)  # nothing to learn
    one_sided = SequenceClassifier(**SMALL, class_weight={"a": 1000.0, "b": 0.001}).fit(X, y)
    assert (one_sided.predict(X) == "a").all()


# --- refused ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("X", "y", "says"),
    [
        ([np.zeros((3, 2)), np.zeros((0, 2))], [0, 1], r"X, sequence 2 has shape \(0, 2\): expected \(T, features\)"),
        ([np.zeros((3, 2)), np.zeros((3, 1))], [0, 1], "X has sequences of 1 to 2 features: expected the same in all"),
        (
            [np.zeros((3, 2)), np.full((3, 2), np.nan)],
            [0, 1],
            "X, sequence 2, step 1, column '1': the number is mi",
        ),
        ([np.zeros((3, 2))] * 2, [1, 1], "y has one class"),
        ([np.zeros((3, 2))] * 2, [1, 2, 3], "inconsistent numbers of samples"),
    ],
)
def test_what_cannot_be_learned(X, y, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SequenceClassifier(**SMALL).fit(X, y)


def test_features_other_than_in_training() -> None:
    X, y = waves()
    model = SequenceClassifier(**SMALL).fit(X, y)
    with pytest.raises(PlaitError, match="X has 1 features, but SequenceClassifier is expecting 2 features as input"):
        model.predict([x[:, :1] for x in X])
    with pytest.raises(PlaitError, match="X has 1 features, but SequenceClassifier is expecting 2 features as input"):
        model.predict(X[0])  # one sequence, where a list of them is expected
    flat = SequenceClassifier(**SMALL).fit(np.zeros((4, 2)) + np.arange(4)[:, None], [0, 1, 0, 1])
    with pytest.raises(PlaitError, match="X has 2 features, but SequenceClassifier is expecting 1 features as input"):
        flat.predict([np.zeros((3, 2))])
    with pytest.raises(PlaitError, match="cell 'gro' is not known"):
        SequenceClassifier(cell="gro").fit(X, y)
