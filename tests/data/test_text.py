"""Reading text that people have, in files, folders and zips; and its words and characters as numbers."""

import json
import os
import random
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plait import PlaitError
from plait.data import text
from plait.data.text import EOS, PARTS, UNK, Vocabulary
from reference import data_file

LINES = "".join(f"line {k} of a text\n" for k in range(100))
CHARACTERS = st.text(st.characters(exclude_characters="\r"), max_size=80)


def write(folder: Path, **files: str | bytes) -> str:
    """Files whose names are given with __ for a dot and ___ for a slash."""
    for name, content in files.items():
        path = folder / name.replace("___", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(folder)


def zipped(folder: Path, files: dict[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    path = folder / "data.zip"
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return path


def whole(texts: text.Texts) -> str:
    assert tuple(texts.parts) == PARTS
    assert all(part.strip() for part in texts.parts.values())
    return "".join(texts.parts.values())


@pytest.mark.parametrize("extracted", [False, True])
def test_penn_treebank(tmp_path: Path, extracted: bool) -> None:
    path = data_file("ptb.zip")
    if extracted:
        zipfile.ZipFile(path).extractall(tmp_path / "ptb")
        path = tmp_path / "ptb"
    texts = text.read(str(path))
    assert texts.name == path.name
    words = Vocabulary.build(texts.parts["train"], "word")
    assert len(words) == 10_000
    assert words.words[:4] == ("the", UNK, EOS, "N")
    found = {part: words.encode(texts.parts[part]) for part in PARTS}
    assert {part: len(found[part].ids) for part in PARTS} == {"train": 929_589, "valid": 73_760, "test": 82_430}
    assert {part: len(found[part].lengths) for part in PARTS} == {"train": 42_068, "valid": 3_370, "test": 3_761}
    assert found["train"].lengths.max() == 83
    assert not any(one.unknown for one in found.values())
    assert words.decode(found["test"].ids).split("\n")[0] == "no it was n't black monday"
    characters = Vocabulary.build(texts.parts["train"], "char")
    assert characters.decode(characters.encode(texts.parts["valid"]).ids) == texts.parts["valid"]


# Where the parts come from


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("ptb.train.txt", "train"),
        ("wiki.valid.tokens", "valid"),
        ("my-VALIDATION_2.md", "valid"),
        ("val.txt", "valid"),
        ("x/dev/part 1.rst", "valid"),
        ("test/a.raw", "test"),
        ("dev/train.txt", "train"),
        ("training.txt", None),
        ("latest.txt", None),
        ("contest/devil.txt", None),
    ],
)
def test_a_part_is_a_word_of_a_name(tmp_path: Path, name: str, part: str | None) -> None:
    assert text.part_of(name, tmp_path) == part


def test_a_folder_and_a_zip_with_parts(tmp_path: Path) -> None:
    files = {
        "b/train.2.txt": "c d",
        "b/train.1.txt": "a b",
        "b/dev/x.txt": "e f\n",
        "b/test.TXT": "g\r\nh",
        "readme.md": "not a part",
        "b/train.jpg": b"\xff",
        "__MACOSX/b/._train.1.txt": b"\xff",
        "__MACOSX/train.txt": b"\xff",
        ".git/train.txt": b"\xff",
    }
    expected = {"train": "a b\nc d\n", "valid": "e f\n", "test": "g\nh\n"}
    path = zipped(tmp_path, files)
    assert text.read(str(path)).parts == expected
    zipfile.ZipFile(path).extractall(tmp_path / "folder")
    assert text.read(str(tmp_path / "folder")).parts == expected


def test_parts_that_are_missing_are_cut_from_the_training_part(tmp_path: Path) -> None:
    texts = text.read(write(tmp_path, train__txt=LINES, test__txt="the test"), validation=0.1)
    assert texts.parts["train"] + texts.parts["valid"] == LINES
    assert texts.parts["valid"].startswith("line 90 ")
    assert texts.parts["test"] == "the test\n"


def test_a_folder_without_parts_is_one_text(tmp_path: Path) -> None:
    path = write(tmp_path, a__txt=LINES[:500], b__txt=LINES[500:].rstrip("\n"), c___d__md="the end", e__csv="1,2")
    texts = text.read(path)
    assert whole(texts) == LINES[:500] + "\n" + LINES[500:] + "the end\n"


def test_a_file_is_a_file_whatever_is_beside_it(tmp_path: Path) -> None:
    write(tmp_path, ptb__train__txt=LINES, ptb__valid__txt="other")
    texts = text.read(str(tmp_path / "ptb.train.txt"))
    assert texts.name == "ptb.train.txt"
    assert whole(texts) == LINES


@pytest.mark.parametrize(
    "content",
    [
        LINES,
        LINES.replace("\n", "\n\n\n") + "\n \n",
        "\n\n" + LINES.replace("\n", " "),
        "\n".join(["word " * 30] * 3),
        "漢" * 5000,
        "ab\n" * 19,
        "01234 56789 01234\t56789",
    ],
    ids=["lines", "blank lines", "one line", "a few lines", "no spaces", "19 lines", "short"],
)
@pytest.mark.parametrize("shares", [(0.05, 0.05), (0.2, 0.1), (0.001, 0.3)])
def test_a_cut_loses_nothing(tmp_path: Path, content: str, shares: tuple[float, float]) -> None:
    texts = text.read(str(Path(write(tmp_path, a__txt=content)) / "a.txt"), *shares)
    assert whole(texts) == content
    for part, share in zip(("valid", "test"), shares, strict=True):
        length = len(texts.parts[part].strip()) / len(content.strip())
        assert length == pytest.approx(share, rel=0.25, abs=0.05)


def test_cuts_are_between_lines_or_words(tmp_path: Path) -> None:
    assert text.cut(LINES, "", {"valid": 0.02, "test": 0.03})["valid"] == "line 95 of a text\nline 96 of a text\n"
    assert text.cut("some words " * 50, "", {"test": 0.02}) == {"train": "some words " * 49, "test": "some words "}


@given(CHARACTERS, st.floats(0.01, 0.4), st.floats(0.01, 0.4))
@settings(max_examples=200, deadline=None)
def test_any_cut_loses_nothing(content: str, validation: float, test: float) -> None:
    content += "some words, " * 3
    parts = text.cut(content, "it", {"valid": validation, "test": test})
    assert "".join(parts[part] for part in PARTS) == content
    assert all(part.strip() for part in parts.values())


def test_line_ends_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = Path(write(tmp_path, a__txt=b"\xef\xbb\xbf" + LINES.replace("\n", "\r\n").encode())) / "a.txt"
    assert whole(text.read(str(path))) == LINES
    path.write_bytes(LINES.replace("\n", "\r").encode())
    assert whole(text.read(str(path))) == LINES


# What cannot be read


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", r"is empty: expected text in it\."),
        (" \n\t\r\n\ufeff".encode("utf-8-sig")[:-3], "is empty"),
        ("hello", "has fewer than 20 characters: expected more"),
        (b"ok\nok \xe9t\xe9\n", r"has byte 0xe9 in line 2: expected text in UTF-8; .*iconv -f latin1 -t utf-8"),
        (b"\xef\xbb\xbfok\n\xff", "has byte 0xff in line 2"),
        (b"ok\n\xe6\xbc", "has byte 0xe6 in line 2"),
        (LINES.encode("utf-16"), r"is text in UTF-16: .*iconv -f utf-16 -t utf-8"),
        (b"a\nb\0c", "has byte 0x00 in line 2"),
    ],
)
def test_bad_text_gets_a_sentence(tmp_path: Path, content: str | bytes, sentence: str) -> None:
    with pytest.raises(PlaitError, match=r"/a\.txt " + sentence):
        text.read(str(Path(write(tmp_path, a__txt=content)) / "a.txt"))
    with pytest.raises(PlaitError, match=r"/data\.zip " + sentence):
        text.read(str(zipped(tmp_path, {"a.txt": content})))


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ((0.5, 0.5), "validation 0.5 and test 0.5: expected shares above 0 whose sum is below 1"),
        ((0, 0.1), "validation 0 and test 0.1: expected shares above 0"),
        ((0.1, -0.1), "validation 0.1 and test -0.1: expected shares above 0"),
        ((float("nan"), 0.1), "validation nan and test 0.1: expected shares above 0"),
        ((0.4, 0.599), r"is too short for shares of .*0\.599.*: nothing is left to train on"),
    ],
)
def test_bad_shares_get_a_sentence(tmp_path: Path, shares: tuple[float, float], sentence: str) -> None:
    with pytest.raises(PlaitError, match=sentence):
        text.read(write(tmp_path, a__txt=LINES), *shares)


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, r"has no text file \(found: nothing\): expected names that end in \.txt, "),
        (
            {"a__jpg": "", "b__csv": "1", "c": "", "d": "", "__e__txt": "x"},
            r"\(found: a\.jpg, b\.csv, c and 1 more\)",
        ),
        ({"test__txt": "a", "other__txt": "b"}, "has test.txt and nothing to train on: expected a file with 'train'"),
        ({"train-dev__txt": "a"}, "train-dev.txt in .* names both train and valid: rename it"),
        ({"train__txt": LINES, "valid__txt": "", "test__txt": "a"}, "has an empty valid part: expected text in it"),
        ({"train__txt": LINES, "valid__txt": "a", "test__txt": " \n\n"}, "has an empty test part"),
        ({"train__txt": "\n", "valid__txt": "a", "test__txt": "a"}, "has an empty train part"),
        ({"train__txt": "word", "valid__txt": "a"}, "has fewer than 20 characters"),
        ({"train__txt": LINES, "x___dev__txt": b"\xe9"}, r"x/dev\.txt.* has byte 0xe9 in line 1"),
    ],
)
def test_bad_folders_and_zips_get_a_sentence(tmp_path: Path, files: dict[str, str | bytes], sentence: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(PlaitError, match=sentence):
        text.read(write(folder, **files))
    names = {name.replace("___", "/").replace("__", "."): content for name, content in files.items()}
    with pytest.raises(PlaitError, match=sentence):
        text.read(str(zipped(tmp_path, names)))


def test_what_is_no_file(tmp_path: Path) -> None:
    for name in ("nowhere.txt", "nowhere.zip"):
        with pytest.raises(PlaitError, match=f"{name} does not exist: expected a text file, a folder or a zip"):
            text.read(str(tmp_path / name))
    with pytest.raises(PlaitError, match="The path is empty: expected a text file, a folder or a zip"):
        text.read("")
    with pytest.raises(PlaitError, match="is a device: expected a text file"):
        text.read("/dev/zero")
    with pytest.raises(PlaitError, match="cannot be read: File name too long"):
        text.read("x" * 5000)
    for name in ("pipe.txt", "pipe.zip"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(PlaitError, match=f"{name} is a pipe or a socket: expected a text file"):
            text.read(str(tmp_path / name))
    with pytest.raises(PlaitError, match=r"pipe\.txt is a pipe"):  # in a folder, too
        text.read(str(tmp_path))


def test_links_that_lead_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert whole(text.read(write(tmp_path, a___b__txt=LINES))) == LINES
    (tmp_path / "me.txt").symlink_to("me.txt")
    for path in (tmp_path / "me.txt", tmp_path):
        with pytest.raises(PlaitError, match=r"me\.txt cannot be read: Too many levels of symbolic links"):
            text.read(str(path))


@pytest.mark.parametrize("forbidden", ["stat", "scandir", "open"])
def test_what_may_not_be_read(tmp_path: Path, forbidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's refusal is put in its place, as root may read everything."""
    write(tmp_path, a__txt=LINES)

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path if forbidden == "stat" else os, forbidden, refuse)
    with pytest.raises(PlaitError, match=rf"{tmp_path}(/a\.txt)? cannot be read: Permission denied\."):
        text.read(str(tmp_path))


# Zips that are not to be trusted


@pytest.mark.parametrize(
    "name",
    ["../a.txt", "x/../../a.txt", "/a.txt", "C:/a.txt", "c:a.txt", "..\\a.txt", "x\\..\\a.txt", "\\a.txt", "../"],
)
def test_a_member_that_leads_out_of_the_zip(tmp_path: Path, name: str) -> None:
    path = zipped(tmp_path, {"train.txt": LINES, name: "" if name.endswith("/") else LINES})
    with pytest.raises(PlaitError, match="which leads out of the zip") as e:
        text.read(str(path))
    assert repr(name) in str(e.value)


def test_names_with_dots_are_in_order(tmp_path: Path) -> None:
    assert whole(text.read(str(zipped(tmp_path, {"./a..b/...c.txt": "x", "a..b.txt": LINES})))) == LINES


def test_an_encrypted_zip(tmp_path: Path) -> None:
    path = zipped(tmp_path, {"a.txt": LINES})
    content = bytearray(path.read_bytes())
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(header) + flags] |= 1
    path.write_bytes(content)
    with pytest.raises(PlaitError, match=r"a\.txt in .*data\.zip is encrypted: extract it, and give the folder"):
        text.read(str(path))


def test_a_zip_that_is_none(tmp_path: Path) -> None:
    for content in (b"", b"text", b"PK\x03\x04" + bytes(100)):
        with pytest.raises(PlaitError, match=r"a\.zip is not a zip, or is damaged \(File is not a zip file\)"):
            text.read(str(Path(write(tmp_path, a__zip=content)) / "a.zip"))


def test_a_zip_whose_bytes_have_changed(tmp_path: Path) -> None:
    path = zipped(tmp_path, {"a.txt": LINES}, zipfile.ZIP_STORED)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"line 50", b"line 51"))
    with pytest.raises(PlaitError, match=r"is damaged \(Bad CRC-32 for file 'a\.txt'\)"):
        text.read(str(path))
    path.write_bytes(content[:-30])
    with pytest.raises(PlaitError, match="is not a zip, or is damaged"):
        text.read(str(path))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_any_damage_gets_a_sentence(tmp_path: Path, method: int) -> None:
    path = zipped(tmp_path, {"train.txt": LINES, "valid/é.txt": LINES, "test.txt": LINES}, method)
    content, generator = path.read_bytes(), random.Random(0)
    refused = []
    for trial in range(500):
        damaged = bytearray(content)
        for _ in range(generator.randint(1, 3)):
            damaged[generator.randrange(len(content))] = generator.choice((0, 1, 255))
        path.write_bytes(damaged[: generator.randrange(len(content)) if trial % 3 == 0 else None])
        try:
            text.read(str(path))
        except PlaitError as e:
            refused.append(str(e))
    assert len(refused) > 333
    assert all(str(path) in sentence and "cannot be read" not in sentence for sentence in refused)


def test_the_limit_counts_all_that_would_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zipped(tmp_path, {"a.txt": LINES, "b.txt": LINES, "c.jpg": LINES * 9})
    monkeypatch.setattr(text, "LIMIT", 2 * len(LINES))
    text.read(str(path))
    monkeypatch.setattr(text, "LIMIT", 2 * len(LINES) - 1)
    with pytest.raises(PlaitError, match=r"has 3,580 bytes of text: expected at most 3,579; extract it"):
        text.read(str(path))


def test_a_header_that_understates(tmp_path: Path) -> None:
    """Sixty-four megabytes in a member that claims a hundred bytes: it is refused before it has filled the memory."""
    size = 64 * 2**20
    path = zipped(tmp_path, {"a.txt": b"a\n" * (size // 2)})
    content = path.read_bytes()
    assert content.count(struct.pack("<L", size)) == 2
    path.write_bytes(content.replace(struct.pack("<L", size), struct.pack("<L", 100)))
    tracemalloc.start()
    with pytest.raises(PlaitError, match="Bad CRC-32"):
        text.read(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_nothing_is_extracted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = zipped(tmp_path, {"sub/a.txt": LINES})
    text.read(str(path))
    assert list(tmp_path.iterdir()) == [path]


# Words and characters as numbers


def test_words_by_count_then_by_the_alphabet() -> None:
    vocabulary = Vocabulary.build("b a b\n\n  c\ta b \n", "word")
    assert vocabulary.words == ("b", EOS, "a", "c", UNK)
    encoded = vocabulary.encode("a b\n\nnever c seen")
    assert encoded.ids.tolist() == [2, 0, 1, 4, 3, 4, 1]
    assert encoded.ids.dtype == torch.int32
    assert encoded.starts.tolist() == [0, 3, 7]
    assert encoded.starts.dtype == torch.int64
    assert encoded.lengths.tolist() == [3, 4]
    assert encoded.unknown == 2
    assert vocabulary.decode(encoded.ids) == "a b\n<unk> c <unk>\n"
    assert vocabulary.decode([2, 0]) == "a b"
    assert vocabulary.decode([1, 1, 2]) == "\n\na"


def test_characters_keep_their_empty_lines() -> None:
    vocabulary = Vocabulary.build("ab\n\nb c", "char")
    assert vocabulary.words == ("\n", "b", " ", "a", "c", UNK)
    encoded = vocabulary.encode("a\n\nb😀")
    assert encoded.ids.tolist() == [3, 0, 0, 1, 5, 0]
    assert encoded.starts.tolist() == [0, 2, 3, 6]
    assert encoded.unknown == 1
    assert vocabulary.decode(encoded.ids) == "a\n\nb<unk>\n"
    assert vocabulary.encode("\udce9").unknown == 1  # a byte of a command line that is not UTF-8


@pytest.mark.parametrize("level", ["word", "char"])
def test_an_empty_text_has_no_sentences(level: str) -> None:
    encoded = Vocabulary.build("a b", level).encode("")
    assert encoded.ids.tolist() == []
    assert encoded.starts.tolist() == [0]
    assert encoded.lengths.tolist() == []
    assert encoded.unknown == 0


def test_an_end_that_is_written_out_is_one() -> None:
    vocabulary = Vocabulary.build("a b <eos>\nc<eos> d <eos> e\n", "word")
    assert vocabulary.decode(vocabulary.encode("a b <eos>\nc<eos> d <eos> e\n").ids) == "a b\nc<eos> d\ne\n"
    assert EOS not in Vocabulary.build("<eos>", "char").words


def test_rare_words_are_one() -> None:
    content = "a a a <unk> b b c d\n"
    vocabulary = Vocabulary.build(content, "word", 2)
    assert vocabulary.words == (UNK, "a", "b", EOS)
    assert vocabulary.encode(content).unknown == 2
    assert Vocabulary.build(content, "word", 3).words == (UNK, "a", EOS)
    assert UNK in Vocabulary.build("aab", "char", 2).words


@given(CHARACTERS, CHARACTERS)
@settings(max_examples=200, deadline=None)
def test_characters_there_and_back(one: str, other: str) -> None:
    vocabulary = Vocabulary.build(one + "ab" + other, "char")
    encoded = vocabulary.encode(one)
    assert vocabulary.decode(encoded.ids) == (one if one.endswith("\n") or not one else one + "\n")
    assert len(encoded.lengths) == one.count("\n") + (not one.endswith("\n") and one != "")
    assert encoded.unknown == 0
    assert vocabulary.decode(
        [i for k in range(len(encoded.lengths)) for i in sentence(encoded, k)]
    ) == vocabulary.decode(encoded.ids)


@given(st.lists(st.lists(st.sampled_from(["a", "b", "é", "<unk>", "漢字", "x<eos>y", "\x1c", "\u2028"]))))
@settings(max_examples=200, deadline=None)
def test_words_there_and_back(lines: list[list[str]]) -> None:
    content = "\n".join("  ".join(line) for line in lines)
    vocabulary = Vocabulary.build(content + "\na b", "word")
    encoded = vocabulary.encode(content)
    expected = [line.split() for line in content.split("\n") if line.split()]
    assert vocabulary.decode(encoded.ids) == "".join(" ".join(line) + "\n" for line in expected)
    assert encoded.lengths.tolist() == [len(line) + 1 for line in expected]
    assert encoded.unknown == 0


def sentence(encoded: text.Encoded, k: int) -> list[int]:
    return encoded.ids[encoded.starts[k] : encoded.starts[k + 1]].tolist()


def test_a_sentence_is_a_line_with_its_end() -> None:
    for level, end in (("word", EOS), ("char", "\n")):
        vocabulary = Vocabulary.build(LINES, level)
        encoded = vocabulary.encode(LINES)
        assert vocabulary.end == end
        assert vocabulary.decode(sentence(encoded, 7)) == "line 7 of a text\n"
        assert len(encoded.lengths) == 100


@pytest.mark.parametrize(
    ("content", "level", "min_count", "sentence"),
    [
        ("word\n", "word", 1, "The training part has fewer than two words: there is nothing to predict; add text"),
        ("<eos> word", "word", 1, "fewer than two words"),
        ("\n\na", "char", 1, "fewer than two chars"),
        ("", "char", 1, "fewer than two chars"),
        ("a b", "words", 1, "level 'words' is not known: did you mean 'word'"),
        ("a b", "word", 0, "min_count 0: must be at least 1"),
        ("a b a", "word", 3, "min_count 3: no word of the training part is seen so often; lower it"),
    ],
)
def test_bad_vocabularies_get_a_sentence(content: str, level: str, min_count: int, sentence: str) -> None:
    with pytest.raises(PlaitError, match=sentence):
        Vocabulary.build(content, level, min_count)


@pytest.mark.parametrize("level", ["word", "char"])
def test_json_there_and_back(level: str) -> None:
    vocabulary = Vocabulary.build(LINES + 'é 漢 \u2028 \\ "quoted"', level)
    back = Vocabulary.from_json(json.loads(json.dumps(vocabulary.to_json())))
    assert back == vocabulary
    assert back.index == vocabulary.index


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        "words",
        {"words": ["a", EOS, UNK]},
        {"level": "word"},
        {"level": "word", "words": ["a", EOS]},
        {"level": "word", "words": ["a", UNK]},
        {"level": "char", "words": ["a", EOS, UNK]},
        {"level": "char", "words": ["ab", "\n", UNK]},
        {"level": "char", "words": ["", "\n", UNK]},
        {"level": "word", "words": ["a", "a", EOS, UNK]},
        {"level": "word", "words": ["a", UNK, EOS, UNK]},
        {"level": "word", "words": ["a b", EOS, UNK]},
        {"level": "word", "words": ["", EOS, UNK]},
        {"level": "word", "words": [1, EOS, UNK]},
        {"level": "word", "words": "abc"},
        {"level": "word", "words": {"a": 1}},
        {"level": "syllable", "words": ["a", EOS, UNK]},
        {"level": None, "words": ["a", EOS, UNK]},
        {"level": ["word"], "words": ["a", EOS, UNK]},
    ],
)
def test_a_damaged_vocabulary_gets_a_sentence(value: object) -> None:
    with pytest.raises(PlaitError, match=r"^run/words\.json is damaged \(.+\): restore it from a copy, or train again"):
        Vocabulary.from_json(value, "run/words.json")


def test_devices_and_pipes_by_other_names(tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to("/dev/zero")
    with pytest.raises(PlaitError, match=r"link\.txt is a device: expected a text file"):
        text.read(str(tmp_path / "link.txt"))
    with pytest.raises(PlaitError, match=r"link\.txt is a device"):  # in a folder, too
        text.read(str(tmp_path))
    readable, writable = os.pipe()
    try:
        with pytest.raises(PlaitError, match=r"is a pipe or a socket: expected a text file.*; save .* to a file first"):
            text.read(f"/dev/fd/{readable}")
    finally:
        os.close(readable)
        os.close(writable)


def test_a_huge_text_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(2**40)  # which takes no room on the disk
    for path in (tmp_path, tmp_path / "huge.txt"):
        with pytest.raises(PlaitError, match=r"huge\.txt has 1,099,511,627,776 bytes: expected at most 4,294,967,296"):
            text.read(str(path))
