"""Options: those that several commands have, and those that are made from settings and signatures."""

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

Run = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Threads = Annotated[int | None, typer.Option(help="Threads for torch.  (default: torch's choice)")]
Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the result there too; - prints only it.")
]
Out = Annotated[str | None, typer.Option(help="The run folder to make.  (default: runs/TASK-N)")]
Parallel = Annotated[
    str | None, typer.Option(help="Train with several processes: data=2, layers=2, time=2; see docs/ranks.md.")
]
MaxRestarts = Annotated[int, typer.Option(help="How often all processes start again after one has failed.")]
Timeout = Annotated[float, typer.Option(help="Seconds until a process that does not answer counts as lost.")]
Resume = Annotated[str | None, typer.Option(metavar="RUN", help="Go on with this run, with its own settings.")]


def make_option(name: str, kind: Any, default: Any, text: str, metavar: str | None = None) -> inspect.Parameter:
    about = typer.Option(f"--{name.replace('_', '-')}", help=text, metavar=metavar)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, about])


def with_options(
    made: Sequence[inspect.Parameter], *, first: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command these options, after its own or before them."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        every = [*made, *own] if first else [*own, *made]
        command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in every}
        return command

    return decorate
