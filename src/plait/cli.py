"""The command line: what can be asked. What is then done stands in commands.py, imported when it is needed."""

import inspect
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from . import __version__
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
Repeats = Annotated[int, typer.Option(help="Measurements of each contender, at least 5.")]
Cells = Annotated[str, typer.Option(help="Of lstm, gru and rnn, with commas.")]
Engine = Annotated[str, typer.Option(help="What runs plait's layers; see `plait engines`.")]
SHAPES = "B,T,I,H,layers: batch, steps, inputs, units, layers; several with spaces."
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


def with_settings(kind: type[TrainSettings]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command one option for every setting, with the sentence that stands beside the setting."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        made = []
        for f in kind.options():
            about = typer.Option(f"--{f.name.replace('_', '-')}", help=f.metadata["help"])
            made.append(
                inspect.Parameter(
                    f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=Annotated[f.type, about]
                )
            )
        command.__signature__ = inspect.Signature([*own, *made])  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in (*own, *made)}
        return command

    return decorate


def add_task(name: str, kind: type[TrainSettings], about: str) -> None:
    @train_app.command(name, help=about)
    @with_settings(kind)
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


@bench_app.command("loop")
def bench_loop(
    steps: Annotated[int, typer.Option(help="Steps in one measurement.")] = 400,
    repeats: Repeats = 9,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """What does the training loop cost a step, beyond forward, backward and optimizer?"""
    from . import commands

    commands.bench("loop", commands.Output(json), threads, steps=steps, repeats=repeats, seed=seed)


@bench_app.command("layers")
def bench_layers(
    shapes: Annotated[str | None, typer.Option(help=f"{SHAPES}  (default: ten from small to large)")] = None,
    cells: Cells = "lstm,gru,rnn",
    random: Annotated[int | None, typer.Option(metavar="N", help="Draw so many shapes, and print the worst.")] = None,
    engine: Engine = "auto",
    input_gradient: Annotated[bool, typer.Option("--input-gradient", help="The gradient of the input, too.")] = False,
    repeats: Repeats = 9,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """How much faster is a training step of plait's layers than of torch.nn's?"""
    from . import commands

    options = {"shapes": shapes, "cells": cells, "random": random, "engine": engine, "input_gradient": input_gradient}
    commands.bench("layers", commands.Output(json), threads, **options, repeats=repeats, seed=seed)


@bench_app.command("batch")
def bench_batch(
    size: Annotated[int, typer.Option(help="Units, and inputs, while the batch grows.")] = 256,
    cell: Annotated[str, typer.Option(help="lstm, gru or rnn.")] = "rnn",
    engine: Engine = "auto",
    repeats: Repeats = 9,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """What does a training step cost, by the size of the batch and by the size of the layer?"""
    from . import commands

    options = {"size": size, "cell": cell, "engine": engine}
    commands.bench("batch", commands.Output(json), threads, **options, repeats=repeats, seed=seed)


@bench_app.command("phases")
def bench_phases(
    shapes: Annotated[str, typer.Option(help=SHAPES)] = "32,128,64,64,1",
    cells: Cells = "lstm",
    repeats: Repeats = 9,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """Where does a training step of engine fused spend its time?"""
    from . import commands

    options = {"shapes": shapes, "cells": cells}
    commands.bench("phases", commands.Output(json), threads, **options, repeats=repeats, seed=seed)


@bench_app.command("schedule")
def bench_schedule(
    cell: Annotated[str, typer.Option(help="rnn, rnn_relu, lstm, gru or implicit_gru.")] = "rnn",
    batch: Annotated[int, typer.Option(help="Sequences.")] = 1000,
    size: Annotated[int, typer.Option(help="Inputs, and units.")] = 1000,
    steps: Annotated[int, typer.Option(help="Steps of a sequence.")] = 10,
    repeats: Repeats = 5,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """What does each decision about the loops buy? With the default sizes it takes 20 to 30 minutes."""
    from . import commands

    options = {"cell": cell, "batch": batch, "size": size, "steps": steps}
    commands.bench("schedule", commands.Output(json), threads, **options, repeats=repeats, seed=seed)


@bench_app.command("functions")
def bench_functions(
    bound: Annotated[float, typer.Option(help="From minus this to this.")] = 20.0,
    step: Annotated[int, typer.Option(help="Every so manieth float32.")] = 1,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """How exact are tanh and sigmoid in the float32 kernels? Every number of a range, in about two minutes."""
    from . import commands

    commands.bench("functions", commands.Output(json), threads, bound=bound, step=step)


Text = Annotated[str | None, typer.Option(help="A text file, a folder or a zip, such as Penn Treebank's.")]


@bench_app.command("ragged")
def bench_ragged(
    data: Text = None,
    cells: Cells = "lstm,gru",
    batch: Annotated[int, typer.Option(help="Sentences in a batch.")] = 32,
    hidden: Annotated[int, typer.Option(help="Units, and inputs.")] = 200,
    draws: Annotated[int, typer.Option(help="Batches drawn, each measured by itself.")] = 5,
    repeats: Repeats = 9,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """What does a layer cost on sentences as they come, beside torch's padded and packed ones?"""
    from . import commands

    options = {"data": data, "cells": cells, "batch": batch, "hidden": hidden, "draws": draws}
    commands.bench("ragged", commands.Output(json), threads, **options, repeats=repeats, seed=seed)


@bench_app.command("bucketing")
def bench_bucketing(
    data: Text = None,
    layers: Annotated[str, typer.Option(help="Layers, with commas.")] = "8,2",
    hidden: Annotated[int, typer.Option(help="Units in a layer.")] = 400,
    embedding: Annotated[int, typer.Option(help="Numbers that stand for a word.")] = 200,
    batch: Annotated[int, typer.Option(help="Sentences in a batch.")] = 20,
    sentences: Annotated[int, typer.Option(help="Sentences that are trained on in one measurement.")] = 160,
    engine: Engine = "auto",
    picture: Annotated[str | None, typer.Option(metavar="FILE", help="Draw it there, as a PNG file.")] = None,
    repeats: Repeats = 5,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """What does padding cost, and how much of that do buckets and ragged batches save? Takes some minutes."""
    from . import commands

    options = {"data": data, "layers": layers, "hidden": hidden, "embedding": embedding, "batch": batch}
    options |= {"sentences": sentences, "engine": engine, "picture": picture}
    commands.bench("bucketing", commands.Output(json), threads, **options, repeats=repeats, seed=seed)


@bench_app.command("language")
def bench_language(
    data: Text = None,
    cell: Annotated[str, typer.Option(help="lstm, gru or rnn.")] = "lstm",
    hidden: Annotated[int, typer.Option(help="Units in a layer.")] = 200,
    layers: Annotated[int, typer.Option(help="Layers.")] = 2,
    batch: Annotated[int, typer.Option(help="Streams.")] = 20,
    steps: Annotated[int, typer.Option(help="Steps that gradients go back.")] = 20,
    softmax: Annotated[str, typer.Option(help="full or adaptive; of plait's task.")] = "full",
    count: Annotated[int, typer.Option(help="Training steps in one measurement.")] = 20,
    repeats: Repeats = 7,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """How many tokens a second does a language model train on, beside a script with torch's layers?"""
    from . import commands

    options = {"data": data, "cell": cell, "hidden": hidden, "layers": layers, "batch": batch, "steps": steps}
    options |= {"softmax": softmax, "count": count}
    commands.bench("language", commands.Output(json), threads, **options, repeats=repeats, seed=seed)
