"""Reading numbers from files that people have, and the scale on which a network learns them."""

import bz2
import gzip
import lzma
import os
import re
import socket
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driver_world import zipped
from plait import PlaitError
from plait.data import files, series, tables, text
from plait.data.series import SeasonalScale
from plait.errors import counted


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
    with pytest.raises(PlaitError, match="row 3, column 'v': there is no number"):
        series.read(path)


def test_a_year_may_name_a_column(tmp_path: Path) -> None:
    data = series.read(write(tmp_path, "date,2020\n2020-01-01,5\n2020-01-02,6\n"))
    assert (data.column, data.values.tolist()) == ("2020", [5, 6])
    data = series.read(write(tmp_path, "2019-12-31,2020\n2020-01-01,5\n2020-01-02,6\n"))
    assert (data.column, data.values.tolist()) == ("2", [2020, 5, 6])


def test_a_quotation_mark_too_many_swallows_no_rows(tmp_path: Path) -> None:
    path = write(tmp_path, 'd,v\na,1\n"b,2\nc",3\nd,4\n')
    with pytest.raises(PlaitError, match="row 3 has a cell with several lines: look for a quotation mark too many"):
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
        ("date,sales\na,1\nb,\nc,3\n", "row 3, column 'sales': there is no number"),
        ("date,sales\na,1\nb,2\nc,nan\n", "row 4, column 'sales': 'nan' is not a finite number"),
        ("date,sales\na,1\nb,2\nc,-inf\n", "row 4, column 'sales': '-inf' is not a finite number"),
        ("a,b\nx,y\nz,w\n", "has no column of numbers: its columns are a, b"),
        ("d,v\na," + "1" * 200_000 + "\n", "cannot be read as CSV: field larger than field limit"),
        (b"d,v\n\xff\xfe,1\n", "has byte 0xff in line 2: expected text in UTF-8; convert it: iconv -f latin1 -t utf-8"),
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
    scale = SeasonalScale.fit(values[:30], season, log)
    changes = scale.apply(values)
    assert changes[: 30 - season].mean() == pytest.approx(0, abs=1e-12)
    assert changes[: 30 - season].std() == pytest.approx(1)
    np.testing.assert_allclose(scale.extend(values[:30], changes[30 - season :]), values[30:], rtol=1e-12)


def test_a_constant_series_and_a_ramp_have_a_scale() -> None:
    """Their changes differ by rounding alone, which must not be blown up."""
    assert SeasonalScale.fit(np.full(9, 3.0), 1, False).std == 1.0
    assert SeasonalScale.fit(0.1 * np.arange(50), 1, False).std == 1.0
    assert SeasonalScale.fit(1.1 ** np.arange(1, 50), 1, True).std == 1.0


def test_seasonal_naive_and_errors() -> None:
    assert series.seasonal_naive(np.arange(6.0), 3, 5).tolist() == [3, 4, 5, 3, 4]
    assert series.errors(np.array([1.0, 4.0]), np.array([2.0, 2.0])) == pytest.approx(
        {"rmse": np.sqrt(2.5), "mae": 1.5, "mape": 75.0}
    )
    assert series.errors(np.array([1.0]), np.array([0.0]))["mape"] is None
    negative = series.errors(np.array([-1.0, -3.0]), np.array([-2.0, 2.0]))  # off by 50 % and by 250 %
    assert negative == pytest.approx({"rmse": np.sqrt(13), "mae": 3.0, "mape": 150.0})


def test_csv_round_trip(tmp_path: Path) -> None:
    data = series.Series("x", np.array([0.1, 1 / 3, 1e150]), ['a,"b', "c", "d"])
    back = series.read(write(tmp_path, data.as_csv()), "value")
    assert back.column == "value"
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
        (["2020/01/30", "2020/01/31"], ["2020/02/01", "2020/02/02"]),
        (["2020-01-01 22:00", "2020-01-01 23:00"], ["2020-01-02 00:00", "2020-01-02 01:00"]),
        (["2020-01-01T00:00:58.5Z", "2020-01-01T00:00:59.0Z"], ["2020-01-01T00:00:59.5Z", "2020-01-01T00:01:00.0Z"]),
        (["2020-01-01 00:00:00.000", "2020-01-01 00:00:00.040"], [f"2020-01-01 00:00:00.{n}" for n in ("080", "120")]),
        (["2020-01-01T00:00:00+02:00", "2020-01-01T00:00:01+02:00"], [f"2020-01-01T00:00:0{n}+02:00" for n in (2, 3)]),
        (["2020-01-01", "2020-01-02", "2020-01-01"], ["+1", "+2"]),
        (["2020-01-01", "2020-01-01"], ["+1", "+2"]),
        (["2020-01-01", "2020-01-02", "Total"], ["+1", "+2"]),
        (["2020-01-01", "2020-01-05", "2021-12-31"], ["+1", "+2"]),
        (["9999-12-30", "9999-12-31"], ["+1", "+2"]),
        (["2020-01-01 00:00:00.000001", "2020-01-01 00:00:00.000002", "2023-01-01 00:00:00.000001"], ["+1", "+2"]),
        (["31.12.2020", "01.01.2021"], ["+1", "+2"]),
    ],
)
def test_labels_go_on(labels: list[str], ahead: list[str]) -> None:
    assert series.Series("x", np.zeros(len(labels)), labels).labels_ahead(2) == ahead


@pytest.mark.parametrize(
    ("rows", "ahead"),
    [
        (lambda d: d.weekday() < 5, [f"2023-05-0{k}" for k in (1, 2, 3, 4, 5, 8)]),
        (lambda d: d.weekday() < 5 and str(d) != "2023-04-07", ["2023-05-01", "2023-05-02", "2023-05-03"]),
        (lambda d: d.weekday() in (0, 2, 4), ["2023-05-01", "2023-05-03", "2023-05-05", "2023-05-08"]),
        (lambda d: d.weekday() != 6, ["2023-05-01", "2023-05-02"]),
        (lambda d: d.weekday() == 5, ["2023-05-06", "2023-05-13"]),
        (lambda d: d.toordinal() % 14 == 0, ["2023-05-14", "2023-05-28"]),
        (lambda d: d.day not in (3, 4, 5, 17, 20, 30), ["+1", "+2"]),  # some pattern that is not ours
    ],
)
def test_labels_go_on_where_the_days_have_a_pattern(rows: Any, ahead: list[str]) -> None:
    labels = [str(d) for d in days(120) if rows(d)]  # up to Sunday, 30 April
    assert series.Series("x", np.zeros(len(labels)), labels).labels_ahead(len(ahead)) == ahead


def test_labels_go_on_at_the_hours_that_there_are() -> None:
    labels = [f"{d} {h:02}:00" for d in days(26) if d.weekday() < 5 for h in range(9, 17)]  # up to Thursday
    ahead = series.Series("x", np.zeros(len(labels)), labels).labels_ahead(9)
    assert ahead == [*[f"2023-01-27 {h:02}:00" for h in range(9, 17)], "2023-01-30 09:00"]


@pytest.mark.parametrize("step", [500_000, 1_500_000, 40_000])
@pytest.mark.parametrize("digits", [2, 6])
def test_steps_of_fractions_of_seconds(tmp_path: Path, step: int, digits: int) -> None:
    at = [datetime(2023, 1, 1) + timedelta(microseconds=step * k) for k in range(50)]
    every = [f"{t:%Y-%m-%d %H:%M:%S.%f}"[: 20 + digits] for t in at]
    gone = (10, 30, 31)
    path = write(tmp_path, table([label for k, label in enumerate(every) if k not in gone]))
    with pytest.raises(PlaitError, match=rf"row 12: 3 of 50 dates have no row, the first is {every[10]}: add them"):
        series.read(path)
    data = series.read(path, missing="interpolate")
    assert list(data.labels) == every
    following = at[-1] + timedelta(microseconds=step)
    assert data.labels_ahead(1) == [f"{following:%Y-%m-%d %H:%M:%S.%f}"[: 20 + digits]]


# --- the column that was chosen, and those that were not --------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("date,sales\na,1\nb,2\n", "sales"),
        ("a,1\nb,2\n", "2"),  # no header: its number
        ("date,label\na,1\nb,2\n", "label"),
        ("x\n1\n2\n", "x"),
        ('d,"a,""b"\na,1\nb,2\n', 'a,"b'),
        ("d\tprice; net\na\t1\nb\t2\n", "price; net"),
    ],
)
def test_a_series_and_its_copy_know_the_column(tmp_path: Path, text: str, column: str) -> None:
    data = series.read(write(tmp_path, text))
    assert data.column == column
    back = series.reopen(data.as_csv().encode(), "series.csv", "mine")
    assert (back.name, back.column, list(back.labels)) == ("mine", column, list(data.labels))
    assert back.values.tolist() == data.values.tolist()
    assert back.digest == data.digest


def test_a_copy_may_have_more_cells_than_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_CELLS", 5)
    data = series.read(write(tmp_path, "v\n1\n2\n3\n4\n"))
    back = series.reopen(data.as_csv().encode(), "series.csv", "mine")  # it has labels, too
    assert back.values.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("text", ["label,value\n", "label,value\na,1,2\n", "label,value\na\n", "1\n2\n"])
def test_a_damaged_copy_gets_a_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(PlaitError, match=r"series\.csv is damaged: expected rows of a label and a value"):
        series.reopen(text.encode(), "series.csv", "mine")


@pytest.mark.parametrize(
    ("cell", "why", "instead"),
    [
        ("$1200", "a currency sign", "1200"),
        ('"$1,200"', "a currency sign and separators between thousands", "1200"),
        ("12.5 €", "a currency sign", "12.5"),
        ("12%", "a percent sign", "12"),
        ('"1,234"', "separators between thousands", "1234"),
        ("1 234", "separators between thousands", "1234"),
        ("1\u00a0234.5", "separators between thousands", "1234.5"),
        ('"1.234,5"', "separators between thousands", "1234.5"),
        ('"-1 234,5"', "separators between thousands", "-1234.5"),
        ('"12,5"', "a decimal comma", "12.5"),
        ("1_000", "separators between thousands", "1000"),
        ("\u0661\u0662", "signs other than 0 to 9 and -", "12"),
        ("\u22125", "signs other than 0 to 9 and -", "-5"),
    ],
)
def test_what_is_nearly_a_number_gets_a_hint(tmp_path: Path, cell: str, why: str, instead: str) -> None:
    seen, rows = cell.strip('"'), [f"{k},{cell},{k}\n" for k in "abc"]
    path = write(tmp_path, "d,price\n" + "".join(f"{k},{cell}\n" for k in "abc"))
    hint = f"column 'price' has '{seen}' in row 2, with {why} (write {instead})"
    with pytest.raises(PlaitError) as e:
        series.read(path)
    assert str(e.value) == f"{path} has no column of numbers: {hint}."
    for missing in ("error", "interpolate"):  # it is not a gap, either
        with pytest.raises(PlaitError) as e:
            series.read(path, "price", missing)
        assert str(e.value) == f"{path}, row 2, column 'price': '{seen}' has {why}: write {instead}."
    # beside a column that is in order, neither is taken silently
    path = write(
        tmp_path, "d,price,other\n" + "".join(r.replace(r[0], "x", 1).rsplit(",", 1)[0] + ",7\n" for r in rows)
    )
    with pytest.raises(PlaitError) as e:
        series.read(path)
    assert str(e.value) == f"{path}: column 'other' has numbers, and {hint}: choose one with --column."
    assert series.read(path, "other").values.tolist() == [7, 7, 7]


def test_numbers_with_gaps_are_named_beside_those_without(tmp_path: Path) -> None:
    path = write(tmp_path, "d,a,b\nx,1,\ny,2,\nz,3,4\n")
    sentence = r"column 'a' has numbers, and column 'b' has numbers in 1 of 3 rows: choose one with --column"
    with pytest.raises(PlaitError, match=sentence):
        series.read(path)
    assert series.read(write(tmp_path, "d,a,note\nx,1,new\ny,2,\nz,3,old\n")).column == "a"  # words are not numbers


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("date|sales\na|1\nb|2\n", r"has \| between its cells: put commas, semicolons or tabs there"),
        (
            "date,v\n2020-01,100,5\n",
            "row 2 has 3 cells, and there are 2 columns: if a comma is a decimal one, write a point",
        ),
        ("v\nx,y\n", "row 2 has 2 cells, and there are 1 columns: is it CSV?"),
        ("d,v\na,1e308\nb,2\n", r"row 2, column 'v': 1e308 is beyond 1e\+150, and its square is no number: divide"),
        ("d,v\na,1\nb,-1.7e308\n", r"row 3, column 'v': -1\.7e308 is beyond 1e\+150"),
        ("d" + "," * 1_000_000 + "\n", "has 1,000,001 columns: expected at most 10,000; is it CSV?"),
        (",".join(f"c{k}" for k in range(99)) + "\n" + "x," * 98 + "x\n", r"c0, c1, .*, c19 and 79 more\.$"),
    ],
)
def test_more_bad_files_get_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(PlaitError, match=sentence):
        series.read(write(tmp_path, text))


@pytest.mark.parametrize("text", ["d;v\na;1,234\nb;5,678\n", "d\tv\na\t7\nb\t1,234\n", "d;v\na;x\nb;-1,234\nc;7\n"])
@pytest.mark.parametrize("missing", ["error", "interpolate"])
def test_a_comma_that_may_divide_thousands_is_refused(tmp_path: Path, text: str, missing: str) -> None:
    sentence = r"row [23], column 'v': '-?1,234' may be -?1\.234 or -?1234: write one of them, in all rows"
    with pytest.raises(PlaitError, match=sentence):
        series.read(write(tmp_path, text), "v", missing)


@pytest.mark.parametrize("cell", ["0,125", "1,5", "1,2345", "1234,567", "1,234e3"])
def test_one_cell_can_tell_what_a_comma_is(tmp_path: Path, cell: str) -> None:
    assert series.read(write(tmp_path, f"d;v\na;1,234\nb;{cell}\n")).values[0] == 1.234


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("date,5%,50%,95%\na,1,2,3\nb,4,5,6\n", ["5%", "50%", "95%"]),
        ("item;$5;1 000\na;1;2\nb;4;5\n", ["$5", "1 000"]),
    ],
)
def test_names_that_are_nearly_numbers(tmp_path: Path, text: str, columns: list[str]) -> None:
    for column, second in zip(columns, text.splitlines()[1].replace(";", ",").split(",")[1:], strict=True):
        data = series.read(write(tmp_path, text), column)
        assert (data.values[0], len(data.values)) == (float(second), 2)


@pytest.mark.parametrize("text", ["a,5%\nb,6%\n", "5%\n6\n7\n", "2020-01,$5\n2020-02,6\n2020-03,7\n", "5%,6%\n1,2\n"])
def test_a_first_row_that_is_nearly_numbers_is_not_lost(tmp_path: Path, text: str) -> None:
    path, last = write(tmp_path, text), text.splitlines()[0].count(",") + 1
    with pytest.raises(PlaitError, match="row 1"):
        series.read(path, str(last))


@pytest.mark.parametrize("text", ["a|b, c\nx|2\ny|4\n", "name|b, c\nx|1,5\ny|2,5\n"])
def test_bars_beside_commas_get_a_hint(tmp_path: Path, text: str) -> None:
    with pytest.raises(PlaitError, match=r"has \| between its cells: put commas.*, or write sep=\| in a line above"):
        series.read(write(tmp_path, text))
    assert series.read(write(tmp_path, "sep=|\n" + text)).column == "b, c"
    assert series.read(write(tmp_path, "a|b,c\nx,1\n")).column == "c"  # a name may have one


@pytest.mark.parametrize("line", ["sep=\t", '"sep=\t"', "sep=\t "])
def test_excels_first_line_with_a_tab(tmp_path: Path, line: str) -> None:
    data = series.read(write(tmp_path, f"{line}\nd, e; f\tv\na\t1,5\nb\t2\n"))
    assert (data.values.tolist(), data.column) == ([1.5, 2], "v")


@pytest.mark.parametrize("line", ["sep=;", '"sep=;"', "SEP=;"])
def test_excels_first_line(tmp_path: Path, line: str) -> None:
    data = series.read(write(tmp_path, f"{line}\nd;v\na;1,5\nb;2\n"))
    assert (data.values.tolist(), data.column) == ([1.5, 2], "v")
    with pytest.raises(PlaitError, match="row 4, column 'v': 'x' is not a number"):  # the rows keep their numbers
        series.read(write(tmp_path, f"{line}\nd;v\na;1,5\nb;x\nc;2\n"))


TEN_DAYS = [f"2020-02-{day}" for day in range(10, 30)]


# --- dates --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (
            ["2020-01-01", "2020-01-03", "2020-01-02", "2020-01-04"],
            r"row 4: 2020-01-02 comes after 2020-01-03 in row 3",
        ),
        (
            ["2020-01-01", "2020-01-02", "2020-01-02", "2020-01-04"],
            "row 4: 2020-01-02 is in row 3 already: keep one row",
        ),
        (["2020-01", "2020-03", "2020-02", "2020-04"], "row 4: 2020-02 comes after 2020-03 in row 3: sort it"),
        (["2020-01-01 12:00", "2020-01-01 11:00", "2020-01-01 13:00"], "row 3: 2020-01-01 11:00 comes after"),
        (["2020-01-01T12:00:00", "2020-01-01T12:00:00"], "row 3: 2020-01-01T12:00:00 is in row 2 already"),
        (["2020-01-01T12:00Z", "2020-01-01T12:00+02:00", "2020-01-02T00:00Z"], r"row 3: .*\+02:00 comes after"),
        (["2020-01-01", "2020-01-03", "2020-01-02", *TEN_DAYS, "Total"], "row 4: 2020-01-02 comes after 2020-01-03"),
        (["Start", "2020-01-01", "2020-01-01", *TEN_DAYS], "row 4: 2020-01-01 is in row 3 already"),
        (["01/02/2020", "01/01/2020", "13/02/2020"], "row 3: 01/01/2020 comes after 01/02/2020"),
        (["01/02/2020", "01/01/2020", "01/13/2020"], "row 3: 01/01/2020 comes after 01/02/2020"),
        (["31.12.2020", "1.1.2020"], "runs from 31.12.2020 back to 1.1.2020"),
        (["31.12.2020 9:00", "31.12.2020 10:00", "31.12.2020 9:30", "31.12.2020 11:00"], "row 4: .* 9:30 comes after"),
        (["2020-10-25T02:00", "2020-10-25T00:30", "2020-10-26T00:00"], "row 3: .* comes after"),  # more than an hour
        (["2020-10-25T02:00Z", "2020-10-25T02:00Z", "2020-10-26T00:00Z"], "row 3: .* is in row 2"),  # no summer time
        (["2020-10-25", "2020-10-25", "2020-10-26"], "row 3: .* is in row 2"),
        (["2020-01-02 00:00", "2020-01-01 23:00"], "runs from 2020-01-02 00:00 back to 2020-01-01 23:00: sort it"),
    ],
)
def test_dates_that_are_shuffled_or_repeated_are_noticed(tmp_path: Path, labels: list[str], sentence: str) -> None:
    with pytest.raises(PlaitError, match=sentence):
        series.read(write(tmp_path, "d,v\n" + "".join(f"{label},1\n" for label in labels)))


@pytest.mark.parametrize(
    "labels",
    [
        ["2020-01-01", "2020-01-05", "2021-12-31"],
        ["2020-01-01 00:00", "2020-01-01 06:30", "2020-01-03 00:00"],
        ["2020-10-25T02:00+02:00", "2020-10-25T02:00+01:00"],  # the hour that the end of summer time repeats
        ["2020-10-25 02:00", "2020-10-25 02:30", "2020-10-25 02:00", "2020-10-25 02:30"],  # without a zone
        ["25.10.2020 02:00", "25.10.2020 02:00", "25.10.2020 03:00"],
        ["01/02/2020", "02/01/2020", "01/03/2020"],  # the first of February, or the second of January?
        ["2020-01-05", "Total", "2020-01-01"],  # too few of them
        ["13/01/2020", "01/13/2020", "01/01/2020"],  # neither reading fits
        ["2020-13-01", "2020-12-01"],  # no dates
        ["b", "a", "b"],
    ],
)
def test_dates_with_gaps_and_labels_that_are_no_dates_are_fine(tmp_path: Path, labels: list[str]) -> None:
    data = series.read(write(tmp_path, "d,v\n" + "".join(f"{label},1\n" for label in labels)))
    assert list(data.labels) == labels


MARCH, LAST_SUNDAY = date(2023, 3, 1), date(2023, 3, 26)  # summer time begins on that day, in many places


def days(count: int, begin: date = date(2023, 1, 1)) -> list[date]:
    return [begin + timedelta(days=k) for k in range(count)]


def table(labels: Sequence[object], values: Sequence[float] | None = None) -> str:
    return "d,v\n" + "".join(f"{label},{values[k] if values else k + 1}\n" for k, label in enumerate(labels))


@pytest.mark.parametrize(
    ("wrong", "usual"),
    [
        ("2023-02-31", [*days(31)]),
        ("2023-02-29", [*days(59)]),
        ("2023/13/01", [f"{d:%Y/%m/%d}" for d in days(31)]),
        ("31.02.2023", [f"{d:%d.%m.%Y}" for d in days(31)]),
        ("02/31/2023", [f"{d:%m/%d/%Y}" for d in days(31)]),
        ("2023-01-02 25:00", [f"2023-01-01 {h:02}:00" for h in range(24)]),
    ],
)
def test_a_date_that_does_not_exist_is_refused(tmp_path: Path, wrong: str, usual: list[object]) -> None:
    with pytest.raises(PlaitError, match=rf"row {len(usual) + 2}: there is no date {wrong}: correct it"):
        series.read(write(tmp_path, table([*usual, wrong])))


def test_the_hour_24_is_the_end_of_a_day(tmp_path: Path) -> None:
    labels = [f"2023-01-{d:02} {h:02}:00" for d in range(1, 5) for h in range(1, 25)]
    assert list(series.read(write(tmp_path, table(labels))).labels) == labels


def test_days_without_a_row_are_counted_and_filled_if_that_is_asked_for(tmp_path: Path) -> None:
    every = days(730)
    gone = set(range(40, 720, 34))  # 20 of them
    rows = [k for k in range(730) if k not in gone]
    path = write(tmp_path, table([every[k] for k in rows], [float(k) for k in rows]))
    sentence = r"row 42: 20 of 730 days have no row, the first is 2023-02-10: add them, or use --missing interpolate\."
    with pytest.raises(PlaitError, match=sentence):
        series.read(path)
    data = series.read(path, missing="interpolate")
    assert data.values.tolist() == list(range(730))
    assert list(data.labels) == [str(d) for d in every]
    assert data.notes == " (20 values interpolated)"


@pytest.mark.parametrize(
    ("labels", "gaps"),
    [
        ([f"{y}-{m:02}" for y in (2020, 2021) for m in range(1, 13) if (y, m) != (2021, 3)], "1 of 24 months"),
        ([f"{y}-12-31" for y in range(1990, 2020) if y != 2001], "1 of 30 years"),
        ([d for d in days(400) if (d + timedelta(1)).day == 1 and d.month != 9], "1 of 13 months"),
        ([f"{d:%d/%m/%Y}" for d in days(40) if d.day != 20], "1 of 40 days"),
        (
            [f"2023-01-{d:02}T{h:02}:00:00" for d in range(1, 9) for h in range(24) if (d, h) != (5, 3)],
            "1 of 192 hours",
        ),
        ([d for k, d in enumerate(days(400)[::7]) if k not in (5, 6)], "2 of 58 weeks"),
        ([f"2023-{m:02}-28" for m in range(1, 13) if m != 3], "1 of 12 months"),
        ([f"{d}T06:00Z" for d in days(30) if d.day != 7], "1 of 30 days"),
        ([f"{d}T00:00+0{1 + (d > LAST_SUNDAY)}:00" for d in days(60, MARCH) if d.day not in (5, 6)], "4 of 60 days"),
        ([d for d in days(60) if d.weekday() < 5 and not 10 <= d.day < 20], "14 of 43 days"),
    ],
)
def test_gaps_in_regular_dates_are_noticed(tmp_path: Path, labels: list[object], gaps: str) -> None:
    with pytest.raises(PlaitError, match=f": {gaps} ha(s|ve) no row"):
        series.read(write(tmp_path, table(labels)))
    data = series.read(write(tmp_path, table(labels)), missing="interpolate")
    assert len(data.values) == int(gaps.split()[2])
    assert data.notes == f" ({counted(int(gaps.split()[0]), 'value')} interpolated)"
    assert len({len(label) for label in data.labels}) == 1  # those that were put in are written as the others


@pytest.mark.parametrize(
    ("labels", "notes"),
    [
        ([d for d in days(400) if d.weekday() < 5], ""),  # nothing is missing on a free day
        ([d for d in days(400) if d.weekday() != 6], ""),
        (
            [d for d in days(400) if d.weekday() < 5 and (d.month, d.day) not in ((5, 1), (12, 25))],
            " (2 of 285 days have",
        ),
        ([f"{d} {h:02}:00" for d in days(30) for h in range(9, 18)], ""),
        ([f"{y}-{m:02}" for y in range(2000, 2006) for m in (1, 2, 3, 9, 10, 11, 12)], ""),
        ([f"{d} {h:02}:00" for d in days(3, date(2023, 3, 25)) for h in range(24) if (d.day, h) != (26, 2)], ""),
        ([datetime(2023, 1, 1) + timedelta(hours=k * k) for k in range(40)], ""),  # not regular
    ],
)
def test_what_is_never_there_is_not_missing(tmp_path: Path, labels: list[object], notes: str) -> None:
    data = series.read(write(tmp_path, table(labels)))
    assert len(data.values) == len(labels)
    assert data.notes.startswith(notes)
    assert bool(data.notes) == bool(notes)


def test_a_date_far_from_the_others_is_not_filled_up_to(tmp_path: Path) -> None:
    labels = [*days(40), "9203-02-10"]
    for missing in ("error", "interpolate"):
        with pytest.raises(
            PlaitError, match=r"row 42: 9203-02-10 is 2,622,\d+ days after 2023-02-09 in row 41: correct"
        ):
            series.read(write(tmp_path, table(labels)), missing=missing)
    with pytest.raises(PlaitError, match="60 of 101 days have no row: expected at least half of them"):
        series.read(write(tmp_path, table([*days(40), *days(1, date(2023, 4, 11))])), missing="interpolate")


STORES = [("A", d, 1.5) for d in days(30)] + [("B", d, 2.5) for d in days(30)]


@pytest.mark.parametrize(
    ("text", "column", "sentence"),
    [
        (
            "store_id,date,sales\n" + "".join(f"{k},{d},{v}\n" for k in range(5) for _, d, v in STORES[:30]),
            "sales",
            "5 ser",
        ),
        ("date,store,sales\n" + "".join(f"{d},{s},{v}\n" for s, d, v in STORES), None, "2 series, one for each value"),
        ("date,store,sales\n" + "".join(f"{d},{s},{v}\n" for s, d, v in sorted(STORES, key=str)), None, "2 series"),
        (
            "sales,date,store\n" + "".join(f"{v},{d},{s}\n" for s, d, v in STORES),
            None,
            r"'store' \(A, B\): expected one",
        ),
        (
            "store,sales\n" + "".join(f"{s},{v}\n" for s, _, v in STORES),
            None,
            "'store' has 2 values, each in consecutive",
        ),
    ],
)
def test_several_series_in_one_table_are_refused(tmp_path: Path, text: str, column: str | None, sentence: str) -> None:
    for missing in ("error", "interpolate"):
        with pytest.raises(PlaitError, match=sentence):
            series.read(write(tmp_path, text), column, missing)


YEARS = range(2001, 2013)
WEEKS = [f"2021-W{week:02}" for week in range(1, 13)]
PAIRS = [(store, item) for store in "AB" for item in ("tea", "milk")]


def lines(header: str, rows: Iterable[tuple[object, ...]]) -> str:
    """A column of numbers behind them."""
    return f"{header},v\n" + "".join(",".join(map(str, (*row, f"{k}.5"))) + "\n" for k, row in enumerate(rows))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (lines("year,store", [(y, s) for s in (1, 2) for y in YEARS]), r"2 series, one for each .* 'store' \(1, 2\): "),
        (lines("year,country", [(y, c) for y in YEARS for c in "ABC"]), r"3 series.* 'country' \(A, B, C\): expected"),
        (lines("country,year", [(c, y) for c in "ABC" for y in YEARS]), r"3 series.* 'country' \(A, B, C\): expected"),
        (lines("store,year,month", [(s, y, m) for s in (3, 4) for y in YEARS for m in range(1, 13)]), "'store' "),
        (lines("id,t", [(k, t) for k in range(4) for t in range(20)]), "4 series, one for each value of column 'id'"),
        (lines("week,store", [(w, s) for s in (1, 2) for w in WEEKS]), "2 series, one for each value of .* 'store'"),
        (lines("store,x", [(s, w) for s in (1, 2) for w in WEEKS]), "2 series, one for each value of column 'store'"),
        (lines("q,s", [(f"{y}Q{q}", s) for s in "ab" for y in YEARS for q in (1, 2, 3, 4)]), "2 series.* column 's'"),
        (lines("Week_No,shop name", [(w, s) for s in "ab" for w in range(1, 30)]), "2 series.* column 'shop name'"),
        (lines("date,store", [(f"0{m}/0{d}/2020", s) for s in "ab" for m in (1, 2) for d in range(1, 9)]), "'store'"),
        (
            lines("date,store,item", [(d, *pair) for pair in PAIRS for d in days(30)]),
            r"4 series, one for each combination of columns 'store' and 'item' \(A tea, A milk, B tea, B milk\): "
            r"expected one; keep the rows of one of them\.$",
        ),
        (lines("store,item,date", [(*pair, d) for d in days(30) for pair in PAIRS]), "4 series.* 'store' and 'item'"),
        (lines("item,year,store", [(i, y, s) for s, i in PAIRS for y in YEARS]), "4 series.* 'item' and 'store'"),
        (
            lines("date,name,store,item,promo", [(d, s * 2, s, i, d.day % 3) for s, i in PAIRS for d in days(30)]),
            "4 series.* 'name' and 'item'",
        ),
        (lines("date,store", [(d, s) for s in "AB" for d in (*days(30), days(1)[0])]), "2 series.* 'store'"),
        (
            lines("date,hour", [(d, h) for d in days(3) for h in range(24)]),
            r"told apart by columns 'date', 'hour' together: write these into one, such as '2023-01-01 0'",
        ),
    ],
)
def test_several_series_whatever_their_labels(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(PlaitError, match=sentence):
        series.read(write(tmp_path, text), "v")


def test_the_advice_about_several_series_can_be_followed(tmp_path: Path) -> None:
    text = lines("year,q", [(y, q) for y in YEARS for q in (1, 2, 3, 4)])
    with pytest.raises(PlaitError, match=r"if 'q' is a part of the time, call it month, week, day or hour\.$"):
        series.read(write(tmp_path, text), "v")
    assert len(series.read(write(tmp_path, text.replace("q", "month", 1)), "v").values) == 48
    text = lines("date,store,item", [(d, *pair) for pair in PAIRS for d in days(30)])
    one = "\n".join(line for line in text.split("\n") if "B,milk" in line or "item" in line)
    assert list(series.read(write(tmp_path, one), "v").labels) == [str(d) for d in days(30)]
    text = lines("date", [(f"{d} {h:02}:00",) for d in days(3) for h in range(24)])
    assert len(series.read(write(tmp_path, text), "v").values) == 72


@pytest.mark.parametrize(
    "text",
    [
        lines("year,month", [(y, m) for y in YEARS for m in range(1, 13)]),
        lines("Year,Month Name", [(y, m) for y in YEARS for m in ("Jan", "Feb", "Mar")]),
        lines("year,era", [(y, "old" if y < 2007 else "new") for y in YEARS]),
        lines("year,event", [(y, f"event {k}") for k, y in enumerate([*YEARS, *YEARS])]),  # nothing is told apart
        lines("k,rain,wind", [(k, k % 4, k % 7) for k in range(28)]),
        lines("label", [(f"row {k % 3}",) for k in range(12)]),
        "".join(f"{y},{m},x{y}{m},1.5\n" for y in YEARS for m in range(1, 13)),  # no header
    ],
)
def test_tables_of_one_series_are_not_refused(tmp_path: Path, text: str) -> None:
    has_header = not text.startswith("2001")
    data = series.read(write(tmp_path, text), "v" if has_header else "4")
    assert len(data.values) == text.count("\n") - has_header


def test_dates_need_not_be_in_the_first_column(tmp_path: Path) -> None:
    rows = [(k, d, "winter" if k < 20 else "spring") for k, d in enumerate(days(40))]
    text = "row,season,date,v\n" + "".join(f"{k},{season},{d},{k}.5\n" for k, d, season in rows)
    data = series.read(write(tmp_path, text), "v")
    assert list(data.labels) == [str(d) for d in days(40)]
    assert data.labels_ahead(1) == ["2023-02-10"]
    with pytest.raises(PlaitError, match="1 of 40 days has no row"):
        series.read(write(tmp_path, text.replace("9,winter,2023-01-10,9.5\n", "")), "v")


# --- what is no file to read ------------------------------------------------------------------------------------------
def test_pipes_and_sockets_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "link.csv").symlink_to("pipe.csv")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket.csv"))
        for name in ("pipe.csv", "link.csv", "socket.csv"):
            with pytest.raises(
                PlaitError, match=rf"{name} is a pipe or a socket: expected a CSV file .*to a file first"
            ):
                series.read(str(tmp_path / name))
    readable, writable = os.pipe()
    try:
        with pytest.raises(PlaitError, match=f"/dev/fd/{readable} is a pipe or a socket: expected a CSV file"):
            series.read(f"/dev/fd/{readable}")
    finally:
        os.close(readable)
        os.close(writable)
    (tmp_path / "me.csv").symlink_to("me.csv")
    with pytest.raises(PlaitError, match=r"me\.csv cannot be read: Too many levels of symbolic links"):
        series.read(str(tmp_path / "me.csv"))
    with pytest.raises(PlaitError, match="cannot be read: File name too long"):
        series.read("x" * 300)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "huge.csv"
    with path.open("wb") as file:
        file.truncate(2**40)  # which takes no room on the disk
    with pytest.raises(PlaitError, match=r"has 1,099,511,627,776 bytes: expected at most 268,435,456; cut out"):
        series.read(str(path))
    assert files.contents(Path(write(tmp_path, "123")), "", 3) == b"123"
    with pytest.raises(PlaitError, match=r"has 4 bytes: expected at most 3; cut out"):
        files.contents(Path(write(tmp_path, "1234")), "", 3)
    monkeypatch.setattr(tables, "MOST_CELLS", 6)
    with pytest.raises(PlaitError, match=r"has about 8 cells: expected at most 6; cut out"):
        series.read(write(tmp_path, "d,v\n" + "a,1\n" * 3))


def test_a_file_that_does_not_say_its_size_is_read_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("/proc/self/status")
    if not path.exists():
        pytest.skip("there is no /proc/self/status")
    assert path.stat().st_size == 0
    assert files.contents(path, "", 10**6).startswith(b"Name:")
    with pytest.raises(PlaitError, match="status has 101 bytes: expected at most 100"):
        files.contents(path, "", 100)


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(tmp_path: Path, monkeypatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(files, "regular", lambda path, expected: path)  # when that was asked, it was a file
    for read in (series.read, text.read):
        with pytest.raises(PlaitError, match="pipe is a pipe or a socket"):
            read(str(tmp_path / "pipe"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("PAR1", "PAR1,PAR2\n1,2\n3,4\n"),
        ("PAR1", "PAR1,PAR2\n1,2\n3,4\nPAR1"),
        ("BZh", "BZh9,x\n1,2\n3,4\n"),
        ("ARROW1", "ARROW1,x\n1,2\n3,ARROW1"),
        ("%PDF-", "%PDF-files,x\n1,2\n"),
    ],
)
def test_a_text_may_begin_as_other_files_do(tmp_path: Path, name: str, content: str) -> None:
    assert files.decoded(content.encode(), "it") == content
    assert content.startswith(name)


def test_a_zip_is_known_by_the_names_in_it(tmp_path: Path) -> None:
    for content in (zipped({"about xl/": "of xl/ and word/"}), zipped({"xl/a": "b"})[:-9], b"PK\x03\x04xl/"):
        with pytest.raises(PlaitError, match=" is a zip: extract it"):
            files.decoded(content, "it")


def test_a_zero_byte_is_not_another_coding() -> None:
    with pytest.raises(PlaitError) as e:
        files.decoded(b"a\nb\0c", "it")
    assert str(e.value) == "it has byte 0x00 in line 2: it is not text; expected text in UTF-8."


def test_bytes_that_are_not_text_are_named(tmp_path: Path) -> None:
    for name, content in NOT_TEXT.items():
        for read in (series.read, text.read):
            path = write(tmp_path, content, "data.bin")
            with pytest.raises(PlaitError) as e:
                read(path)
            assert str(e.value).startswith(f"{path} is {name}: "), name
            assert re.search("convert it|export it|extract it", str(e.value)), name


TABLE = "d,v\na,1\nb,2\n" * 9
NOT_TEXT = {
    "text in UTF-16": TABLE.encode("utf-16"),
    "text in UTF-16 without a mark": TABLE.encode("utf-16-be"),
    "text in UTF-32": TABLE.encode("utf-32"),
    "an Excel file": zipped({"[Content_Types].xml": "<xml/>", "xl/workbook.xml": "<xml/>"}),
    "a Word file": zipped({"word/document.xml": "<xml/>"}),
    "an OpenDocument file": zipped({"mimetype": "x", "content.xml": "<xml/>"}),
    "an old Excel (or other Office) file": bytes.fromhex("D0CF11E0A1B11AE1") + bytes(504),
    "a parquet file": b"PAR1\x15\x04\x15" + bytes(99) + b"PAR1",
    "a feather file": b"ARROW1\0\0" + bytes(99) + b"ARROW1",
    "a bzip2": bz2.compress(TABLE.encode()),
    "an xz": lzma.compress(TABLE.encode()),
    "a zstd": b"\x28\xb5\x2f\xfd" + bytes(9),
    "a gzip": gzip.compress(TABLE.encode()),
    "a zip": zipped({"data.csv": "d,v\na,1\n"}),
    "a PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
    "an SQLite database": b"SQLite format 3\0" + bytes(84),
}


# --- numbers that are too large ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("log", [False, True])
def test_a_forecast_that_explodes_gets_a_sentence(log: bool) -> None:
    with pytest.raises(PlaitError, match=r"grows beyond 1e\+150 after 2 steps: ask for fewer, or train anew"):
        SeasonalScale(1, log, 0.0, 1.0).extend(np.ones(3), np.array([1.0, 1.0, np.nan if log else 1e200]))
    with np.errstate(all="raise"):
        assert series.errors(np.array([1e150]), np.array([-1e150]))["rmse"] == 2e150
        assert series.errors(np.array([1.0]), np.array([1e-320]))["mape"] is None
