"""Packing: weights into panels, one line for each term of the sums; before them the line that the sums start from."""

from ..records import Product
from .machine import Int, call6, compiled, copy, get, zero


@compiled(2, Int)
def blocks(product, columns):
    """How many blocks there are in that many columns."""
    return (columns + get(product, Product.WIDTH) - 1) // get(product, Product.WIDTH)


@compiled(7)
def pack_panel(product, panel, each, column, units, at, joined):
    """One panel of B, or of R and then W if both are folded. The sums start from the biases of those that it has.

    If it is joined with others, it is the columns from `at` bytes on, and the rest of the panel is there already.
    """
    SIZE, line = get(product, Product.NUMBER), get(product, Product.LINE)
    function, row, to = get(product, Product.PACK), get(product, Product.FACTOR_ROW), panel + line + at
    separate, folded = get(product, Product.SEPARATE), get(product, Product.FOLDED)
    of_w = get(product, Product.RUN_COLUMNS + Product.RUN_SIZE) if folded else 0
    depth, terms = get(product, Product.DEPTH) - of_w, get(product, Product.TERMS)
    if not joined:
        zero(panel, line)
    if each < get(product, Product.EACH) - separate:
        origin = get(product, Product.FACTOR) + column * (row if get(product, Product.TRANSPOSED) else SIZE)
        groups = get(product, Product.TERM_GROUPS)
        for k in range(0 if get(product, Product.IDLE) else groups):
            start = origin + k * terms * (SIZE if get(product, Product.TRANSPOSED) else row)
            call6(function, to + depth // groups * k * line, start, row, terms, units, joined)
        if get(product, Product.BIAS):
            copy(panel + at, get(product, Product.BIAS) + column * SIZE, units * SIZE)
        to += depth * line
    if each >= separate and folded:
        row = get(product, Product.W_ROW)
        terms = get(product, Product.W_TERMS)
        call6(function, to, get(product, Product.W) + column * row, row, terms, units, joined)
        if get(product, Product.W_BIAS):
            bias = get(product, Product.W_BIAS) + column * SIZE
            call6(get(product, Product.ADD_BIAS), panel + at, bias, units, 0, 0, 0)


@compiled(2)
def pack_block(product, block):
    """Packs all panels of a block."""
    WIDTH, COLUMNS, EACH = get(product, Product.WIDTH), get(product, Product.COLUMNS), get(product, Product.EACH)
    units, stride = min(WIDTH, COLUMNS - block * WIDTH), get(product, Product.STRIDE)
    joined = units == get(product, Product.JOINED)
    panel = get(product, Product.PANELS) + block * EACH * stride
    if joined:
        zero(panel, stride)
    for each in range(EACH):
        column = get(product, Product.GATE + each) * COLUMNS + block * WIDTH
        if joined:
            pack_panel(product, panel, each, column, units, each * units * get(product, Product.NUMBER), 1)
        else:
            pack_panel(product, panel + each * stride, each, column, units, 0, 0)


@compiled(1, Int)
def blocks_to_pack(product):
    return 0 if get(product, Product.READY) else blocks(product, get(product, Product.COLUMNS))
