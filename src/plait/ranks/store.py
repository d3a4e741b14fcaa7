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
from concurrent.futures import Future
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
    """The keys of one attempt, or of all (None). The secret prevents accidents only."""
    return PrefixStore(f"plait/{secret}/{'lasting' if attempt is None else attempt}", store)


def host(address: str, port: int, timeout: float) -> TCPStore:
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
    """Tried by hand first: torch prints a page for each failure. is_up: it was there"""
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
    """What a function returns, or Unanswered if it takes longer."""
    answer: Future[T] = Future()
    threading.Thread(target=settle, args=(answer, function), daemon=True).start()
    try:
        return answer.result(seconds)
    except (TimeoutError, RuntimeError) as e:
        raise Unanswered(otherwise) from e


def settle(answer: Future[T], function: Callable[[], T]) -> None:
    try:
        answer.set_result(function())
    except Exception as e:
        answer.set_exception(e)


def resolve(address: str, port: int = 0) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except OSError as e:
        raise PlaitError(f"MASTER_ADDR is '{address}', which is not known here: {e.strerror or e}.") from None
    return family, (str(where[0]), int(where[1]))


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(resolve(address)[1][0].partition("%")[0]).is_loopback


def interface(address: str) -> str | None:
    """The network interface that leads to an address, for gloo. Linux only."""
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
    import fcntl

    try:
        found = fcntl.ioctl(s.fileno(), SIOCGIFADDR, name.encode()[:15].ljust(256, b"\0"))
    except OSError:
        return None
    return socket.inet_ntoa(found[20:24])
