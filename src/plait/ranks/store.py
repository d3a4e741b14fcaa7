"""The store: keys and values that all ranks share, on one port of the first rank or of the launcher.

torch's own server listens on every address of a machine, and its client may wait without end: for an answer of a
process that is stopped, or of a stranger on that port. So the socket is ours, and so is the clock.
"""

import errno
import ipaddress
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

# torch does not list what its module offers; the other modules take them from here
from torch.distributed import PrefixStore as PrefixStore  # type: ignore[attr-defined]
from torch.distributed import Store as Store  # type: ignore[attr-defined]
from torch.distributed import TCPStore as TCPStore  # type: ignore[attr-defined]

from ..errors import PlaitError

T = TypeVar("T")
PAUSE = 0.05  # seconds between two tries
SIOCGIFADDR = 0x8915  # Linux: asks for the address of an interface
STRANGER = "what listens there is no store of torch's"


class Unanswered(Exception):
    """The store did not answer, or not in time."""


def prefixed(store: TCPStore, secret: str, attempt: int | None) -> PrefixStore:
    """The keys of one attempt; with None those that last over all attempts.

    Who does not know the secret cannot take our keys for theirs by accident. It is no lock: torch's store has none.
    """
    return PrefixStore(f"plait/{secret}/{'lasting' if attempt is None else attempt}", store)


def host(address: str, port: int, timeout: float) -> TCPStore:
    """A store in this process, which listens on that address only; port 0: on a free one."""
    listener = listen(address, port)
    return TCPStore(
        address,
        listener.getsockname()[1],
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # the store closes it
        use_libuv=False,  # with libuv, torch 2.6 does not take a socket
    )


def listen(address: str, port: int) -> socket.socket:
    family, where = resolve(address, port)
    try:
        return socket.create_server(where[:2], family=family, backlog=4096)
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            raise PlaitError(f"port {port} on {address} is in use: set MASTER_PORT to a free one.") from None
        if e.errno == errno.EADDRNOTAVAIL:
            raise PlaitError(
                f"{address} is no address of {socket.gethostname()}, where the first rank runs: "
                "set MASTER_ADDR to the address of the host of rank 0."
            ) from None
        raise PlaitError(f"port {port} on {address} cannot be used: {os.strerror(e.errno or 0)}.") from None


def reach(address: str, port: int, timeout: float, is_up: bool = False) -> TCPStore:
    """A connection to a store. torch's own client prints a page for each try that fails, so we try first.

    is_up: somebody listened there already, so who refuses is gone
    """
    end = time.monotonic() + timeout
    while True:
        try:
            with socket.create_connection((address, port), timeout=max(end - time.monotonic(), PAUSE)):
                break
        except OSError as e:
            if time.monotonic() + PAUSE >= end or (is_up and isinstance(e, ConnectionRefusedError)):
                raise Unanswered("no answer" if isinstance(e, TimeoutError) else e.strerror or str(e)) from None
        time.sleep(PAUSE)
    left = max(end - time.monotonic(), 1.0)
    span = timedelta(seconds=timeout)
    return within(left, lambda: TCPStore(address, port, is_master=False, timeout=span), STRANGER)


def within(seconds: float, function: Callable[[], T], otherwise: str) -> T:
    """What a function returns, or Unanswered if it takes longer. It goes on by itself then, for it cannot be ended."""
    found: list[T] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            found.append(function())
        except Exception as e:
            failed.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if found:
        return found[0]
    if failed and not isinstance(failed[0], RuntimeError):
        raise failed[0]
    raise Unanswered(otherwise) from (failed[0] if failed else None)


def resolve(address: str, port: int = 0) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """-> the family of a name or an address, and its first number"""
    try:
        family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except OSError as e:
        raise PlaitError(f"MASTER_ADDR is '{address}', which is not known here: {e.strerror or e}.") from None
    return family, (str(where[0]), int(where[1]))


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(resolve(address)[1][0].partition("%")[0]).is_loopback


def interface(address: str) -> str | None:
    """The network interface that leads to an address: gloo takes another one if it is not told. Linux only."""
    if sys.platform != "linux":
        return None
    if is_loopback(address):
        return "lo"
    family, where = resolve(address, 9)
    if family != socket.AF_INET:
        return None
    with socket.socket(family, socket.SOCK_DGRAM) as s:  # nothing is sent
        try:
            s.connect(where)
        except OSError:
            return None  # there is no way: the connection itself will say it
        mine = s.getsockname()[0]
        return next((name for _, name in socket.if_nameindex() if address_of(s, name) == mine), None)


def address_of(s: socket.socket, name: str) -> str | None:
    """The address of a network interface, if it has one."""
    import fcntl

    try:
        found = fcntl.ioctl(s.fileno(), SIOCGIFADDR, name.encode()[:15].ljust(256, b"\0"))
    except OSError:
        return None
    return socket.inet_ntoa(found[20:24])
