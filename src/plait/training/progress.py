"""What a person sees while a network trains: a bar on a terminal, plain lines anywhere else."""

import time
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

INTERVAL = 0.1  # seconds between two looks at the bar: a step of a small model takes a hundredth of that


class Reporter(Protocol):
    def start(self, done: int, total: int) -> None: ...
    def step(self, loss: float, rate: float) -> None: ...
    def epoch(self, row: dict[str, Any], epochs: int) -> None: ...
    def stop(self) -> None: ...


class Bar:
    def __init__(self, console: Console, unit: str) -> None:
        columns = "{task.fields[epoch]}", "loss {task.fields[loss]}", "{task.fields[rate]} " + unit + "/s"
        texts = [TextColumn(text) for text in columns]
        self.bar = Progress(texts[0], BarColumn(bar_width=None), *texts[1:], TimeRemainingColumn(), console=console)
        self.steps, self.shown = 0, 0.0

    def start(self, done: int, total: int) -> None:
        self.task = self.bar.add_task("", total=total, completed=done, epoch="", loss="-", rate="-")
        self.bar.start()

    def step(self, loss: float, rate: float) -> None:
        self.steps += 1
        now = time.monotonic()
        if now - self.shown >= INTERVAL:
            self.bar.update(self.task, advance=self.steps, loss=f"{loss:.4g}", rate=f"{rate:,.0f}")
            self.steps, self.shown = 0, now

    def epoch(self, row: dict[str, Any], epochs: int) -> None:
        self.bar.update(self.task, epoch=f"epoch {row['epoch']}/{epochs}")

    def stop(self) -> None:
        self.bar.update(self.task, advance=self.steps)
        self.bar.stop()


class Lines:
    """About ten lines, whatever the number of epochs."""

    def __init__(self, console: Console, unit: str) -> None:
        self.console, self.unit = console, unit

    def start(self, done: int, total: int) -> None:
        self.began, self.done, self.total, self.steps = time.monotonic(), done, total, 0

    def step(self, loss: float, rate: float) -> None:
        self.steps += 1

    def epoch(self, row: dict[str, Any], epochs: int) -> None:
        if row["epoch"] % max(1, epochs // 10) and row["epoch"] != epochs:
            return
        left = (time.monotonic() - self.began) / max(1, self.steps) * (self.total - self.done - self.steps)
        validation = "" if row["validation"] is None else f"  validation {row['validation']:.4g}"
        self.console.print(
            f"epoch {row['epoch']}/{epochs}  loss {row['loss']:.4g}{validation}"
            f"  {row['rate']:,.0f} {self.unit}/s  {left:.0f} s left"
        )

    def stop(self) -> None:
        self.steps = 0


class Silent:
    def start(self, done: int, total: int) -> None: ...
    def step(self, loss: float, rate: float) -> None: ...
    def epoch(self, row: dict[str, Any], epochs: int) -> None: ...
    def stop(self) -> None: ...


def reporter(console: Console, unit: str) -> Reporter:
    return Bar(console, unit) if console.is_terminal else Lines(console, unit)
