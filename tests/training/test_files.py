"""Files that a user names: replaced whole, written through, or refused before the work begins."""

import json
import os
import secrets
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from plait import PlaitError
from plait.training.files import atomically, check_target, write_whole
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


def test_a_new_file_gets_the_permissions_that_the_user_wants(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "file", b"content")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_private_file_is_private_before_there_is_anything_to_read(tmp_path: Path, monkeypatch) -> None:
    path, seen, fchmod = tmp_path / "file", [], os.fchmod
    path.write_bytes(b"old")
    path.chmod(0o604)

    def watched(file: int, mode: int) -> None:
        seen.append((os.fstat(file).st_size, stat.S_IMODE(os.fstat(file).st_mode), mode))
        fchmod(file, mode)

    monkeypatch.setattr(os, "fchmod", watched)
    write_whole(path, b"new")
    assert seen == [(0, 0o600, 0o604)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_a_file_keeps_its_owner_and_group_where_the_system_lets_it(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    os.chown(path, 1234, 4321)
    write_whole(path, b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)

    def refuses(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuses)
    write_whole(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert path.stat().st_uid == os.geteuid()


def test_a_link_in_the_place_of_the_partial_file_is_not_followed(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    for name in ("guessed", os.getpid()):
        (tmp_path / f".plait.{name}.partial").symlink_to("victim")
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    with pytest.raises(FileExistsError):
        atomically(tmp_path / "file", b"content")
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert names(tmp_path) == sorted([".plait.guessed.partial", f".plait.{os.getpid()}.partial", "victim"])


def test_threads_do_not_share_a_partial_file(tmp_path: Path) -> None:
    told: list[bool] = []

    def write(name: str) -> None:
        for _ in range(10):
            atomically(tmp_path / name, name.encode() * 100_000)
            told.append((tmp_path / name).read_bytes() == name.encode() * 100_000)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [True] * 80
    assert names(tmp_path) == list("abcdefgh")


def test_a_protected_file_is_not_replaced(tmp_path: Path, monkeypatch) -> None:
    """Though its folder would let it be."""
    path = tmp_path / "mine"
    path.write_text("old")
    monkeypatch.setattr(os, "access", lambda place, _: Path(place) != path)
    with pytest.raises(PlaitError, match="mine cannot be written: Permission denied"):
        write_whole(path, b"new")
    assert path.read_text() == "old"


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


def test_a_log_that_stdout_leads_to_is_written_through(tmp_path: Path) -> None:
    plait = f"{sys.executable} -m plait equations gru --json /dev/stdout"
    command = f"(echo before; {plait}; echo behind) > log.txt"
    subprocess.run(command, shell=True, cwd=tmp_path, check=True, timeout=300)
    text = (tmp_path / "log.txt").read_text()
    assert text.startswith("before\n")
    assert text.endswith("\n}\nbehind\n")
    printed, result = text[7:-7].split("\n{\n")
    assert "return d_wx_r" in printed
    assert json.loads("{" + result)["cell"] == "gru"


OPEN = """
import os, sys
from pathlib import Path
from plait import PlaitError
from plait.training.files import write_whole
os.symlink("/dev/stdout", "link")
sys.stdout.write("0")
for k, name in enumerate(["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/proc/thread-self/fd/1", "link"], 1):
    write_whole(Path(name), str(k).encode())
    sys.stdout.write("-")
    sys.stdout.flush()
os.open("input", os.O_RDONLY)
for name in ("/dev/fd/3", "/dev/fd/77"):
    try:
        write_whole(Path(name), b"x")
    except PlaitError as e:
        print(e, file=sys.stderr)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="there is no /proc here")
def test_files_that_are_open_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("kept")
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-c", OPEN]
        done = subprocess.run(command, cwd=tmp_path, check=True, stdout=log, stderr=subprocess.PIPE, text=True)
    assert (tmp_path / "log").read_text() == "01-2-3-4-5-"
    assert done.stderr == (
        "/dev/fd/3 cannot be written: it is open for reading only.\n"
        "/dev/fd/77 cannot be written: Bad file descriptor.\n"
    )
    assert names(tmp_path) == ["input", "link", "log"]
    assert (tmp_path / "input").read_text() == "kept"


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
        "loop.png": "Too many levels of symbolic links.",
        "away.png": "expected a file in a folder that exists.",
        "disk.png": "it is a block device; expected a file.",
        "socket.png": "it is a socket; expected a file.",
        long: "File name too long.",
        "": "it is a folder; expected a file.",
    }.items():
        name_said = f"{name[:100]}... (300 characters)" if name == long else name
        assert f"plait: --json {name_said} cannot be written: {why}\n" == refused("train", "forecast", "--json", name)
        if name:
            assert f"--picture {name_said} cannot be written: {why}\n" in refused("forecast", "run", "--picture", name)
    server.close()
