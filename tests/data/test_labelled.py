"""Labelled sequences from .ts files, UCI HAR's folders, .npz and CSV files; and what is wrong with them."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from plait import PlaitError
from plait.data import labelled
from plait.data.long_csv import Columns
from reference import data_file

HEADER = """# a comment
@problemName Walk
@timeStamps false
@univariate false
@dimensions 2
@equalLength false
@classLabel true up down
@data
"""
LINES = "1,2,3:4,5,6:up\n1,?:NaN,2:down\n"


def refusal(path: Path, **options) -> str:
    with pytest.raises(PlaitError) as e:
        labelled.read(str(path), **options)
    return str(e.value).replace(str(path), "IT").replace(str(path.parent), "FOLDER")


# --- .ts -------------------------------------------------------------------------------------------------------------
def test_ts_files_with_their_test_part(tmp_path: Path) -> None:
    (tmp_path / "Walk_TRAIN.ts").write_text(HEADER + LINES)
    (tmp_path / "Walk_TEST.ts").write_text(HEADER + LINES.replace("3:", "9:"))
    (tmp_path / "Other_TEST.ts").write_text("nonsense")
    source = labelled.read(str(tmp_path / "Walk_TRAIN.ts"))
    assert (source.name, list(source.columns)) == ("Walk", ["1", "2"])
    train, test = source.parts["train"], source.parts["test"]
    assert train.labels == ["up", "down"]
    assert train.names == ["line 9", "line 10"]
    np.testing.assert_array_equal(train.rows[0], [[1, 4], [2, 5], [3, 6]])
    np.testing.assert_array_equal(train.rows[1], [[1, np.nan], [np.nan, 2]])
    assert test.rows[0][2, 0] == 9
    alone = labelled.read(str(tmp_path / "Walk_TRAIN.ts"), alone=True)
    assert list(alone.parts) == ["train"]


def test_ts_files_without_labels(tmp_path: Path) -> None:
    path = tmp_path / "new.ts"
    path.write_text(HEADER.replace("true up down", "false") + "1,2:3,4\n5:6\n")
    found = labelled.read(str(path), labelled=False).parts["train"]
    assert found.labels is None
    assert [r.tolist() for r in found.rows] == [[[1, 3], [2, 4]], [[5, 6]]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("@data\n", ""), "IT, line 8: '1,2,3:4,5,6:up' comes before @data; expected a line that begins with @."),
        (("1,2,3:4,5,6:up", "1,2,3:4,5:up"), "IT, line 9: its dimensions have 2 to 3 steps; expected the same number"),
        (("1,2,3:4,5,6:up", "1,2,3:4,5,6:left"), "IT, line 9: class 'left' is not in the header's @classLabel (up d"),
        (("1,?:NaN,2:down", "1:2:3:down"), "IT, line 10: it has 3 dimensions, and the first sequence has 2."),
        (("1,2,3:4", "1,x,3:4"), "IT, line 9, dimension 1: could not convert string to float: 'x'; expected numbers"),
        (("1,?:NaN,2:down", "up"), "IT, line 10: it has no label; expected dimensions, divided by :, and a label"),
        (("@dimensions 2", "@dimensions two"), "IT: its header says 'two' dimensions: expected a whole number."),
        (("@dimensions 2", "@dimensions 3"), "IT: its header says 3 dimensions, and its sequences have 2: mend one."),
        (("@univariate false", "@univariate true"), "IT: its header says @univariate true, and it has 2 dimensions"),
        (("@equalLength false", "@equalLength true"), "IT: its header says @equalLength true, and its sequences have"),
        (("@timeStamps false", "@timeStamps true"), "IT has time stamps (@timeStamps true): expected numbers alone"),
        (("@classLabel true up down\n", ""), "IT has no @classLabel: expected one, with the names of the classes."),
        (("@classLabel true up down", "@classLabel maybe"), "IT: @classLabel maybe: expected true and the classes, or"),
        (("@classLabel true up down", "@classLabel"), "IT: @classLabel : expected true and the classes, or false."),
        (("@classLabel", "@targetLabel TRUE\n@classLabel"), "IT has numbers to predict (@targetLabel): expected class"),
        (("@classLabel true up down", "@classLabel true"), "IT: @classLabel true without classes: expected their"),
        (("@classLabel", "@targetLabel true\n@classLabel"), "IT has numbers to predict (@targetLabel): expected class"),
    ],
)
def test_ts_files_that_are_refused(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    path = tmp_path / "Walk.ts"
    text = (HEADER + LINES).replace(*change)
    assert text != HEADER + LINES
    path.write_text(text)
    assert refusal(path).startswith(says), refusal(path)


def test_a_header_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "Walk.ts").write_text("@problemName Walk\n")
    assert refusal(tmp_path / "Walk.ts").startswith("IT has no line @data")


def test_parts_of_different_widths(tmp_path: Path) -> None:
    (tmp_path / "Walk_TRAIN.ts").write_text(HEADER + LINES)
    (tmp_path / "Walk_TEST.ts").write_text(HEADER.replace("@dimensions 2", "@dimensions 1") + "1,2:up\n")
    assert refusal(tmp_path / "Walk_TRAIN.ts").endswith("Walk_TEST.ts has 1 dimensions, and IT has 2.")


def test_the_archive(tmp_path: Path) -> None:
    """Inside a zip, without extracting it."""
    path = data_file("uea-ts.zip")
    source = labelled.read(f"{path}/JapaneseVowels")
    lengths = [len(r) for found in source.parts.values() for r in found.rows]
    assert (min(lengths), max(lengths), len(source.columns)) == (7, 29, 12)
    assert {part: len(found.rows) for part, found in source.parts.items()} == {"train": 270, "test": 370}
    with pytest.raises(
        PlaitError, match=r"has 2 problems: choose one of them, .*zip/BasicMotions, .*/JapaneseVowels\."
    ):
        labelled.read(str(path))
    with pytest.raises(PlaitError, match="has no sequences"):
        labelled.read(f"{path}/Nothing")
    file = labelled.read(f"{path}/BasicMotions/BasicMotions_TRAIN.ts")
    assert {part: len(found.rows) for part, found in file.parts.items()} == {"train": 40, "test": 40}


def test_what_a_zip_offers_can_be_had(tmp_path: Path) -> None:
    """Problems that lie side by side at its top."""
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        for name in "AB":
            archive.writestr(f"{name}_TRAIN.ts", HEADER + LINES)
    with pytest.raises(PlaitError, match="choose one of them") as e:
        labelled.read(str(tmp_path / "two.zip"))
    offered = str(e.value).rpartition("choose one of them, ")[2].rstrip(".").split(", ")
    assert [labelled.read(path).name for path in offered] == ["A", "B"]


# --- UCI HAR ---------------------------------------------------------------------------------------------------------
def har_files() -> dict[str, str]:
    files = {"UCI HAR Dataset/activity_labels.txt": "1 WALKING\n2 SITTING\n"}
    for part, n in (("train", 4), ("test", 2)):
        for k, signal in enumerate(("body_acc_x", "total_acc_x")):
            rows = "\n".join(" ".join(f"{100 * k + 10 * w + t:.7e}" for t in range(3)) for w in range(n))
            files[f"UCI HAR Dataset/{part}/Inertial Signals/{signal}_{part}.txt"] = rows + "\n"
        files[f"UCI HAR Dataset/{part}/y_{part}.txt"] = "".join(f"{1 + w % 2}\n" for w in range(n))
    return files


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_har_from_a_folder_and_a_zip(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder", har_files())
    with zipfile.ZipFile(tmp_path / "har.zip", "w") as archive:
        for name, text in har_files().items():
            archive.writestr(name, text)
    for path in (folder, folder / "UCI HAR Dataset", tmp_path / "har.zip"):
        source = labelled.read(str(path))
        assert list(source.columns) == ["body_acc_x", "total_acc_x"]
        assert source.parts["train"].labels == ["WALKING", "SITTING", "WALKING", "SITTING"]
        assert source.parts["test"].rows[1].tolist() == [[10, 110], [11, 111], [12, 112]]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("train/y_train.txt", None, "UCI HAR Dataset/train/y_train.txt is missing: expected the label of each window"),
        ("train/y_train.txt", "1\n2\n", "UCI HAR Dataset/train/y_train.txt has 2 lines, and "),
        ("test/Inertial Signals/body_acc_x_test.txt", None, "has 1 signals, and the training part 2 (body_acc_x)"),
        ("train/Inertial Signals/body_acc_x_train.txt", "1 2\n3\n", "expected rows of numbers, equally long."),
        ("train/Inertial Signals/body_acc_x_train.txt", "1 x\n3 4\n", "expected rows of numbers, equally long."),
        ("train/Inertial Signals/total_acc_x_train.txt", "1 2 3\n", "has 1 lines, and "),
        ("train/Inertial Signals/total_acc_x_train.txt", "1 2\n" * 4, "has 2 numbers in a line, and "),
    ],
)
def test_har_that_is_refused(tmp_path: Path, name: str, text: str | None, says: str) -> None:
    files = har_files()
    if text is None:
        del files[f"UCI HAR Dataset/{name}"]
    else:
        files[f"UCI HAR Dataset/{name}"] = text
    assert says in refusal(write(tmp_path / "it", files))


def test_har_without_labels_is_new_data(tmp_path: Path) -> None:
    files = {name: text for name, text in har_files().items() if "y_" not in name}
    found = labelled.read(str(write(tmp_path / "it", files)), labelled=False).all_parts()
    assert (found.labels, len(found.rows)) == (None, 6)


def test_a_time_that_was_named_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "walks.csv"
    path.write_text("id,step,x,label\na,1,2,u\n")
    says = refusal(path, columns=Columns(time="stp"))
    assert says.startswith("IT has no column 'stp' (its columns are id, step, x, label): expected ")
    assert says.endswith("; --time-column gives another name.")


# --- .npz ------------------------------------------------------------------------------------------------------------
def saved(path: Path, **arrays) -> Path:
    np.savez(path, **arrays)
    return path


def test_npz(tmp_path: Path) -> None:
    x = np.arange(24.0).reshape(3, 4, 2)
    source = labelled.read(
        str(saved(tmp_path / "a.npz", x=x, y=[1, 0, 1], lengths=[4, 2, 1], x_test=x, y_test=[0, 0, 1]))
    )
    train = source.parts["train"]
    assert train.labels == ["1", "0", "1"]
    assert [r.tolist() for r in train.rows] == [x[0].tolist(), x[1, :2].tolist(), x[2, :1].tolist()]
    assert len(source.parts["test"].rows) == 3
    single = labelled.read(str(saved(tmp_path / "b.npz", X_train=x[:, :, 0], y_train=["a", "b", "c"])))
    assert single.parts["train"].rows[0].shape == (4, 1)
    assert labelled.read(str(saved(tmp_path / "c.npz", x=x)), labelled=False).parts["train"].labels is None


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"z": np.zeros(3)}, "IT has z: expected arrays x"),
        ({"x": np.zeros(3), "y": np.zeros(3)}, "IT: x has shape (3,) and type float64; expected arrays x"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(2)}, "IT: y has shape (2,), and x has 3 sequences;"),
        ({"x": np.zeros((3, 2)), "y": np.array([0.5, 1, 2])}, "IT: y has numbers that are not whole;"),
        (
            {"x": np.zeros((3, 2)), "y": np.zeros(3), "lengths": [1, 2, 3]},
            "IT: lengths must be whole numbers from 1 to",
        ),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3), "lengths": [1, 2, 1.5]}, "IT: lengths must be whole numbers from 1"),
        ({"x": np.array([[1, 2], [3]], object), "y": [1, 2]}, "IT has Python objects, which may run code"),
        ({"x": np.array([["a"]]), "y": [1]}, "IT: x has shape (1, 1) and type <U1; expected"),
    ],
)
def test_npz_that_is_refused(tmp_path: Path, arrays: dict, says: str) -> None:
    assert refusal(saved(tmp_path / "a.npz", **arrays)).startswith(says)


def test_npz_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for content in (b"", b"PK\x03\x04broken", b"x" * 100, np.lib.format.magic(1, 0)):
        path.write_bytes(content)
        assert refusal(path).startswith("IT cannot be read as .npz (")
    file = io.BytesIO()
    np.save(file, np.zeros((3, 2)))
    path.write_bytes(file.getvalue())  # a single array
    assert refusal(path).startswith("IT cannot be read as .npz (it is no zip)")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"hello")
    assert refusal(path).startswith("IT")
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(9, 9)), y=np.arange(9))
    content = bytearray(path.read_bytes())
    content[80:120] = bytes(40)
    path.write_bytes(content)
    assert refusal(path).startswith("IT cannot be read as .npz (")


def test_npz_labels(tmp_path: Path) -> None:
    x = np.zeros((2, 3))
    found = labelled.read(str(saved(tmp_path / "a.npz", x=x, y=np.array([b"walk", b"run"]), other=np.array([{}]))))
    assert found.parts["train"].labels == ["walk", "run"]  # and what is not ours is not read
    for y in (np.array([1, np.inf]), np.array([1, np.nan])):
        assert refusal(saved(tmp_path / "a.npz", x=x, y=y)).startswith("IT: y has numbers that are not whole")
    assert refusal(saved(tmp_path / "a.npz", x=x, y=np.array([1j, 2]))).startswith("IT: y has type complex128")


# --- CSV in long form ------------------------------------------------------------------------------------------------
LONG = "id,time,speed,turn,label\na,2,1.5,0,walk\na,1,1.0,1,walk\nb,1,,2,run\nb,2,9,3,run\n"


def test_long_csv(tmp_path: Path) -> None:
    path = tmp_path / "walks.csv"
    path.write_text(LONG)
    source = labelled.read(str(path))
    assert list(source.columns) == ["speed", "turn"]
    train = source.parts["train"]
    assert (train.labels, train.names) == (["walk", "run"], ["id a", "id b"])
    assert train.rows[0].tolist() == [[1.0, 1.0], [1.5, 0.0]]  # in the order of time
    np.testing.assert_array_equal(train.rows[1], [[np.nan, 2], [9, 3]])
    path.write_text("who;when;x\na;2024-02-01;1,5\na;2024-01-01;2,5\n")
    found = labelled.read(str(path), Columns("who", "when", "label"), labelled=False).parts["train"]
    assert (found.labels, found.rows[0].tolist()) == (None, [[2.5], [1.5]])
    path.write_text("id,time,label,0,1\na,1,u,5,6\nb,1,v,7,8\n")  # columns whose names are numbers
    assert list(labelled.read(str(path)).columns) == ["0", "1"]
    path.write_text("id;time;x;label\na;0,75;1;u\na;0,5;2;u\n")  # a decimal comma
    assert labelled.read(str(path)).parts["train"].rows[0].tolist() == [[2], [1]]
    path.write_text("id,x,label\na,1,NaN\nb,2,v\n")
    assert labelled.read(str(path)).parts["train"].labels == ["", "v"]  # a label that is missing is no class
    path.write_text("id,x,label\na,3,u\na,1,u\nb,2,v\n")  # no time: as they come
    assert labelled.read(str(path)).parts["train"].rows[0].tolist() == [[3], [1]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "IT is empty: expected a CSV file with the columns id, time and label"),
        (
            "who,time,x,label\na,1,2,u\n",
            "IT has no column 'id' (its columns are who, time, x, label): expected a",
        ),
        ("id,time,x\na,1,2\n", "IT has no column 'label' (its columns are id, time, x): "),
        ("id,time,label\na,1,u\n", "IT has no columns beside id, time, label:"),
        ("id,time,x,x,label\na,1,2,3,u\n", "IT has two columns 'x': give them names of their own."),
        ("id,time,x,label\n,1,2,u\n", "IT, row 2, column 'id': nothing is there; expected the sequence's id."),
        ("id,time,x,label\na,1,fast,u\n", "IT, row 2, column 'x': 'fast' is not a number; expected a number, or nothi"),
        ("id,time,x,label\na,1,$ 5,u\n", "IT, row 2, column 'x': '$ 5' is not a number; write 5."),
        ("id,time,x,label\na,0,5,u\na,1,6,u\na,soon,7,u\n", "IT, row 4, column 'time': 'soon' is neither a number nor"),
        ("id,time,x,label\na,nan,5,u\n", "IT, row 2, column 'time': 'nan' is neither a number nor a date"),
        ("id,time,x,label\na,soon,5,u\n", "IT, row 2, column 'time': 'soon' is neither a number nor a date"),
        ("id,time,x,label\na,1,5,u\na,1,6,u\n", "IT, row 3, column 'time': 1 is in row 2 already, for the same sequen"),
        ("id,time,x,label\na,1,5,u\na,2,6,v\n", "IT, row 3: sequence 'a' has label 'v' there, and 'u' in row 2;"),
    ],
)
def test_long_csv_that_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "walks.csv"
    path.write_text(text)
    assert refusal(path).startswith(says), refusal(path)


# --- anything else ---------------------------------------------------------------------------------------------------
def test_what_holds_no_sequences(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "empty").startswith("IT has no sequences (found: nothing): expected a .ts, .npz or .csv")
    assert refusal(tmp_path / "nowhere.ts").startswith("IT does not exist: expected a .ts")
    assert refusal(tmp_path / "nowhere").startswith("IT does not exist: expected a .ts")
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    assert refusal(tmp_path / "a.pdf").startswith("IT: expected a .ts, .npz or .csv file")
    (tmp_path / "a.zip").write_bytes(b"no zip")
    assert refusal(tmp_path / "a.zip").startswith("IT is not a zip, or is damaged")
    with pytest.raises(PlaitError, match="The path is empty"):
        labelled.read("")
