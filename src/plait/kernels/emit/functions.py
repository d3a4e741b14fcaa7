"""The functions that compute, for one cell and one kind of number. The shared loops call them by address."""

from llvmlite import ir

from .pointwise import (
    emit_add,
    emit_backward,
    emit_d_projected,
    emit_finish,
    emit_forward,
    emit_forward_folded,
    emit_projected,
    emit_store,
    emit_touch,
    emit_touch_back,
    pointwise_function,
)
from .target import Form
from .tile import (
    add_bias_function,
    pack_columns_function,
    pack_side_function,
    pack_transposed_function,
    product_function,
    write_function,
)


def functions(form: Form) -> ir.Module:
    module = ir.Module("plait_functions")
    product_function(module, form.target, "plait_product", resume=False)
    product_function(module, form.target, "plait_product_on", resume=True)
    pack_transposed_function(module, form.target, "plait_pack_transposed")
    pack_columns_function(module, form.target, "plait_pack_columns")
    add_bias_function(module, form.target, "plait_add_bias")
    pack_side_function(module, form.target, "plait_pack_side")
    write_function(module, form.target, "plait_write")
    pointwise_function(module, form, "plait_forward", emit_forward)
    pointwise_function(module, form, "plait_forward_folded", emit_forward_folded)
    pointwise_function(module, form, "plait_backward", emit_backward)
    pointwise_function(module, form, "plait_finish", emit_finish)
    pointwise_function(module, form, "plait_touch", emit_touch)
    pointwise_function(module, form, "plait_touch_back", emit_touch_back)
    pointwise_function(module, form, "plait_store", emit_store)
    pointwise_function(module, form, "plait_add", emit_add)
    if form.projected:
        pointwise_function(module, form, "plait_projected", emit_projected)
        pointwise_function(module, form, "plait_d_projected", emit_d_projected)
    return module
