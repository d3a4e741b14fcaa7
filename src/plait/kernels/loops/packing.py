"""Packing: weights into panels, one line for each term of the sums; before them the line that the sums start from."""

from ..records import Product
from .machine import Int, call6, compiled, copy, get, zero


@compiled(2, Int)
def blocks(product, columns):
    """How many blocks there are in that many columns."""
    return (columns + get(product, Product.WIDTH) - 1) // get(product, Product.WIDTH)


@compiled(7)
def pack(product, function, panel, origin, stride, depth, units):
    """One panel: a line of zeros that the sums start from, then the weights."""
    line = get(product, Product.WIDTH) * get(product, Product.NUMBER)
    zero(panel, line)
    if depth:
        call6(function, panel + line, origin, stride, depth, units, 0)


@compiled(7)
def pack_gate(product, panel, each, column, units, at, joined):
    """One panel of R, of W, or of R and then W. The sums start from the biases of those that it has.

    If it is joined with others, it is the columns from `at` bytes on, and the rest of the panel is there already.
    """
    SIZE, line = get(product, Product.NUMBER), get(product, Product.WIDTH) * get(product, Product.NUMBER)
    function, add, to = get(product, Product.PACK), get(product, Product.ADD_BIAS), panel + line + at
    P, separate = get(product, Product.RUN_COLUMNS), get(product, Product.SEPARATE)
    if not joined:
        zero(panel, line)
    if each < get(product, Product.EACH) - separate:
        row = get(product, Product.FACTOR_ROW)
        if not get(product, Product.IDLE):
            call6(function, to, get(product, Product.FACTOR) + column * row, row, P, units, joined)
        if get(product, Product.BIAS):
            call6(add, panel + at, get(product, Product.BIAS) + column * SIZE, units, 0, 0, 0)
    if each >= separate and get(product, Product.FOLDED):
        row, I = get(product, Product.W_ROW), get(product, Product.RUN_COLUMNS + Product.RUN_SIZE)
        if each < get(product, Product.EACH) - separate:
            to += P * line
        call6(function, to, get(product, Product.W) + column * row, row, I, units, joined)
        if get(product, Product.W_BIAS):
            call6(add, panel + at, get(product, Product.W_BIAS) + column * SIZE, units, 0, 0, 0)


@compiled(2)
def pack_block(product, block):
    """Packs all panels of a block."""
    SIZE, WIDTH, DEPTH = get(product, Product.NUMBER), get(product, Product.WIDTH), get(product, Product.DEPTH)
    EACH, COLUMNS, row = get(product, Product.EACH), get(product, Product.COLUMNS), get(product, Product.FACTOR_ROW)
    units, depth = min(WIDTH, COLUMNS - block * WIDTH), 0 if get(product, Product.IDLE) else DEPTH
    stride, joined = (DEPTH + 1) * WIDTH * SIZE, 1 if units == get(product, Product.JOINED) else 0
    panel = get(product, Product.PANELS) + block * EACH * stride
    if joined:
        zero(panel, stride)
    for each in range(EACH):
        column = get(product, Product.GATE + each) * COLUMNS + block * WIDTH
        if joined:
            pack_gate(product, panel, each, column, units, each * units * SIZE, 1)
        elif get(product, Product.FOLDED):
            pack_gate(product, panel + each * stride, each, column, units, 0, 0)
        else:
            origin = get(product, Product.FACTOR) + column * (row if get(product, Product.TRANSPOSED) else SIZE)
            pack(product, get(product, Product.PACK), panel + each * stride, origin, row, depth, units)
            if get(product, Product.BIAS):
                copy(panel + each * stride, get(product, Product.BIAS) + column * SIZE, units * SIZE)


@compiled(1, Int)
def blocks_to_pack(product):
    if get(product, Product.OUTER) or get(product, Product.TOTAL) or get(product, Product.READY):
        return 0
    return blocks(product, get(product, Product.COLUMNS))
