"""The CUDA kernels compiled down to the code of an architecture, without a device; and what the assembler says of them.

python assembler.py prints the table of docs/cuda.md.
"""

import os
import re
import subprocess
import tempfile
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plait.bench.cuda import launch
from plait.cells import CELLS, Cell
from plait.kernels.cuda import blocks
from plait.kernels.cuda.block_text import SIZES
from plait.kernels.cuda.form import Form

ARCHITECTURES = {(7, 5): 64, (8, 0): 163, (9, 0): 227}  # KiB of shared memory that a block can have
WIDTH = 128
REQUIRED = "PLAIT_TEST_CUDA" in os.environ  # what is missing is then a failure: `make test-cuda` has installed it
needs_numba = pytest.mark.skipif(
    not REQUIRED and find_spec("numba_cuda") is None, reason="numba-cuda is not installed: make test-cuda"
)
needs_triton = pytest.mark.skipif(
    not REQUIRED and find_spec("triton") is None, reason="Triton is not installed: make test-cuda"
)


class Assembled(NamedTuple):
    registers: int
    spilled: int  # bytes
    shared: int  # bytes
    ptx: str


def read_log(log: str) -> tuple[int, int]:
    """-> registers, bytes of spills"""
    used = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert used
    assert spills, log
    return max(used), sum(int(n) for pair in spills for n in pair)


def by_numba(cell: str, capability: tuple[int, int]) -> Assembled:
    import numba
    from cuda.bindings import nvjitlink
    from numba import cuda

    (kernel, arrays), real = launch.kernel(cell, "float32"), numba.float32
    flat = {"loss", *(f"{d}b_{name}" for d in ("", "d_") for name in ("ih", "hh", "out"))}
    types = [real[::1] if name in flat else real[:, ::1] for name in arrays]
    ptx, _ = cuda.compile(kernel.py_func, tuple(types), device=False, cc=capability, abi="numba")
    code = ptx.encode() if isinstance(ptx, str) else ptx
    linker = nvjitlink.create(2, ["-arch=sm_{}{}".format(*capability), "-verbose"])
    try:
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, code, len(code), cell)
        nvjitlink.complete(linker)
        log = bytearray(nvjitlink.get_info_log_size(linker))
        nvjitlink.get_info_log(linker, log)
        assert nvjitlink.get_linked_cubin_size(linker) > 0
    finally:
        nvjitlink.destroy(linker)
    text = log.decode()
    (shared,) = {int(n) for n in re.findall(r"(\d+) bytes smem", text)}
    return Assembled(*read_log(text), shared, code.decode())


def by_triton(
    of: str | type[Cell], kind: str, capability: tuple[int, int], H: int = WIDTH, **options: Any
) -> Assembled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import get_ptxas
    from triton.compiler import ASTSource

    cell = CELLS[of] if isinstance(of, str) else of
    first = (True, *[False] * (len(cell.states) - 1))
    kernel, cut = blocks.kernel(Form(cell, given=first, **options), kind), blocks.tiles(H, capability)
    constants = {name: getattr(cut, name) for name in ("BB", "BN", "BK", "PRECISION")}
    signature = {**dict.fromkeys(SIZES, "i32"), **dict.fromkeys(kernel.arrays, "*fp32"), "starts": "*i64"}
    signature = {name: signature[name] for name in (*SIZES, *kernel.arrays)} | dict.fromkeys(constants, "constexpr")
    begin = SIZES.index("H") if H % 16 == 0 else len(SIZES)
    aligned = {(k,): [["tt.divisibility", 16]] for k in range(begin, len(SIZES) + len(kernel.arrays))}
    source = ASTSource(fn=kernel.function, signature=signature, constexprs=constants, attrs=aligned)
    arch = 10 * capability[0] + capability[1]
    how = {name: getattr(cut, name) for name in ("num_warps", "num_stages", "maxnreg")}
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=how)
    assert compiled.asm["cubin"]
    ptx = compiled.asm["ptx"]
    target = re.search(r"\.target (\w+)", ptx)
    assert target
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.ptx"
        file.write_text(ptx)
        command = [get_ptxas(arch).path, "-v", f"--gpu-name={target[1]}", str(file), "-o", str(file.with_suffix(".o"))]
        log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return Assembled(*read_log(log), compiled.metadata.shared, ptx)


if __name__ == "__main__":
    print("| kernel | cell | sm_75 | sm_80 | sm_90 |\n| --- | --- | --- | --- | --- |")
    for cell in CELLS:
        found = [by_numba(cell, capability) for capability in ARCHITECTURES]
        print(
            f"| versions 1 to 3, training step | {cell} | {' | '.join(str(a.registers) for a in found)} |", flush=True
        )
    for kind, cell in product(("recur", "recur_vjp"), CELLS):
        found = [by_triton(cell, kind, capability) for capability in ARCHITECTURES]
        name = f"version 4, {'forward' if kind == 'recur' else 'backward'}, H = {WIDTH}"
        texts = [f"{a.registers}, {a.shared / 1024:.0f} KiB" for a in found]
        print(f"| {name} | {cell} | {' | '.join(texts)} |", flush=True)
