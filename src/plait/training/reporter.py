"""What a person sees while a network trains: a bar on a terminal, plain lines anywhere else."""

import time
from collections.abc import Callable
from typing import Any

from rich import progress as rich
from rich.console import Console

REFRESH = 0.1  # seconds between two updates of the bar
SILENCE = 10.0  # seconds after which a log gets a line though no epoch has ended

KNOWN = {"epoch", "loss", "validation", "lr", "seconds", "rate"}  # a task may add figures

Shown = Callable[[float], str]


class Reporter:
    """Without a console it is silent."""

    console: Console | None = None

    def say(self, text: str) -> None:  # before the start
        if self.console is not None:
            self.console.print(text)

    def start(self, done: int, total: int, epochs: int) -> None: ...
    def step(self, epoch: int, loss: float, rate: float) -> None: ...
    def epoch(self, row: dict[str, Any]) -> None: ...
    def stop(self) -> None: ...


class Bar(Reporter):
    def __init__(self, console: Console, unit: str, shown: Shown) -> None:
        self.shown_as, self.console = shown, console
        columns = "epoch {task.fields[epoch]}", "{task.fields[loss]}", "{task.fields[rate]} " + unit + "/s"
        texts = [rich.TextColumn(text) for text in columns]
        middle, left = rich.BarColumn(bar_width=None), rich.TimeRemainingColumn()
        self.bar = rich.Progress(texts[0], middle, *texts[1:], left, console=console)
        self.steps, self.shown = 0, 0.0

    def start(self, done: int, total: int, epochs: int) -> None:
        self.epochs = epochs
        self.task = self.bar.add_task("", total=total, completed=done, epoch="-", loss="-", rate="-")
        self.bar.start()

    def step(self, epoch: int, loss: float, rate: float) -> None:
        self.steps += 1
        now = time.monotonic()
        if now - self.shown >= REFRESH:
            at = f"{epoch}/{self.epochs}"
            self.bar.update(self.task, advance=self.steps, epoch=at, loss=self.shown_as(loss), rate=f"{rate:,.0f}")
            self.steps, self.shown = 0, now

    def stop(self) -> None:
        self.bar.update(self.task, advance=self.steps)
        self.bar.stop()


class Lines(Reporter):
    """About ten lines, and more only where an epoch takes long."""

    def __init__(self, console: Console, unit: str, shown: Shown) -> None:
        self.console, self.unit, self.shown_as = console, unit, shown

    def start(self, done: int, total: int, epochs: int) -> None:
        self.began = self.shown = time.monotonic()
        self.done, self.total, self.epochs, self.steps = done, total, epochs, 0

    def step(self, epoch: int, loss: float, rate: float) -> None:
        self.steps += 1
        if time.monotonic() - self.shown >= SILENCE:
            self.print(f"epoch {epoch}/{self.epochs}  {self.shown_as(loss)}", rate)

    def epoch(self, row: dict[str, Any]) -> None:
        if row["epoch"] % max(1, self.epochs // 10) == 0 or row["epoch"] == self.epochs:
            validation = ""
            if row["validation"] is not None:
                validation = f"  validation {self.shown_as(row['validation']).split()[-1]}"
            for name in [name for name in row if name not in KNOWN]:
                validation += f", {name} {row[name]:.0%}" if name == "parallel" else f", {name} {row[name]:.3f}"
            self.print(f"epoch {row['epoch']}/{self.epochs}  {self.shown_as(row['loss'])}{validation}", row["rate"])

    def print(self, text: str, rate: float) -> None:
        self.shown = time.monotonic()
        left = (self.shown - self.began) / max(1, self.steps) * (self.total - self.done - self.steps)
        self.say(f"{text}  {rate:,.0f} {self.unit}/s  {left:.0f} s left")


class Told(Reporter):
    """Shows what another one shows, and tells a function of every epoch."""

    def __init__(self, shown: Reporter, tell: Callable[[dict[str, Any]], None]) -> None:
        self.shown, self.tell = shown, tell
        self.say, self.start, self.step, self.stop = shown.say, shown.start, shown.step, shown.stop  # type: ignore[method-assign]

    def epoch(self, row: dict[str, Any]) -> None:
        self.shown.epoch(row)
        self.tell(dict(row))


def reporter(console: Console, unit: str, shown: Shown = "loss {:.4g}".format) -> Reporter:
    """`unit`: what the rate counts. `shown`: a loss in words."""
    kind = Bar if console.is_terminal and not console.is_dumb_terminal else Lines
    return kind(console, unit, shown)
