"""Packing: weights into panels, one line for each term of the sums; before them the line that the sums start from."""

from .machine import Int, call6, compiled, copy, get, zero
from .records import product as PRODUCT


@compiled(2, Int)
def blocks(product, columns):
    """How many blocks there are in that many columns."""
    return (columns + get(product, PRODUCT.WIDTH) - 1) // get(product, PRODUCT.WIDTH)


@compiled(7)
def pack(product, leaf, panel, origin, stride, depth, units):
    """One panel: a line of zeros that the sums start from, then the weights."""
    line = get(product, PRODUCT.WIDTH) * get(product, PRODUCT.SIZE)
    zero(panel, line)
    if depth:
        call6(leaf, panel + line, origin, stride, depth, units, 0)


@compiled(7)
def pack_gate(product, panel, each, column, units, at, joined):
    """One panel of R, of W, or of R and then W. The sums start from the biases of those that it has.

    If it is joined with others, it is the columns from `at` bytes on, and the rest of the panel is there already.
    """
    SIZE, line = get(product, PRODUCT.SIZE), get(product, PRODUCT.WIDTH) * get(product, PRODUCT.SIZE)
    leaf, add, to = get(product, PRODUCT.PACK), get(product, PRODUCT.ADD_BIAS), panel + line + at
    P, separate = get(product, PRODUCT.RUN_COLUMNS), get(product, PRODUCT.SEPARATE)
    if not joined:
        zero(panel, line)
    if each < get(product, PRODUCT.EACH) - separate:
        row = get(product, PRODUCT.FACTOR_ROW)
        if not get(product, PRODUCT.IDLE):
            call6(leaf, to, get(product, PRODUCT.FACTOR) + column * row, row, P, units, joined)
        if get(product, PRODUCT.BIAS):
            call6(add, panel + at, get(product, PRODUCT.BIAS) + column * SIZE, units, 0, 0, 0)
    if each >= separate and get(product, PRODUCT.FOLDED):
        row, I = get(product, PRODUCT.W_ROW), get(product, PRODUCT.RUN_COLUMNS + PRODUCT.PER_RUN)
        if each < get(product, PRODUCT.EACH) - separate:
            to += P * line
        call6(leaf, to, get(product, PRODUCT.W) + column * row, row, I, units, joined)
        if get(product, PRODUCT.W_BIAS):
            call6(add, panel + at, get(product, PRODUCT.W_BIAS) + column * SIZE, units, 0, 0, 0)


@compiled(2)
def pack_block(product, block):
    """Packs all panels of a block."""
    SIZE, WIDTH, DEPTH = get(product, PRODUCT.SIZE), get(product, PRODUCT.WIDTH), get(product, PRODUCT.DEPTH)
    EACH, COLUMNS, row = get(product, PRODUCT.EACH), get(product, PRODUCT.COLUMNS), get(product, PRODUCT.FACTOR_ROW)
    units, depth = min(WIDTH, COLUMNS - block * WIDTH), 0 if get(product, PRODUCT.IDLE) else DEPTH
    stride, joined = (DEPTH + 1) * WIDTH * SIZE, 1 if units == get(product, PRODUCT.JOINED) else 0
    panel = get(product, PRODUCT.PANELS) + block * EACH * stride
    if joined:
        zero(panel, stride)
    for each in range(EACH):
        column = get(product, PRODUCT.GATE + each) * COLUMNS + block * WIDTH
        if joined:
            pack_gate(product, panel, each, column, units, each * units * SIZE, 1)
        elif get(product, PRODUCT.FOLDED):
            pack_gate(product, panel + each * stride, each, column, units, 0, 0)
        else:
            origin = get(product, PRODUCT.FACTOR) + column * (row if get(product, PRODUCT.TRANSPOSED) else SIZE)
            pack(product, get(product, PRODUCT.PACK), panel + each * stride, origin, row, depth, units)
            if get(product, PRODUCT.BIAS):
                copy(panel + each * stride, get(product, PRODUCT.BIAS) + column * SIZE, units * SIZE)


@compiled(1, Int)
def blocks_to_pack(product):
    if get(product, PRODUCT.OUTER) or get(product, PRODUCT.TOTAL) or get(product, PRODUCT.READY):
        return 0
    return blocks(product, get(product, PRODUCT.COLUMNS))
