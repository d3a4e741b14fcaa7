"""Videos: a folder with a folder for each class, HMDB51's files that say which clips are for the test, and frames."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import PlaitError
from .files import contents, decoded, reading

SUFFIXES = (".avi", ".mp4", ".mkv", ".mov", ".webm", ".mpg", ".mpeg", ".m4v", ".wmv")
EXPECTED = f"expected folders, one for each class, with videos ({', '.join(SUFFIXES)})"
TRAIN, TEST = "1", "2"  # as HMDB51's files have it; 0 is left out
Frames = NDArray[np.uint8]  # (T, height, width, 3)


class Clip(NamedTuple):
    path: Path
    label: str  # the name of its folder
    part: str = "train"

    @property
    def name(self) -> str:
        return f"{self.label}/{self.path.name}" if self.label else self.path.name


class Broken(PlaitError):
    """A clip that cannot be read."""


def is_video(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()


def holds_videos(path: Path) -> bool:
    if path.is_dir():
        return any(is_video(p) for pattern in ("*", "*/*") for p in path.glob(pattern))
    return path.suffix.lower() in SUFFIXES


def by_class(folder: Path) -> list[Clip]:
    with reading(str(folder), EXPECTED):
        clips = in_folders(folder)
        if not clips:
            loose = sum(is_video(p) for p in folder.iterdir())
            found = f"{loose} videos that are in no folder" if loose else "no videos"
            raise PlaitError(f"{folder} has {found}: {EXPECTED}.")
    return clips


def all_in(path: Path) -> list[Clip]:
    """A video, or all in a folder and its folders."""
    with reading(str(path), EXPECTED):
        if not path.is_dir():
            return [Clip(path, "")]
        loose = [Clip(p, "") for p in sorted(path.iterdir()) if is_video(p)]
        return loose + in_folders(path)


def in_folders(folder: Path) -> list[Clip]:
    folders = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    return [Clip(p, f.name) for f in folders for p in sorted(f.iterdir()) if is_video(p)]


def with_parts(clips: Sequence[Clip], splits: str, number: int) -> list[Clip]:
    """HMDB51's files CLASS_test_splitN.txt, with lines CLIP 1 (train), 2 (test) or 0."""
    folder, found = Path(splits), list[Clip]()
    for label in dict.fromkeys(clip.label for clip in clips):
        file = folder / f"{label}_test_split{number}.txt"
        expected = f"expected a file for each class, such as {label}_test_split{number}.txt"
        with reading(str(file), expected):
            text = decoded(contents(file, expected, 2**24), file)
        marks = dict[str, str]()
        for k, line in enumerate(text.split("\n"), 1):
            if words := line.split():
                if len(words) != 2 or words[1] not in ("0", TRAIN, TEST):
                    raise PlaitError(f"{file}, line {k}: '{line:.60}'; expected the name of a clip, and 0, 1 or 2.")
                marks[words[0]] = words[1]
        here = [clip for clip in clips if clip.label == label]
        if missing := sorted(marks.keys() - {clip.path.name for clip in here}):
            raise PlaitError(f"{file} names {missing[0]}, which is not in the folder {label}: expected all of them.")
        for clip in here:
            if marks.get(clip.path.name) in (TRAIN, TEST):
                found.append(clip._replace(part="test" if marks[clip.path.name] == TEST else "train"))
    return found


def frames_of(path: Path, most: int, size: int) -> Frames:
    import av  # an extra

    found = []
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise Broken(f"{path} has no picture stream: expected a video.")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for frame in container.decode(stream):
                found.append(frame.reformat(width=size, height=size, format="rgb24").to_ndarray())
                if len(found) == most:
                    break
    except av.error.FFmpegError as e:
        why = f"after {len(found)} frames" if found else "from its beginning on"
        raise Broken(f"{path} cannot be read as a video ({getattr(e, 'strerror', None) or e}, {why}).") from None
    if not found:
        raise Broken(f"{path} has no frames: expected one or more.")
    return np.stack(found)
