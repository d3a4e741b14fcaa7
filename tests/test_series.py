"""Reading numbers from files that people have, and the scale on which a network learns them."""

from pathlib import Path

import numpy as np
import pytest

from plait import PlaitError
from plait.data import series
from plait.data.series import Scale


def write(folder: Path, text: str | bytes, name: str = "data.csv") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_the_airline_series_is_the_published_one() -> None:
    data = series.airline()
    by_year = data.values.reshape(12, 12).sum(1)
    assert by_year.tolist() == [1520, 1676, 2042, 2364, 2700, 2867, 3408, 3939, 4421, 4572, 5140, 5714]
    assert (data.labels[0], data.labels[-1]) == ("1949-01", "1960-12")
    assert data.labels_ahead(2) == ["1961-01", "1961-02"]


@pytest.mark.parametrize(
    ("text", "values", "labels"),
    [
        ("date,sales\na,1\nb,2.5\n", [1, 2.5], ["a", "b"]),
        ("\ufeffdate;sales\r\na;1\r\nb;-2e3\r\n", [1, -2000], ["a", "b"]),
        ("1\n2\n3\n", [1, 2, 3], ["1", "2", "3"]),
        ("x,y\na,1\n\nb,2\n", [1, 2], ["a", "b"]),
        ('when\tn\n"a\tb"\t4\n', [4], ["a\tb"]),
        ("d;v\na;1,5\nb;-0,25\n", [1.5, -0.25], ["a", "b"]),
        ("2020-01;100,00\n2020-02;101,50\n", [100, 101.5], ["2020-01", "2020-02"]),
        ("# made by hand\nd,v\na,1\n# half way\nb,2\n\n", [1, 2], ["a", "b"]),
    ],
)
def test_csv_as_people_write_it(tmp_path: Path, text: str, values: list[float], labels: list[str]) -> None:
    data = series.read(write(tmp_path, text))
    assert data.values.tolist() == values
    assert list(data.labels) == labels


@pytest.mark.parametrize("gap", ['""', ""])
def test_a_gap_in_a_single_column_is_a_gap(tmp_path: Path, gap: str) -> None:
    path = write(tmp_path, f"v\n1\n{gap}\n3\n\n\n")
    assert series.read(path, missing="interpolate").values.tolist() == [1, 2, 3]
    with pytest.raises(PlaitError, match="row 3, column 'v': nothing is not a number"):
        series.read(path)


def test_choosing_a_column(tmp_path: Path) -> None:
    path = write(tmp_path, "date,a,b\nx,1,5\ny,2,6\n")
    assert series.read(path, "b").values.tolist() == [5, 6]
    with pytest.raises(PlaitError, match=r"has 2 columns of numbers \(a, b\): choose one with --column"):
        series.read(path)
    with pytest.raises(PlaitError, match=r"has no column 'bb': .*did you mean 'b'"):
        series.read(path, "bb")


def test_interpolation(tmp_path: Path) -> None:
    path = write(tmp_path, "d,v\na,n/a\nb,1\nc,\nd,nan\ne,4\nf,inf\n")
    assert series.read(path, "v", "interpolate").values.tolist() == [1, 1, 2, 3, 4, 4]
    with pytest.raises(PlaitError, match="there is no number to interpolate between"):
        series.read(write(tmp_path, "d,v\na,x\nb,y\n"), "v", "interpolate")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty: expected a CSV file"),
        (" \n\n", "is empty"),
        ("date,sales\n", "has a header and no rows"),
        (",,\n,,\n", "is empty"),
        ("value\n100,5\n101,5\n", "row 2 has 2 cells, and there are 1 columns"),
        ("d,v\n2020-02-01,1\n2020-01-01,2\n", "runs from 2020-02-01 back to 2020-01-01: sort it"),
        (
            "date,sales\na,1\nb,n/a\nc,3\n",
            r"row 3, column 'sales': 'n/a' is not a number \(use --missing interpolate\)",
        ),
        ("date,sales\na,1\nb,\nc,3\n", "row 3, column 'sales': nothing is not a number"),
        ("date,sales\na,1\nb,2\nc,nan\n", "row 4, column 'sales': 'nan' is not a finite number"),
        ("date,sales\na,1\nb,2\nc,-inf\n", "row 4, column 'sales': '-inf' is not a finite number"),
        ("a,b\nx,y\nz,w\n", "has no column of numbers: its columns are a, b"),
        ("d,v\na," + "1" * 200_000 + "\n", "cannot be read as CSV: field larger than field limit"),
        (b"d,v\n\xff\xfe,1\n", r"is not UTF-8 text \(byte 4\)"),
    ],
)
def test_bad_files_get_a_sentence(tmp_path: Path, text: str | bytes, sentence: str) -> None:
    with pytest.raises(PlaitError, match=sentence):
        series.read(write(tmp_path, text))


def test_no_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(PlaitError, match="does not exist: expected a CSV file"):
        series.read(str(tmp_path / "nowhere.csv"))
    with pytest.raises(PlaitError, match="is a directory: expected a CSV file"):
        series.read(str(tmp_path))
    with pytest.raises(PlaitError, match="is a device: expected a CSV file"):
        series.read("/dev/zero")
    with pytest.raises(PlaitError, match="has 2 columns named 'v': give them names of their own"):
        series.read(write(tmp_path, "v,v\n1,2\n"), "v")
    with pytest.raises(PlaitError, match="--missing 'interpolat' is not known: did you mean 'interpolate'"):
        series.read(write(tmp_path, "1\n"), missing="interpolat")


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("season", [1, 5])
def test_scale_and_back(log: bool, season: int) -> None:
    values = np.random.default_rng(0).uniform(1, 9, 40)
    scale = Scale.fit(values[:30], season, log)
    changes = scale.apply(values)
    assert changes[: 30 - season].mean() == pytest.approx(0, abs=1e-12)
    assert changes[: 30 - season].std() == pytest.approx(1)
    np.testing.assert_allclose(scale.extend(values[:30], changes[30 - season :]), values[30:], rtol=1e-12)


def test_a_constant_series_and_a_ramp_have_a_scale() -> None:
    """Their changes differ by rounding alone, which must not be blown up."""
    assert Scale.fit(np.full(9, 3.0), 1, False).std == 1.0
    assert Scale.fit(0.1 * np.arange(50), 1, False).std == 1.0
    assert Scale.fit(1.1 ** np.arange(1, 50), 1, True).std == 1.0


def test_seasonal_naive_and_errors() -> None:
    assert series.seasonal_naive(np.arange(6.0), 3, 5).tolist() == [3, 4, 5, 3, 4]
    assert series.errors(np.array([1.0, 4.0]), np.array([2.0, 2.0])) == pytest.approx(
        {"rmse": np.sqrt(2.5), "mae": 1.5, "mape": 75.0}
    )
    assert series.errors(np.array([1.0]), np.array([0.0]))["mape"] is None
    negative = series.errors(np.array([-1.0, -3.0]), np.array([-2.0, 2.0]))  # off by 50 % and by 250 %
    assert negative == pytest.approx({"rmse": np.sqrt(13), "mae": 3.0, "mape": 150.0})


def test_csv_round_trip(tmp_path: Path) -> None:
    data = series.Series("x", np.array([0.1, 1 / 3, 1e300]), ['a,"b', "c", "d"])
    back = series.read(write(tmp_path, data.as_csv()), "value")
    assert back.values.tolist() == data.values.tolist()
    assert list(back.labels) == list(data.labels)


@pytest.mark.parametrize(
    ("labels", "ahead"),
    [
        (["1999-11", "1999-12"], ["2000-01", "2000-02"]),
        (["2000-01", "2000-04"], ["2000-07", "2000-10"]),
        (["2024-02-27", "2024-02-28"], ["2024-02-29", "2024-03-01"]),
        (["2009-11-01", "2009-12-01"], ["2010-01-01", "2010-02-01"]),
        (["1960-07-31", "1960-08-31"], ["1960-09-30", "1960-10-31"]),
        (["2023-11-30", "2023-12-31"], ["2024-01-31", "2024-02-29"]),
        (["2023-11-29", "2023-12-29"], ["2024-01-29", "2024-02-29"]),
        (["1978-12-31", "1979-12-31"], ["1980-12-31", "1981-12-31"]),
        (["2021W27", "2021W28"], ["+1", "+2"]),
        (["2009-12-01", "2009-12-08"], ["2009-12-15", "2009-12-22"]),
        (["1000110", "1000120"], ["+1", "+2"]),
        (["2009-13-99", "2009-14-98"], ["+1", "+2"]),
        (["week 1", "week 2"], ["+1", "+2"]),
        (["5", "6"], ["+1", "+2"]),
    ],
)
def test_labels_go_on(labels: list[str], ahead: list[str]) -> None:
    assert series.Series("x", np.zeros(2), labels).labels_ahead(2) == ahead
