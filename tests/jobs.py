"""Jobs of several processes: who is there, who is gone, where they listen."""

import re
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60  # seconds until something counts as hung


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as s:
        return int(s.getsockname()[1])


def until(holds: Callable[[], bool], seconds: float = PATIENCE) -> float:
    """-> how long it took until it held"""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, f"not within {seconds} s"
        time.sleep(0.02)
    return time.monotonic() - began


def finished(process: subprocess.Popen[str], patience: float = PATIENCE) -> tuple[int, str, str]:
    """-> exit code, stdout, stderr"""
    try:
        out, err = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"it hung, having said: {process.communicate()}") from None
    return process.returncode, out, err


def runs(pid: int) -> bool:
    """Whether a process is there, and not only waits to be fetched by its parent."""
    try:
        return not re.search(r"^State:\s*[ZX]", Path(f"/proc/{pid}/status").read_text(), re.M)
    except FileNotFoundError:
        return False


def listening(pid: int) -> list[str]:
    """The addresses on which a process waits for connections."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if found := re.match(r"socket:\[(\d+)\]", str(link.readlink())):
                inodes.add(found[1])
        except FileNotFoundError:
            continue  # closed meanwhile
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    rows6 = [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    found4 = [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes]
    addresses = [socket.inet_ntoa(bytes.fromhex(a)[::-1]) for a in found4]
    return addresses + [row[1] for row in rows6 if row[3] == "0A" and row[9] in inodes]


class Pids:
    """The processes of workers, which they leave in a folder as they join."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wait(self, attempt: int, ranks: int) -> list[int]:
        paths = [self.folder / f"{attempt}.{r}" for r in range(ranks)]
        until(lambda: all(p.exists() for p in paths))
        return [int(p.read_text()) for p in paths]
