"""The command line: what can be asked. What is then done stands in commands.py, imported when it is needed."""

import inspect
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from . import __version__, bench
from .errors import PlaitError
from .sentences import UsageError, one_line, said, usage
from .tasks.settings import ForecastSettings, LanguageSettings
from .training.settings import TrainSettings, check_seed

HELP = "Recurrent networks inside PyTorch: layers to drop in, engines to choose from, training from here."
manner: dict[str, Any] = {"no_args_is_help": True, "pretty_exceptions_enable": False, "add_completion": False}
app = typer.Typer(help=HELP, **manner)
train_app = typer.Typer(help="Train a network; leaves a run folder.", **manner)
bench_app = typer.Typer(help="Measure, and print what was measured.", **manner)
app.add_typer(train_app, name="train")
app.add_typer(bench_app, name="bench")

Run = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Threads = Annotated[int | None, typer.Option(help="Threads for torch.  (default: torch's choice)")]
Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the result there too; - prints only it.")
]
Out = Annotated[str | None, typer.Option(help="The run folder to make.  (default: runs/TASK-N)")]
Resume = Annotated[str | None, typer.Option(metavar="RUN", help="Go on with this run, with its own settings.")]


def main() -> None:
    """The sentence and exit code 2 for what the user can mend; a traceback for what only we can."""
    if isinstance(sys.stdout, TextIOWrapper):  # a name or a word that the terminal cannot show is no reason to fail
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app(standalone_mode=False, prog_name="plait")
    except typer.Abort:
        code = 130
    except (UsageError, PlaitError, MemoryError, RuntimeError, OverflowError, OSError) as e:
        if type(e).__name__ == "NoArgsIsHelpError":
            print(e, end="")  # the help, unless typer has printed it
            sys.exit(2)
        sentence = usage(e, sys.argv[1:], typer.main.get_command(app)) if isinstance(e, UsageError) else said(e)
        if sentence is None:
            raise
        print(f"plait: {one_line(sentence)}", file=sys.stderr)
        code = 2
    sys.exit(code)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def make_option(name: str, kind: Any, default: Any, text: str, metavar: str | None = None) -> inspect.Parameter:
    about = typer.Option(f"--{name.replace('_', '-')}", help=text, metavar=metavar)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, about])


def with_options(
    made: Sequence[inspect.Parameter], *, first: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command these options, behind its own, or before them. It takes them as **options."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        every = [*made, *own] if first else [*own, *made]
        command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in every}
        return command

    return decorate


def add_task(name: str, kind: type[TrainSettings], about: str) -> None:
    options = [make_option(f.name, f.type, f.default, f.metadata["help"]) for f in kind.options()]

    @train_app.command(name, help=about)
    @with_options(options)
    def train(
        ctx: typer.Context,
        out: Out = None,
        resume: Resume = None,
        threads: Threads = None,
        json: Json = None,
        **settings: Any,
    ) -> None:
        from . import commands

        given = {name for name in settings if ctx.get_parameter_source(name).name == "COMMANDLINE"}  # type: ignore[union-attr]
        commands.train_task(name, settings, given, out, resume, commands.Output(json), threads)


add_task(
    "forecast",
    ForecastSettings,
    "Train a network to forecast a series of numbers: the airline passengers, or a column of a CSV file.",
)
add_task("language", LanguageSettings, "Train a network to predict the next word, or character, of a text.")


@app.command()
def forecast(
    run: Run,
    steps: Annotated[int, typer.Option(help="How many steps ahead.")] = 12,
    data: Annotated[str | None, typer.Option(help="Forecast from this CSV file, not from the run's own data.")] = None,
    picture: Annotated[str | None, typer.Option(help="Where to draw it.  (default: RUN/future.png)")] = None,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """Print and draw what comes next."""
    from . import commands

    commands.forecast(run, steps, data, picture, commands.Output(json), threads)


@app.command()
def generate(
    run: Run,
    prompt: Annotated[str, typer.Option(help="How the text begins.")] = "",
    length: Annotated[int, typer.Option(help="How many words, or characters, to write.")] = 100,
    temperature: Annotated[float, typer.Option(help="Below 1 safer, above 1 wilder; 0 takes the likeliest.")] = 0.8,
    top: Annotated[int, typer.Option(help="Draw from so many of the likeliest only; 0 from all.")] = 0,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """Let a language model go on with a text."""
    from . import commands

    options = {"length": length, "temperature": temperature, "top": top}
    commands.generate(run, prompt, commands.Output(json), threads, seed, **options)


@app.command()
def evaluate(run: Run, threads: Threads = None, json: Json = None) -> None:
    """How good is a run on data it was not trained on?"""
    from . import commands

    commands.evaluate(run, commands.Output(json), threads)


@app.command()
def engines(json: Json = None) -> None:
    """What can run a recurrence here, and why not what cannot."""
    from . import commands

    commands.list_engines(commands.Output(json))


@app.command()
def equations(
    cell: Annotated[str, typer.Argument(help="rnn, rnn_relu, lstm, gru or implicit_gru.")],
    dt: Annotated[float, typer.Option(help="Length of the step.")] = 1,
    json: Json = None,
) -> None:
    """Print a cell's step and the derivative that was traced from it."""
    from . import commands

    commands.equations(cell, dt, commands.Output(json))


@app.command()
def check(seed: Seed = 0, threads: Threads = None, json: Json = None) -> None:
    """Compare everything that computes with something slower, on this machine."""
    from . import commands

    check_seed(seed)
    raise typer.Exit(commands.check(seed, commands.Output(json), threads))


def add_question(name: str) -> None:
    about, signature = bench.asked(name)
    options = []
    for p in signature.parameters.values():
        text, *metavar = p.annotation.__metadata__
        options.append(make_option(p.name, p.annotation.__origin__, p.default, text, *metavar))

    @bench_app.command(name, help=about)
    @with_options(options, first=True)
    def measure(*, threads: Threads = None, json: Json = None, **options: Any) -> None:
        from . import commands

        commands.bench(name, commands.Output(json), threads, **options)


for name in bench.QUESTIONS:
    add_question(name)
