"""A block in which the weights do not change: they are packed for the kernels once."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from ..engines import Prepared


class Held:
    """The prepared weights of a layer, until the block ends. Every Python thread has its own."""

    def __init__(self) -> None:
        self.is_open = True
        self.found: dict[tuple[object, ...], tuple[list[Tensor], list[int], list[Prepared]]] = {}

    def prepared(
        self, engine: str, layer: int, tensors: Sequence[Tensor], make: Callable[[], list[Prepared]]
    ) -> list[Prepared]:
        """Those of these tensors. If a tensor was replaced, or its memory has moved, they are made again."""
        key, places = (threading.get_ident(), engine, layer), [t.data_ptr() for t in tensors]
        found = self.found.get(key)
        if found is None or found[1] != places or not all(a is b for a, b in zip(found[0], tensors, strict=True)):
            found = self.found[key] = list(tensors), places, make()
        return found[2]

    def __deepcopy__(self, memo: object) -> None:
        """A copy of the model is not in the block."""
        return

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


def is_in_a_block(module: nn.Module) -> bool:
    held: Held | None = module.__dict__.get("_plait_held")
    return held is not None and held.is_open


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """A block in which the weights of a model do not change: they are packed for the kernels once, not at each call.

        with plait.packed(model), torch.no_grad():
            for x in steps:
                y, state = model(x, state)

    You promise that. If a weight changes within the block, the layer may use the old one until the block ends. If
    another tensor takes the place of a weight (functional_call, load_state_dict(assign=True)), the layer uses it. When
    the block ends, the packed weights are dropped.

    A parametrized weight is computed at each call, and so packed at each call; with torch's
    `torch.nn.utils.parametrize.cached()` around the block it is computed and packed once.
    """
    mine = [m for m in model.modules() if hasattr(m, "_plait_held") and not is_in_a_block(m)]
    held = [Held() for _ in mine]
    try:
        for module, some in zip(mine, held, strict=True):
            module.__dict__["_plait_held"] = some
        yield
    finally:
        for module, some in zip(mine, held, strict=True):
            some.is_open = False
            module.__dict__.pop("_plait_held", None)
