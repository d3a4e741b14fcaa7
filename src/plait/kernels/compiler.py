"""Machine code, and where it is kept: one object file per text, version and processor, in the user's cache folder.

Nothing in these files refers to Python, so a later process loads them with LLVM alone, without numba.
"""

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import llvmlite.binding as llvm

from ..cells.trace import trace
from .target import Form, host

_lock = threading.RLock()
_engines: list[Any] = []  # what they hold must stay where it is


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # whoever held it stayed behind


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


Addresses = dict[str, int]  # name of a function -> where it is


def folder() -> Path:
    """PLAIT_CACHE, or plait's own in the user's cache folder."""
    if given := os.environ.get("PLAIT_CACHE"):
        return Path(given)
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "plait"


@cache
def texts() -> bytes:
    """Everything that generates code, as it is written now."""
    here = Path(__file__).parent
    return b"".join(path.read_bytes() for path in sorted(here.glob("*.py")))


def key(*parts: str) -> str:
    cpu = host()
    versions = [f"{name} {version(name)}" for name in ("numba", "llvmlite")]
    digest = hashlib.sha256(texts())
    for part in (*parts, *versions, cpu.name, *cpu.features, cpu.machine):
        digest.update(b"\0" + part.encode())
    return digest.hexdigest()[:32]


@cache
def walk() -> Addresses:
    """The functions that all cells share."""

    def build() -> bytes:
        from . import native  # and numba with it, which a process that finds its code in the cache does not need

        return native.walks()

    return load("the walk through time", key("walk"), build, WALKS)


@cache
def leaves(form: Form) -> Addresses:
    """Those that are made for one cell and one kind of number."""

    def build() -> bytes:
        from . import native

        return native.leaves(form)

    traced = trace(form.cell, form.dt)
    text = (traced.step, traced.vjp, repr(form.target), str(form.projected))
    what = f"{form.cell.name} in float{8 * form.target.size}"
    more = ("plait_projected", "plait_d_projected") if form.projected else ()
    return load(what, key(*text), build, (*NAMES, *more))


WALKS = ("plait_rows", "plait_gemms", "plait_walk", "plait_start")
NAMES = (
    "plait_product",
    "plait_product_on",
    "plait_pack_transposed",
    "plait_pack_columns",
    "plait_forward",
    "plait_backward",
    "plait_finish",
    "plait_touch",
    "plait_store",
    "plait_add",
    "plait_sums",
)


def load(what: str, name: str, build: Callable[[], bytes], functions: tuple[str, ...]) -> Addresses:
    with _lock:
        path = folder() / f"{name}.o"
        code = read(path)
        if code is None:
            print(f"plait: compiling {what} for this processor ...", end=" ", file=sys.stderr, flush=True)
            start = time.perf_counter()
            code = build()
            why_not = write(path, code)
            kept = "kept for later" if why_not is None else f"not kept: {why_not}"
            print(f"{time.perf_counter() - start:.1f} s ({kept})", file=sys.stderr, flush=True)
        return link(code, functions)


def read(path: Path) -> bytes | None:
    """What was kept, unless it is damaged: a file ends with the digest of what comes before."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    code, digest = data[:-32], data[-32:]
    return code if hashlib.sha256(code).digest() == digest else None


def write(path: Path, code: bytes) -> str | None:
    """None if it is kept now, else why it is not. Whole or not at all, whoever else writes the same."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(code + hashlib.sha256(code).digest())
                file.close()
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as e:
        return str(e)
    return None


def link(code: bytes, functions: tuple[str, ...]) -> Addresses:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    found = {name: engine.get_function_address(name) for name in functions}
    assert all(found.values()), found
    return found
