"""Every kernel is compiled for three architectures, and assembled: it fits, spills nothing, and has no float64."""

import pytest

from assembler import ARCHITECTURES, by_numba, by_triton, needs_numba, needs_triton
from plait.cells import CELLS
from some_cells import PeepholeLSTM

pytestmark = pytest.mark.cuda
every_architecture = pytest.mark.parametrize("capability", ARCHITECTURES, ids=lambda cc: "sm_{}{}".format(*cc))
every_cell = pytest.mark.parametrize("cell", CELLS)


def check(found, capability) -> None:
    assert found.spilled == 0
    assert found.registers <= 255
    assert found.shared <= ARCHITECTURES[capability] * 1024
    assert ".f64" not in found.ptx


@needs_numba
@every_architecture
@every_cell
def test_a_training_step_has_code(cell, capability):
    check(by_numba(cell, capability), capability)


@needs_triton
@every_architecture
@every_cell
@pytest.mark.parametrize("kind", ["recur", "recur_vjp"])
def test_a_block_of_samples_has_code(cell, kind, capability):
    found = by_triton(cell, kind, capability)
    check(found, capability)
    assert ("mma" in found.ptx) == (capability >= (8, 0))  # tensor cores


@needs_triton
@pytest.mark.parametrize("H", [1, 8, 33, 64, 512])
def test_other_widths_have_code(H):
    for kind in ("recur", "recur_vjp"):
        for capability in ARCHITECTURES:
            check(by_triton("lstm", kind, capability, H), capability)


@needs_triton
@every_architecture
@pytest.mark.parametrize("kind", ["recur", "recur_vjp"])
@pytest.mark.parametrize(
    "options",
    [{"reverse": True, "bias": False, "projected": True}, {"source": True}, {"apart": True}, {"dt": 2}],
    ids=lambda options: " ".join(options),
)
def test_other_forms_have_code(options, kind, capability):
    for cell in ("lstm", "gru"):
        if not (options.get("projected") and cell == "gru"):  # it reads h itself
            check(by_triton(cell, kind, capability, **options), capability)


@needs_triton
@every_architecture
def test_a_cell_with_parameters_has_code(capability):
    for kind in ("recur", "recur_vjp"):
        check(by_triton(PeepholeLSTM, kind, capability), capability)
