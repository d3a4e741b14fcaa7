"""A block in which the weights do not change: they are packed for the kernels once."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from ..engines import Prepared


class Block:
    """The prepared weights of a layer, until the block ends. Every Python thread has its own."""

    def __init__(self) -> None:
        self.is_open = True
        self.found: dict[tuple[object, ...], tuple[list[Tensor], list[object], list[Prepared]]] = {}

    def prepared(
        self, name: tuple[object, ...], tensors: Sequence[Tensor], make: Callable[[], list[Prepared]]
    ) -> list[Prepared]:
        """Those of these tensors, by the name of their layers. If one has other memory, or another shape, type or
        strides, they are made again.

        The tensors are kept, so no other one can get their memory. Their identity does not matter: backward may be
        given others that share it.
        """
        key = threading.get_ident(), *name
        kinds: list[object] = [(t.data_ptr(), t.shape, t.stride(), t.dtype, t.is_neg()) for t in tensors]
        found = self.found.get(key)
        if found is None or found[1] != kinds:
            found = self.found[key] = list(tensors), kinds, make()
        return found[2]

    def close(self) -> None:
        """Drops the prepared weights. A graph that was made in the block may outlive it, and still has this object."""
        self.is_open = False
        self.found.clear()

    def __deepcopy__(self, memo: object) -> None:
        """A copy of the model is not in the block."""
        return

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


def is_in_a_block(module: nn.Module) -> bool:
    block: Block | None = module.__dict__.get("_plait_block")
    return block is not None and block.is_open


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """A block in which the weights of a model do not change: they are packed for the kernels once, not at each call.

        with plait.packed(model), torch.no_grad():
            for x in steps:
                y, state = model(x, state)

    You promise that no weight changes within the block. If one does, the layer may use the old numbers until the block
    ends. If another tensor takes the place of a weight (functional_call, load_state_dict(assign=True)), the layer uses
    it. When the block ends, the packed weights are dropped. Every Python thread packs its own. A model that
    torch.compile has compiled packs them at each call, in the block as well.

    A parametrized weight is computed at each call, and so packed at each call; with torch's
    `torch.nn.utils.parametrize.cached()` around the block it is computed and packed once.
    """
    mine = [m for m in model.modules() if hasattr(m, "_plait_block") and not is_in_a_block(m)]
    blocks = [Block() for _ in mine]
    try:
        for module, block in zip(mine, blocks, strict=True):
            module.__dict__["_plait_block"] = block
        yield
    finally:
        for module, block in zip(mine, blocks, strict=True):
            block.close()
            module.__dict__.pop("_plait_block", None)
            module.__dict__.pop("_plait_step", None)  # it may have packed weights
