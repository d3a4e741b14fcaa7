"""Draws rotate.png: an image of the test as several runs turn it. python docs/rotate.py RUN RUN RUN"""

import sys
from pathlib import Path

import torch

from plait.tasks.pictures import turning_picture
from plait.tasks.rotate import Rotate
from plait.tasks.runs import trained


@torch.no_grad()
def draw(path: Path, runs: list[str]) -> None:
    rows = {}
    for run in runs:
        _, task = trained(run, Rotate)
        _, x, y = task.some("test", slice(0, 1))
        rows |= {"input": x, name_of(task): task.model.eval()(x), "truth": y}
    rows["truth"] = rows.pop("truth")  # the last row
    title = f"{task.data.name}, {task.settings.cell}, {task.settings.hidden} units"
    shaped = {name: task.shaped(found[:, 0]) for name, found in rows.items()}
    path.write_bytes(turning_picture(title, shaped, task.settings.degrees))


def name_of(task: Rotate) -> str:
    s = task.settings
    return "Adam" if s.optimizer == "adam" else "momentum" if s.momentum else "plain"


if __name__ == "__main__":
    draw(Path(__file__).with_name("rotate.png"), sys.argv[1:])
