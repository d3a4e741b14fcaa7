"""Files that are given as data: which may be read at all, and what their bytes are if they are not text."""

import lzma
import os
import re
import stat
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from ..errors import PlaitError

UTF8 = "expected text in UTF-8"
ICONV = UTF8 + "; convert it: iconv -f {} -t utf-8"
EXPORT = "export it as text in UTF-8, such as CSV"
EXTRACT = "extract it, and give the file that is in it"
KINDS = (  # how a file begins, what it is, what to do. Letters alone would not tell: a text may begin with them
    (BOM_UTF32_LE, "text in UTF-32", ICONV.format("utf-32")),
    (BOM_UTF32_BE, "text in UTF-32", ICONV.format("utf-32")),
    (BOM_UTF16_LE, "text in UTF-16", ICONV.format("utf-16")),
    (BOM_UTF16_BE, "text in UTF-16", ICONV.format("utf-16")),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Excel (or other Office) file", EXPORT),
    (rb"PAR1(?=[^\0]*\0).*PAR1\Z", "a parquet file", EXPORT),
    (rb"SQLite format 3\0", "an SQLite database", EXPORT),
    (rb"%PDF-\d\.\d", "a PDF", EXPORT),
    (rb"\x89HDF\r\n\x1a\n", "an HDF5 file", EXPORT),
    (rb"ARROW1\0.*ARROW1\Z", "a feather file", EXPORT),
    (rb"\x93NUMPY", "a file of NumPy arrays", EXPORT),
    (rb"\x1f\x8b", "a gzip", EXTRACT),
    (rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", "a bzip2", EXTRACT),
    (rb"\xfd7zXZ\0", "an xz", EXTRACT),
    (rb"\x28\xb5\x2f\xfd", "a zstd", EXTRACT),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z", EXTRACT),
)
A_ZIP = ("a zip", EXTRACT)
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
OFFICE = (("xl/", "an Excel file"), ("word/", "a Word file"), ("content.xml", "an OpenDocument file"))  # zips, too
DAMAGE = (BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, RuntimeError)  # of a zip
SAMPLE = 4096  # bytes that are looked at for UTF-16 without a mark


@contextmanager
def reading(path: str, expected: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as e:
        raise PlaitError(f"{e.filename or path} does not exist: {expected}.") from None
    except OSError as e:
        raise PlaitError(f"{e.filename or path} cannot be read: {e.strerror}.") from None


def regular(path: Path, expected: str) -> Path:
    check_mode(path.stat().st_mode, path, expected)
    return path


def check_mode(mode: int, path: Path, expected: str) -> None:
    if stat.S_ISDIR(mode):
        raise PlaitError(f"{path} is a directory: {expected}.")
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise PlaitError(f"{path} is a device: {expected}.")
    if not stat.S_ISREG(mode):
        raise PlaitError(f"{path} is a pipe or a socket: {expected}; save what comes out of it to a file first.")


@contextmanager
def opened(path: Path, expected: str) -> Iterator[BufferedReader]:
    """A regular file; a pipe that has taken its place meanwhile is not waited for."""

    def without_waiting(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)

    with open(regular(path, expected), "rb", opener=without_waiting) as file:
        check_mode(os.fstat(file.fileno()).st_mode, path, expected)
        yield file


def contents(path: Path, expected: str, most: int) -> bytes:
    with opened(path, expected) as file:
        found = os.fstat(file.fileno()).st_size
        content = b""
        if found <= most:
            content = file.read(found + 1) or b""  # None, if there is nothing yet: some files of /proc wait
            if len(content) > found:  # it grows; or the system makes it up, and gives its size as 0
                content += file.read(most + 1 - len(content)) or b""
            found = len(content)
    if found > most:
        raise PlaitError(f"{path} has {found:,} bytes: expected at most {most:,}; cut out the part that you need.")
    return content


def decoded(content: bytes, where: str | Path) -> str:
    """The text, with \\n at the end of its lines."""
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
        todo = ICONV.format("latin1") if content[at] else f"it is not text; {UTF8}"
        raise PlaitError(f"{where} has {found}: {todo}.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def recognised(content: bytes) -> tuple[str, str] | None:
    """What the bytes are, and what to do, if people take them for text."""
    for like, kind, todo in KINDS:
        if re.match(like, content, re.DOTALL):
            return kind, todo
    if content.startswith(ZIP):
        try:
            names = ZipFile(BytesIO(content)).namelist()
        except DAMAGE:
            names = []
        return next(((kind, EXPORT) for start, kind in OFFICE if any(n.startswith(start) for n in names)), A_ZIP)
    low, high = content[:SAMPLE:2], content[1:SAMPLE:2]
    for zeros, others, coding in ((high, low, "utf-16le"), (low, high, "utf-16be")):
        if high and zeros.count(0) > 0.7 * len(zeros) and not others.count(0):  # letters that have a 0 beside each
            return "text in UTF-16 without a mark", ICONV.format(coding)
    return None
