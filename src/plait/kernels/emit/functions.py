"""The functions that compute: those of one kind of number, and those of one cell. The shared loops call them by
address.
"""

from llvmlite import ir

from . import pointwise, tile
from .target import Form, Target


def products(target: Target) -> ir.Module:
    """The products, and what packs their operands: all cells have the same."""
    module = ir.Module("plait_products")
    for name, function in (tile.FUNCTIONS | (tile.OF_PAIRS if target.rounded else {})).items():
        function(module, target, name)
    return module


def functions(form: Form) -> ir.Module:
    """What a cell makes of the products."""
    module = ir.Module("plait_functions")
    for name, emit in (pointwise.FUNCTIONS | (pointwise.OF_PROJECTION if form.projected else {})).items():
        pointwise.pointwise_function(module, form, name, emit)
    return module
