"""Files that are given as data: which may be read at all, and what their bytes are if they are not text."""

import stat
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import PlaitError

ICONV = "expected text in UTF-8; convert it: iconv -f {} -t utf-8"
EXPORT = "export it as text in UTF-8, such as CSV"
EXTRACT = "extract it, and give the file that is in it"
KINDS = (  # how a file begins, what it is, and what to do
    (BOM_UTF32_LE, "text in UTF-32", ICONV.format("utf-32")),
    (BOM_UTF32_BE, "text in UTF-32", ICONV.format("utf-32")),
    (BOM_UTF16_LE, "text in UTF-16", ICONV.format("utf-16")),
    (BOM_UTF16_BE, "text in UTF-16", ICONV.format("utf-16")),
    (bytes.fromhex("D0CF11E0A1B11AE1"), "an old Excel (or other Office) file", EXPORT),
    (b"PAR1", "a parquet file", EXPORT),
    (b"SQLite format 3\0", "an SQLite database", EXPORT),
    (b"%PDF-", "a PDF", EXPORT),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", EXPORT),
    (b"ARROW1", "a feather file", EXPORT),
    (b"\x93NUMPY", "a file of NumPy arrays", EXPORT),
    (b"\x1f\x8b", "a gzip", EXTRACT),
    (b"BZh", "a bzip2", EXTRACT),
    (b"\xfd7zXZ\0", "an xz", EXTRACT),
    (b"\x28\xb5\x2f\xfd", "a zstd", EXTRACT),
    (b"7z\xbc\xaf\x27\x1c", "a 7z", EXTRACT),
)
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
OFFICE = ((b"xl/", "an Excel file"), (b"word/", "a Word file"), (b"content.xml", "an OpenDocument file"))  # zips, too
SAMPLE = 4096  # bytes that are looked at for UTF-16 without a mark


@contextmanager
def reading(path: str, expected: str) -> Iterator[None]:
    """Turns what the disk says into a sentence."""
    try:
        yield
    except FileNotFoundError as e:
        raise PlaitError(f"{e.filename or path} does not exist: {expected}.") from None
    except OSError as e:
        raise PlaitError(f"{e.filename or path} cannot be read: {e.strerror}.") from None


def regular(path: Path, expected: str) -> Path:
    """The path, if it leads to a file that has an end."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise PlaitError(f"{path} is a directory: {expected}.")
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise PlaitError(f"{path} is a device: {expected}.")
    if not stat.S_ISREG(mode):
        raise PlaitError(f"{path} is a pipe or a socket: {expected}; save what comes out of it to a file first.")
    return path


def contents(path: Path, expected: str, most: int) -> bytes:
    """All of a regular file, unless it is larger than that many bytes."""
    found = regular(path, expected).stat().st_size
    if found > most:
        raise PlaitError(f"{path} has {found:,} bytes: expected at most {most:,}; cut out the part that you need.")
    return path.read_bytes()


def decoded(content: bytes, where: str | Path) -> str:
    """The text, with \\n at the end of its lines; or a sentence that says what it is instead."""
    if kind := recognised(content):
        raise PlaitError(f"{where} is {kind[0]}: {kind[1]}.")
    content = content.removeprefix(BOM_UTF8)
    try:
        text = content.decode()
        at = content.find(0)
    except UnicodeDecodeError as e:
        at = e.start
    if at >= 0:
        found = f"byte 0x{content[at]:02x} in line {1 + content[:at].count(10)}"
        raise PlaitError(f"{where} has {found}: {ICONV.format('latin1')}.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def recognised(content: bytes) -> tuple[str, str] | None:
    """What the bytes are, and what to do with them, if they are of a kind that people take for text."""
    for start, kind, todo in KINDS:
        if content.startswith(start):
            return kind, todo
    if content.startswith(ZIP):
        return next(((kind, EXPORT) for name, kind in OFFICE if name in content), ("a zip", EXTRACT))
    low, high = content[:SAMPLE:2], content[1:SAMPLE:2]
    for zeros, others, coding in ((high, low, "utf-16le"), (low, high, "utf-16be")):
        if high and zeros.count(0) > 0.7 * len(zeros) and not others.count(0):  # letters that have a 0 beside each
            return "text in UTF-16 without a mark", ICONV.format(coding)
    return None
