"""Machine code: one object file for each text, version and processor. It is compiled when it is first needed, and
stored (cache.py).

Nothing in these files refers to Python. So a later process loads them with LLVM alone, without numba.
"""

import hashlib
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache as once
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from ..emit.target import Form, Target, host
from .cache import Cache, opened

_lock = threading.RLock()
_loaded: list["Code"] = []  # kept alive, with its memory


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # the thread that held it does not exist in the child


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


WITHOUT_EFFECT = ("NUMBA_NUM_THREADS",)  # of numba's settings: the code has none of numba's threads
ELF_HEADER = 64  # bytes


class Code(dict[str, int]):
    """Machine code in memory: where each function is, by its name."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.rest: Code | None = None  # of another file

    def __missing__(self, name: str) -> int:
        address: int = self.engine.get_function_address(name)
        if not address:  # a kernel would jump there
            if self.rest is None:
                raise KeyError(name)
            address = self.rest[name]
        return self.setdefault(name, address)


@once
def texts() -> bytes:
    """The source of all modules that generate code."""
    kernels = Path(__file__).parents[1]
    folders = [*(kernels / "emit").glob("*.py"), *(kernels / "loops").glob("*.py")]
    others = [kernels / "records.py", kernels / "launch" / "objects.py"]
    return b"".join(path.read_bytes() for path in sorted([*folders, *others]))


def key(*parts: str) -> str:
    cpu = host()
    versions = [f"{name} {version(name)}" for name in ("numba", "llvmlite")]
    names = sorted(name for name in os.environ if name.startswith("NUMBA_") and name not in WITHOUT_EFFECT)
    settings = [f"{name}={os.environ[name]}" for name in names]
    digest = hashlib.sha256(texts())
    for part in (*parts, *versions, *settings, cpu.name, *cpu.features, cpu.machine):
        digest.update(b"\0" + os.fsencode(part))
    if (more := Path(".numba_config.yaml")).is_file():  # numba reads settings from this file, too
        with suppress(OSError), more.open("rb") as file:
            digest.update(b"\0" + file.read(1 << 16))
    return digest.hexdigest()[:32]


def objects() -> Any:
    from . import objects  # imports numba, which is slow, and not needed if the code is in the cache

    return objects


@once
def shared() -> Code:
    """The functions that all cells share."""
    return load("the shared loops", key("shared"), lambda: objects().shared(), "plait_run")


@once
def products(target: Target) -> Code:
    """The functions that all cells share, for one kind of number."""
    what = f"products in {target.kind}"
    return load(what, key(repr(target)), lambda: objects().products(target), "plait_product")


@once
def functions(form: Form) -> Code:
    """The functions that are made for one cell and one kind of number."""
    text = (form.trace.step, form.trace.vjp, repr(form.target), f"{form.projected} {form.sourced}")
    what = f"{form.cell.name} in {form.target.kind}"
    found = load(what, key(*text), lambda: objects().functions(form), "plait_forward")
    found.rest = products(form.target)
    return found


def load(what: str, name: str, build: Callable[[], bytes], has: str) -> Code:
    """has: a function that the code must have"""
    file = f"{name}.o"
    with _lock, opened() as cache:
        found = find(cache, file, has)
        if found is None:
            with cache.locked():
                found = find(cache, file, has)  # another process may have stored it meanwhile
                if found is None:
                    found = link(compile_and_store(what, build, cache, file), has)
        assert found is not None, f"the code of {what} has no function {has}"
        return found


def find(cache: Cache, file: str, has: str) -> Code | None:
    code = cache.read(file)
    return None if code is None or not is_whole(code) else link(code, has)


def is_whole(code: bytes) -> bool:
    """Whether the file is complete: LLVM would read past the end of a file that was cut short."""
    if code.startswith(b"\x7fELF") and len(code) >= ELF_HEADER:
        (start,), (size, count) = struct.unpack_from("<Q", code, 0x28), struct.unpack_from("<HH", code, 0x3A)
        end: int = start + size * count  # of the table of sections, which is the last part of the file
        return end <= len(code)
    return code.startswith(b"\xcf\xfa\xed\xfe")  # an object file of macOS


def compile_and_store(what: str, build: Callable[[], bytes], cache: Cache, file: str) -> bytes:
    print(f"plait: compiling {what} for this processor ...", end=" ", file=sys.stderr, flush=True)
    start = time.perf_counter()
    code = build()
    why_not = cache.write(file, code)
    outcome = "stored" if why_not is None else f"not stored: {why_not}"
    print(f"{time.perf_counter() - start:.1f} s ({outcome})", file=sys.stderr, flush=True)
    return code


def link(code: bytes, has: str) -> Code | None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    found = Code(engine)
    if not engine.get_function_address(has):
        return None
    _loaded.append(found)
    return found
