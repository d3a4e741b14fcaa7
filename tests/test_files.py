"""Files that a user names: replaced whole, written through, or refused before the work begins."""

import json
import os
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from plait import PlaitError
from plait.training.files import check_target, write_whole
from processes import QUICK, names


def device(path: Path, kind: int, number: int) -> None:
    try:
        os.mknod(path, kind | 0o666, number)
        path.open("rb").close() if kind == stat.S_IFCHR else None
    except PermissionError:
        pytest.skip("mknod is not permitted here")


def test_a_plain_file_is_replaced_whole_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)  # with hardly any room for a longer name beside it
    write_whole(path, b"first")
    path.chmod(0o640)
    before = path.stat().st_ino
    write_whole(path, b"second")
    assert path.read_bytes() == b"second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.stat().st_ino != before  # a reader of the old one still has it
    assert len(list(tmp_path.iterdir())) == 1


def test_links_stay(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name, exists in (("old", True), ("new", False)):
        target, link = tmp_path / "there" / name, tmp_path / f"link-{name}"
        if exists:
            target.write_bytes(b"old")
        link.symlink_to(target)
        (tmp_path / f"link-{link.name}").symlink_to(link.name)
        write_whole(tmp_path / f"link-{link.name}", b"content")
        assert link.is_symlink()
        assert target.read_bytes() == b"content"
        assert not target.is_symlink()
    assert names(tmp_path / "there") == ["new", "old"]


def test_a_device_is_written_through(plait, empty_folder: Path) -> None:
    device(empty_folder / "null.png", stat.S_IFCHR, os.makedev(1, 3))
    device(empty_folder / "full", stat.S_IFCHR, os.makedev(1, 7))
    Path("link").symlink_to("null.png")
    for name in ("null.png", "link"):
        assert plait("equations", "gru", "--json", name)[0] == 0
    code, _, err = plait("equations", "gru", "--json", "full")
    assert code == 2
    assert "full cannot be written: No space left on device" in err
    assert plait("train", "forecast", *QUICK, "--out", "run")[0] == 0
    assert plait("forecast", "run", "--picture", "null.png")[0] == 0
    for name, number in (("null.png", os.makedev(1, 3)), ("full", os.makedev(1, 7))):
        assert stat.S_ISCHR(Path(name).lstat().st_mode)
        assert Path(name).stat().st_rdev == number
    assert Path("link").is_symlink()
    assert names(empty_folder) == ["full", "link", "null.png", "run"]


def test_a_pipe_is_written_through_if_somebody_reads_it(plait, refused, empty_folder: Path) -> None:
    os.mkfifo("pipe")
    said = refused("equations", "gru", "--json", "pipe")
    assert "--json pipe cannot be written: it is a pipe that nobody reads; start its reader." in said
    reader = subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE)
    while True:  # until it waits for a writer
        try:
            check_target(Path("pipe"), "pipe")
            break
        except PlaitError:
            time.sleep(0.01)
    assert plait("equations", "gru", "--json", "pipe")[0] == 0
    assert json.loads(reader.communicate(timeout=60)[0])["cell"] == "gru"
    assert stat.S_ISFIFO(Path("pipe").lstat().st_mode)


def test_what_cannot_be_written_is_refused_before_the_work(refused, empty_folder: Path) -> None:
    Path("folder.png").mkdir()
    Path("loop.png").symlink_to("loop.png")
    Path("away.png").symlink_to("nowhere/file.png")
    device(empty_folder / "disk.png", stat.S_IFBLK, os.makedev(7, 99))
    server = socket.socket(socket.AF_UNIX)
    server.bind("socket.png")
    long = "x" * 296 + ".png"
    for name, why in {
        "folder.png": "it is a folder; expected a file.",
        "loop.png": "Too many levels of symbolic links; expected a file.",
        "away.png": "expected a file in a folder that exists.",
        "disk.png": "it is a block device; expected a file.",
        "socket.png": "it is a socket; expected a file.",
        long: "File name too long; expected a file.",
        "": "it is a folder; expected a file.",
    }.items():
        name_said = f"{name[:100]}... (300 characters)" if name == long else name
        assert f"plait: --json {name_said} cannot be written: {why}\n" == refused("train", "forecast", "--json", name)
        if name:
            assert f"--picture {name_said} cannot be written: {why}\n" in refused("forecast", "run", "--picture", name)
    server.close()
