"""Features of videos: the outputs of a ResNet for every frame, made once, and kept in the user's cache."""

import hashlib
import io
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data import video
from ..data.files import opened, reading
from ..data.sequences import RawSequences, Source
from ..data.video import Broken, Clip, Frames
from ..errors import PlaitError
from ..kernels.launch.cache import folder as cache_folder
from ..training.files import write_whole
from .memory import check_fits

HUB = {"resnet18": "microsoft/resnet-18", "resnet34": "microsoft/resnet-34", "resnet50": "microsoft/resnet-50"}
FILES = ("config.json", "model.safetensors", "preprocessor_config.json")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels
SIZE = 240  # pixels, as the third paper has it
AT_ONCE = 16  # frames
SILENCE = 10.0  # seconds after which a log gets a line
INSTALL = "install plait with the extra 'video': pip install 'plait[video]'"
Rows = NDArray[np.float32]  # (T, outputs)


class Wanted(NamedTuple):
    model: str  # one of HUB, or a folder
    frames: int
    pad: bool  # a shorter clip is filled up with black frames
    download: bool = False


class ResNet:
    def __init__(self, folder: Path) -> None:
        self.folder, self.contents = folder, dict[str, bytes]()
        with reading(str(folder), f"expected a folder with a ResNet of transformers: {' and '.join(FILES[:2])}"):
            for name in FILES:
                if name != FILES[2] or (folder / name).exists():
                    self.contents[name] = (folder / name).read_bytes()
        try:
            config, about = (json.loads(self.contents.get(name, b"{}")) for name in (FILES[0], FILES[2]))
            kind = config.get("model_type")
            self.mean = torch.tensor(about.get("image_mean", MEAN)).view(3, 1, 1)
            self.std = torch.tensor(about.get("image_std", STD)).view(3, 1, 1)
        except (ValueError, AttributeError, TypeError, RuntimeError) as e:
            raise PlaitError(f"{folder} has a JSON file that cannot be read ({e}): expected a ResNet's.") from None
        if kind != "resnet":
            raise PlaitError(f"{folder}/config.json has model_type {kind!r}: expected 'resnet'.")

    @cached_property
    def digest(self) -> str:
        return digest_of(*self.contents.values())

    @cached_property
    def network(self) -> Any:
        with without_noise() as transformers:
            try:
                network, info = transformers.ResNetForImageClassification.from_pretrained(
                    self.folder, local_files_only=True, use_safetensors=True, output_loading_info=True
                )
                network = network.float().eval()
                with torch.inference_mode():
                    trial = network(pixel_values=torch.zeros(1, 3, SIZE, SIZE)).logits
                if not trial.isfinite().all():
                    raise ValueError("it gives numbers that are not finite")
            except Exception as e:  # of many kinds: of safetensors, of torch, of transformers
                why = f"{type(e).__name__}: {str(e).splitlines()[0]:.100}"
                raise PlaitError(f"{self.folder} cannot be loaded as a ResNet ({why}): restore it.") from None
        lacking = sorted(info["missing_keys"])
        if lacking:
            raise PlaitError(f"{self.folder}/model.safetensors lacks {lacking[0]}: expected all weights of a ResNet.")
        return network

    @torch.inference_mode()
    def outputs(self, frames: Frames) -> Rows:
        found = []
        for some in torch.from_numpy(frames).split(AT_ONCE):
            pixels: Tensor = (some.permute(0, 3, 1, 2).float() / 255 - self.mean) / self.std
            found.append(self.network(pixel_values=pixels).logits)
        return torch.cat(found).float().numpy()


@contextmanager
def without_noise() -> Iterator[Any]:
    try:
        import transformers
        from transformers.utils import logging
    except ImportError:
        raise PlaitError(f"videos need transformers: {INSTALL}.") from None
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield transformers
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def find(wanted: Wanted) -> ResNet:
    """A ResNet in a folder, or one of the hub's, which is downloaded only on request."""
    if wanted.model not in HUB:
        if not Path(wanted.model).is_dir():
            raise PlaitError(f"features '{wanted.model}': expected a folder with a ResNet, or one of {', '.join(HUB)}.")
        return ResNet(Path(wanted.model))
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError:
        raise PlaitError(f"videos need transformers: {INSTALL}.") from None
    name = HUB[wanted.model]
    try:
        folder = snapshot_download(name, allow_patterns=list(FILES), local_files_only=not wanted.download)
    except LocalEntryNotFoundError:
        todo = "the hub cannot be reached" if wanted.download else "add --download to fetch it"
        raise PlaitError(
            f"{wanted.model} ({name}) is not on this machine: {todo}, or give --features a folder with a ResNet."
        ) from None
    except Exception as e:  # whatever a network, a proxy or a server can do
        raise PlaitError(f"{name} cannot be downloaded ({type(e).__name__}: {str(e).splitlines()[0]:.100}).") from None
    return ResNet(Path(folder))


class Cache:
    """Features by a key of the clip's bytes, the model and the settings."""

    def __init__(self, model: ResNet, wanted: Wanted) -> None:
        self.model, self.frames, self.folder = model, wanted.frames, cache_folder() / "features"
        with reading(str(self.folder), "expected a folder to keep features in; set PLAIT_CACHE to one"):
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)

    def rows(self, clip: Clip) -> Rows:
        with reading(str(clip.path), video.EXPECTED), opened(clip.path, video.EXPECTED) as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        return self.kept(content, lambda: video.frames_of(clip.path, self.frames, SIZE))

    @cached_property
    def black(self) -> Rows:  # (1, outputs)
        return self.kept("black", lambda: np.zeros((1, SIZE, SIZE, 3), np.uint8))

    def kept(self, content: str, frames: Any) -> Rows:
        key = digest_of(json.dumps([1, content, self.model.digest, self.frames, SIZE]).encode())
        file = self.folder / f"{key}.npy"
        try:
            found: Rows = np.load(io.BytesIO(file.read_bytes()), allow_pickle=False)
            if found.dtype == np.float32 and found.ndim == 2 and len(found):
                return found
        except (OSError, ValueError, EOFError):
            pass  # it is not there, or was damaged: it is made (again)
        made = self.model.outputs(frames())
        file_bytes = io.BytesIO()
        np.save(file_bytes, made, allow_pickle=False)
        write_whole(file, file_bytes.getvalue())
        return made


def read(clips: Sequence[Clip], name: str, wanted: Wanted, *, skip_broken: bool, labelled: bool = True) -> Source:
    try:
        import av  # noqa: F401
    except ImportError:
        raise PlaitError(f"videos need PyAV: {INSTALL}.") from None
    model = find(wanted)
    cache, found, broken = Cache(model, wanted), list[tuple[Clip, Rows]](), list[str]()
    for clip in watched(clips, f"features of {name}"):
        try:
            rows = cache.rows(clip)
        except Broken as e:
            if not skip_broken:
                raise PlaitError(f"{e} Mend it or take it away, or use --skip-broken.") from None
            broken.append(clip.name)
            continue
        if wanted.pad and len(rows) < wanted.frames:
            rows = np.concatenate([rows, np.repeat(cache.black, wanted.frames - len(rows), 0)])
        found.append((clip, rows))
        if len(found) == 1:
            check_fits(3 * len(clips) * rows.nbytes, f"features of {len(clips)} clips", "lower --frames, or use fewer")
    if broken:
        print(f"plait: skipped, as they cannot be read: {', '.join(broken)}", file=sys.stderr)
    if not found:
        raise PlaitError(f"{name} has no clip that can be read: {video.EXPECTED}.")
    parts = {}
    for part in ("train", "test"):
        mine = [(clip, rows) for clip, rows in found if clip.part == part]
        if mine:
            labels = [clip.label for clip, _ in mine] if labelled else None
            parts[part] = RawSequences([rows for _, rows in mine], labels, [clip.name for clip, _ in mine])  # type: ignore[misc]
    origin = f"{model.digest}, {wanted.frames} frames{', padded' * wanted.pad}"
    return Source(name, [str(k + 1) for k in range(found[0][1].shape[1])], parts, origin)


def watched(clips: Sequence[Clip], title: str) -> Iterator[Clip]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(clips, title, console=console, transient=True)
        return
    began = shown = time.monotonic()
    for k, clip in enumerate(clips):
        now = time.monotonic()
        if k and now - shown >= SILENCE:
            shown = now
            left = (now - began) / k * (len(clips) - k)
            print(f"{title}: {k:,} of {len(clips):,} clips, {left:.0f} s left", file=sys.stderr, flush=True)
        yield clip


def digest_of(*contents: bytes) -> str:
    found = hashlib.sha256()
    for content in contents:
        found.update(hashlib.sha256(content).digest())
    return found.hexdigest()
