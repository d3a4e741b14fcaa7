"""What other libraries must know of plait's layers: they are told when they are imported. plait imports none."""

import sys
from collections.abc import Callable
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from torch.nn.utils.parametrize import type_before_parametrizations

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


NEIGHBOURS: dict[str, Callable[[Any], None]] = {
    "torch._dynamo.variables.builder": tell_dynamo,
    "opacus.validators": tell_opacus,
    "torch.ao.quantization.quantize": tell_quantization,
}


class Finder(MetaPathFinder):
    """An import hook: it leaves finding to the other finders, and hooks the loader of a neighbour."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name not in NEIGHBOURS:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                hook(spec.loader, NEIGHBOURS[name])
                return spec
        return None


def hook(loader: Any, tell: Callable[[Any], None]) -> None:
    run = loader.exec_module

    def exec_module(module: Any) -> None:
        del loader.exec_module
        run(module)
        tell(module)

    loader.exec_module = exec_module


def install_import_hook() -> None:
    """Neighbours that are imported already are told at once, the others when they are."""
    for name, tell in NEIGHBOURS.items():
        if name in sys.modules:
            tell(sys.modules[name])
    sys.meta_path.insert(0, Finder())
