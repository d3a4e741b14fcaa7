"""Tensors in a file, with a checksum over all that the file says."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from ..errors import PlaitError
from .files import read_plain

FORMAT = "plait-1"  # one entry: the order of several is not fixed


def dumps(tensors: dict[str, Tensor], meta: dict[str, Any]) -> bytes:
    contiguous, seen = {}, set[int]()
    for name, tensor in tensors.items():
        t = tensor.detach().contiguous()
        place = t.untyped_storage().data_ptr()
        contiguous[name] = t.clone() if place in seen else t  # the format has no tensors that share memory
        seen.add(place)
    text = json.dumps(meta)
    return to_bytes(contiguous, {FORMAT: f"{checksum(contiguous, text)} {text}"})


def loads(path: Path, content: bytes | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if content is None:
        content = read_plain(path)  # not mapped: the file may change after the check
    try:
        try:
            tensors = from_bytes(content)
        except KeyError as e:
            raise ValueError(f"dtype {e} is not known") from None
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        about = header.get("__metadata__", {})
        if FORMAT not in about:
            raise PlaitError(f"{path} is not a checkpoint of plait: it was written by something else.")
        found, _, text = about[FORMAT].partition(" ")
        if found != checksum(tensors, text):
            raise ValueError("its checksum does not fit")
        meta = json.loads(text)
        if not isinstance(meta, dict):
            raise ValueError("its text is no JSON object")
        return tensors, meta
    except PlaitError:
        raise
    except (SafetensorError, ValueError, RecursionError) as e:
        raise PlaitError(f"{path} is truncated or damaged ({e}): restore it from a copy, or train again.") from None


def checksum(tensors: dict[str, Tensor], text: str) -> str:
    found = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.flatten().view(torch.uint8).cpu().numpy().data)
    return found.hexdigest()


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}


def load_weights(model: torch.nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    try:
        model.load_state_dict(weights)
    except RuntimeError as e:
        raise PlaitError(
            f"{path} does not fit the model of its config.json: {str(e).splitlines()[-1].strip()}"
        ) from None
