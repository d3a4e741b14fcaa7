"""What other libraries must know of plait's layers. plait imports none of them: see import_hook.py."""

from functools import wraps
from typing import Any

from torch.nn.utils.parametrize import type_before_parametrizations

from .import_hook import AWAITED
from .recurrent import Recurrent
from .swappable import Swappable, torch_class
from .twins import TWINS


def tell_dynamo(builder: Any) -> None:
    """Dynamo refuses every nn.LSTM where no graph break is allowed. Ours is one op to it."""
    wrap = builder.VariableBuilder.wrap_module

    @wraps(wrap)
    def wrap_module(self: Any, value: Any) -> Any:
        # ours first: the fields of dynamo's are private, and no other module should depend on them
        if isinstance(value, Recurrent) and allows_no_break(self.tx) and is_an_op(value):
            with builder.config.patch(allow_rnn=True):
                return wrap(self, value)
        return wrap(self, value)

    builder.VariableBuilder.wrap_module = wrap_module


def allows_no_break(translator: Any) -> bool:
    no_breaks: bool = translator.output.root_tx.one_graph or getattr(translator, "error_on_graph_break", False)
    return no_breaks


def is_an_op(layer: Recurrent) -> bool:
    weight: Any = layer._flat_weights[0]
    return layer._plait_engine(weight.dtype, weight.device) != "torch"


def tell_opacus(validators: Any) -> None:
    """Its tables go by exact classes: what they say of torch's layers holds for ours."""
    for table in (validators.ModuleValidator.VALIDATORS, validators.ModuleValidator.FIXERS):
        table.update({ours: table[theirs] for theirs, ours in TWINS.items() if theirs in table})


def tell_quantization(quantize: Any) -> None:
    """It goes by exact classes, and would pass over our layers where torch's were asked for."""
    propagate = quantize.propagate_qconfig_

    @wraps(propagate)
    def propagate_qconfig_(module: Any, qconfig_dict: Any = None, *args: Any, **options: Any) -> Any:
        for layer in module.modules():
            if isinstance(layer, Swappable):
                theirs: Any = torch_class(type_before_parametrizations(layer))
                if (qconfig_dict or {}).get(theirs) is not None:
                    raise layer._plait_no_quantization()
        return propagate(module, qconfig_dict, *args, **options)

    quantize.propagate_qconfig_ = propagate_qconfig_


AWAITED.update(
    {
        "torch._dynamo.variables.builder": tell_dynamo,
        "opacus.validators": tell_opacus,
        "torch.ao.quantization.quantize": tell_quantization,
    }
)
