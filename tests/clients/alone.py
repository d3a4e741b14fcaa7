"""The recurrent layers of a program by themselves: their calls in one step, recorded and run again."""

from collections.abc import Callable
from typing import Any

import torch
from program import mapped, recurrent
from torch import Tensor, nn


def tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    mapped(value, lambda tensor: found.append(tensor) or tensor)
    return found


class Call:
    """One call of a layer: its arguments, and the gradients that its outputs get."""

    def __init__(self, layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self.layer, self.leaves = layer, list[Tensor]()
        self.args, self.kwargs = mapped(list(args), self.leaf), {k: mapped(v, self.leaf) for k, v in kwargs.items()}
        self.grad, self.training = torch.is_grad_enabled(), layer.training
        self.gradients: dict[int, Tensor] = {}  # by the output's place

    def leaf(self, tensor: Tensor) -> Tensor:
        found = tensor.detach().requires_grad_(tensor.requires_grad)
        if tensor.requires_grad:
            self.leaves.append(found)
        return found

    def watch(self, outputs: Any) -> None:
        for k, tensor in enumerate(tensors(outputs)):
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient, k=k: self.receive(k, gradient))

    def receive(self, k: int, gradient: Tensor | None) -> None:
        if gradient is not None:  # plait's backward pass is told which outputs have none
            self.gradients[k] = gradient

    def again(self) -> list[tuple[Tensor, Tensor]]:
        """-> outputs and their gradients"""
        with torch.set_grad_enabled(self.grad):
            self.layer.train(self.training)
            outputs = tensors(self.layer(*self.args, **self.kwargs))
        return [(outputs[k], gradient) for k, gradient in self.gradients.items()]


class Alone:
    """All calls of one step. Forward passes run in their order, then one backward pass runs through all of them.

    A state that one call hands to the next is a leaf here, so the backward pass is not a chain; its work is the same.
    """

    def __init__(self, model: nn.Module, step: Callable[[], Any]) -> None:
        self.calls, self.layers = list[Call](), recurrent(model)
        hooks = []
        for layer in self.layers:
            hooks += [
                layer.register_forward_pre_hook(self.enter, with_kwargs=True),
                layer.register_forward_hook(lambda layer, args, outputs: self.calls[-1].watch(outputs)),
            ]
        step()
        for hook in hooks:
            hook.remove()

    def enter(self, layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self.calls.append(Call(layer, args, kwargs))

    def __call__(self) -> None:
        modes = [layer.training for layer in self.layers]
        for layer in self.layers:
            layer.zero_grad(set_to_none=True)
        for call in self.calls:
            for leaf in call.leaves:
                leaf.grad = None
        if pairs := [pair for call in self.calls for pair in call.again()]:
            torch.autograd.backward(*map(list, zip(*pairs, strict=True)))
        for layer, mode in zip(self.layers, modes, strict=True):
            layer.train(mode)
