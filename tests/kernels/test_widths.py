"""Vectors of 128, 256 and 512 bits: which are taken, how large the tile is, and what its loop looks like as code."""

import json
import re
from dataclasses import replace
from functools import cache

import pytest
from llvmlite import ir

from assembly import ARM, X86, Loop, assembly, calls, loops
from plait.cells import CELLS
from plait.engines.fused import FusedEngine
from plait.errors import PlaitError
from plait.kernels.emit import pointwise, target, tile
from plait.kernels.emit.functions import functions, products
from plait.kernels.emit.target import Form, Host, Target, host
from plait.kernels.launch import compiler
from plait.kernels.launch.schedule import Schedule

AVX = ("avx", "avx2", "fma")
SSE = Host("old", ("sse2",), "x86_64")
HASWELL = Host("haswell", AVX, "x86_64")
ZEN = Host("znver4", (*AVX, "avx512f", "avx512vl"), "x86_64")
WITH_BF16 = Host("znver4", (*ZEN.features, "avx512bf16"), "x86_64")
SLOWER = (("gru", True), ("lstm", False), ("lstm", True))
NEOVERSE = Host("neoverse-n1", ("neon",), "aarch64")


# --- which are taken -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("cpu", "expected"),  # bits: registers, rows of the tile
    [
        (SSE, {128: (16, 6)}),
        (HASWELL, {128: (16, 6), 256: (16, 6)}),
        (ZEN, {128: (16, 6), 256: (16, 6), 512: (32, 14)}),
        (NEOVERSE, {128: (32, 12)}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_registers_and_rows_of_every_width(cpu: Host, expected: dict[int, tuple[int, int]]) -> None:
    assert cpu.widths == tuple(expected)
    assert cpu.vector_bits == cpu.widths[-1]
    for bits, (registers, rows) in expected.items():
        forced = cpu.narrowed(bits, "it")
        assert (forced.vector_bits, forced.registers, forced.rows) == (bits, registers, rows)
        for double in (False, True):
            made = Schedule().target(double, forced)
            assert (made.lanes, made.rows) == (bits // (64 if double else 32), rows)


@pytest.fixture
def on_haswell(monkeypatch) -> None:
    monkeypatch.setattr(target, "_host", lambda: HASWELL)


@pytest.mark.usefixtures("on_haswell")
def test_the_environment_chooses(monkeypatch) -> None:
    for value, bits in (("", 256), ("128", 128), ("256", 256)):
        monkeypatch.setenv("PLAIT_VECTOR_BITS", value)
        assert host().vector_bits == FusedEngine().machine.vector_bits == bits
        assert FusedEngine(Schedule(vector_bits=128)).machine.vector_bits == 128


@pytest.mark.usefixtures("on_haswell")
@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("512", "PLAIT_VECTOR_BITS 512: this CPU (haswell) has no such vectors, expected 128 or 256."),
        ("100", "PLAIT_VECTOR_BITS '100': expected 128, 256 or 512, or nothing for the widest of this CPU."),
        ("wide", "PLAIT_VECTOR_BITS 'wide': expected 128, 256 or 512, or nothing for the widest of this CPU."),
    ],
)
@pytest.mark.parametrize("command", [("engines",), ("train", "forecast"), ("bench", "layers")], ids=" ".join)
def test_a_width_that_there_is_not(refused, monkeypatch, value: str, says: str, command: tuple[str, ...]) -> None:
    monkeypatch.setenv("PLAIT_VECTOR_BITS", value)
    monkeypatch.setattr("plait.engines.get", lambda name: FusedEngine())
    assert refused(*command) == f"plait: {says}\n"


@pytest.mark.usefixtures("on_haswell")
def test_a_schedule_asks_for_a_width_that_there_is_not() -> None:
    for bits in (512, 100):
        with pytest.raises(PlaitError, match=rf"vector_bits {bits}: this CPU \(haswell\) has no such vectors"):
            FusedEngine(Schedule(vector_bits=bits))


def test_engines_says_which_are_taken(plait, monkeypatch) -> None:
    monkeypatch.setattr(target, "_host", lambda: ZEN)
    monkeypatch.delenv("PLAIT_VECTOR_BITS", raising=False)
    assert re.search(r"^vectors +of 512 bits, the widest; znver4 has 128, 256, 512$", plait("engines")[1], re.M)
    monkeypatch.setenv("PLAIT_VECTOR_BITS", "256")
    said = plait("engines")[1]
    vectors = json.loads(plait("engines", "--json", "-")[1])["vectors"]
    assert vectors == {"bits": 256, "forced": True, "widths": [128, 256, 512], "cpu": "znver4", "bf16": False}
    assert re.search(r"^bf16 +in float32 code: this CPU has no avx512_bf16$", said, re.M)
    assert re.search(r"^vectors +of 256 bits, as PLAIT_VECTOR_BITS says; znver4 has 128, 256, 512$", said, re.M)


def test_code_is_kept_per_width(monkeypatch) -> None:
    """The names of the files. The shared loops are the same for all."""
    monkeypatch.setattr(target, "_host", lambda: ZEN)
    kept: list[str] = []
    monkeypatch.setattr(compiler, "load", lambda what, name, build, has: kept.append(name) or compiler.Code(None))
    monkeypatch.setattr(compiler, "products", compiler.products.__wrapped__)
    for bits in ("128", "256", "512"):
        monkeypatch.setenv("PLAIT_VECTOR_BITS", bits)
        compiler.shared.__wrapped__()
        compiler.functions.__wrapped__(Form(CELLS["gru"], 1, Schedule().target(False)))
    assert len(set(kept[::3])) == 1
    assert len(set(kept)) == 1 + 3 + 3


# --- as code ---------------------------------------------------------------------------------------------------------
@cache
def tile_loops(made: Target, triple: str, cpu: str) -> list[Loop]:
    module = ir.Module("tile")
    tile.product_function(module, made, "plait_product", resume=False)
    text = assembly(module, triple, cpu)
    assert calls(text) == []
    return [loop for loop in loops(text) if loop.fma]


def main_loop(made: Target, triple: str, cpu: str) -> Loop:
    """Of all rows and one panel. Half the rows and two panels have as many sums, but fewer loads."""
    sums = made.rows * made.vectors
    found = [loop for loop in tile_loops(made, triple, cpu) if len(loop.sums) == sums]
    return max(found, key=lambda loop: loop.loads)


@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("cpu", "bits"),
    [(HASWELL, 128), (HASWELL, 256), (ZEN, 128), (ZEN, 256), (ZEN, 512)],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_tile_on_x86(cpu: Host, bits: int, double: bool) -> None:
    made = Schedule().target(double, cpu.narrowed(bits, "it"))
    loop = main_loop(made, X86, cpu.name)
    register = {128: "%xmm", 256: "%ymm", 512: "%zmm"}[bits]
    assert all(re.fullmatch(rf"vfmadd\w+p[sd]\s.*{register}\d+", line) for line in loop.fma)
    assert {name for line in loop.fma for name in re.findall(r"%\wmm", line)} == {register}
    assert loop.spills == []
    turns, rest = divmod(len(loop.fma), len(loop.sums))  # LLVM may take two terms in a turn
    assert (turns in (1, 2), rest) == (True, 0)
    assert loop.loads == turns * (made.rows + made.vectors)
    assert len(loop.text) <= len(loop.fma) + loop.loads + 20  # the rest are counters and addresses


@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("cpu", ["neoverse-n1", "apple-m1"])
def test_the_tile_on_arm(cpu: str, double: bool) -> None:
    made = Schedule().target(double, replace(NEOVERSE, name=cpu))
    loop = main_loop(made, ARM, cpu)
    lanes = r"\.2d" if double else r"\.4s"
    assert all(re.match(rf"fmla\s+v\d+{lanes}, v\d+{lanes}, v\d+", line) for line in loop.fma)
    assert len(loop.fma) == 24
    assert loop.loads in (12 + 1, 12 + 2)  # one instruction may load both vectors of the panel
    for each in tile_loops(made, ARM, cpu):
        assert each.spills == []
        assert not any(re.match(r"mov\s+v", line) for line in each.text)


@pytest.mark.parametrize("bits", [256, 512])
def test_the_tile_multiplies_pairs_in_one_instruction(bits: int) -> None:
    cpu = WITH_BF16.narrowed(bits, "it")
    made = Schedule().target(False, cpu, rounded=True)
    assert made.dot
    assert not Schedule().target(False, ZEN, rounded=True).dot
    text = assembly(products(made), X86, cpu.name)
    assert calls(text) == []
    main = [block for block in re.split(r"\n(?=\.LBB)", text) if block.count("vdpbf16ps") == made.rows * made.vectors]
    assert any("(%rsp)" not in block for block in main)
    assert not any("vfmadd" in block for block in main)
    rounds = assembly(functions(Form(CELLS["lstm"], 1, made)), X86, cpu.name)
    assert "vcvtneps2bf16" in rounds
    assert calls(rounds) == []


def test_more_rows_on_arm_would_not_stay_in_registers() -> None:
    """Why it is 12, though there are as many registers as in AVX-512."""
    found = tile_loops(Target(double=False, lanes=4, rows=14), ARM, "neoverse-n1")
    assert any(loop.spills for loop in found if len(loop.fma) == 28)


@pytest.mark.parametrize(
    ("cell", "double"), [("gru", False), *(pytest.param(*some, marks=pytest.mark.slow) for some in SLOWER)]
)
def test_all_functions_compile_for_arm_without_a_call(cell: str, double: bool) -> None:
    form = Form(CELLS[cell], 1, Schedule().target(double, NEOVERSE), projected=cell == "lstm")
    rounding = products(Schedule().target(False, NEOVERSE, rounded=True)), tile.FUNCTIONS | tile.OF_PAIRS
    for made, names in (rounding, (products(form.target), tile.FUNCTIONS), (functions(form), pointwise.FUNCTIONS)):
        text = assembly(made, ARM, NEOVERSE.name)
        for name in names:
            assert f"\n{name}:" in text
        assert calls(text) == []
        assert not re.search(r"\sb\s+(?!\.L|plait_)\w", text)  # nor a call at the end of a function
    assert re.search(r"fdiv\s+v\d+\.[42]", text)
