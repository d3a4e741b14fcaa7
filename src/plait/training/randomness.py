"""The states of all random generators that torch, NumPy and Python share within a process."""

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


def cuda_states() -> list[Tensor]:
    return list(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else []


def numpy_state() -> dict[str, Any]:
    state: dict[str, Any] = dict(np.random.get_state(legacy=False))
    return {**state, "state": {**state["state"], "key": state["state"]["key"].tolist()}}


def device_states() -> dict[str, Tensor]:
    return {"cpu": torch.get_rng_state()} | {f"cuda:{k}": state for k, state in enumerate(cuda_states())}


def restore(devices: Mapping[str, Tensor], python: list[Any], numpy: dict[str, Any]) -> None:
    version, numbers, gauss = python
    try:
        random.setstate((version, tuple(numbers), gauss))
        numpy["state"]["key"] = np.array(numpy["state"]["key"], dtype=np.uint32)
        np.random.set_state(numpy)
        torch.set_rng_state(devices["cpu"])
        for k, _ in enumerate(cuda_states()):
            if f"cuda:{k}" in devices:
                torch.cuda.set_rng_state(devices[f"cuda:{k}"], k)
    except (OverflowError, RuntimeError) as e:  # numbers out of their range, or too few of them
        raise ValueError(f"its random state cannot be used: {e}") from None


def as_tensors() -> dict[str, Tensor]:
    """All of them; `from_tensors` brings them back."""
    text = json.dumps([random.getstate(), numpy_state()]).encode()
    return device_states() | {"others": torch.frombuffer(bytearray(text), dtype=torch.uint8)}


def from_tensors(found: Mapping[str, Tensor]) -> None:
    restore(found, *json.loads(found["others"].numpy().tobytes()))


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


class Stream:
    """Random numbers of its own: within `used` they go on where they were left, whatever is drawn outside."""

    def __init__(self) -> None:
        self.left: dict[str, Tensor] | None = None

    @contextmanager
    def used(self) -> Iterator[None]:
        outside = as_tensors()
        if self.left is not None:
            from_tensors(self.left)
        try:
            yield
        finally:
            self.left = as_tensors()
            from_tensors(outside)
