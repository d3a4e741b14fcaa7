"""Every command and its options. What it does is imported when it is called: torch takes seconds, --help should not."""

from typing import Annotated, Any

import typer

from .. import __version__, bench
from ..tasks import TASKS
from ..training.settings import TrainSettings, check_seed
from .options import Json, MaxRestarts, Out, Parallel, Resume, Run, Seed, Threads, Timeout, make_option, with_options

HELP = "Recurrent networks inside PyTorch: layers to drop in, engines to choose from, training from here."
HOW: dict[str, Any] = {"no_args_is_help": True, "pretty_exceptions_enable": False, "add_completion": False}
app = typer.Typer(help=HELP, **HOW)
train_app = typer.Typer(help="Train a network, and write a run folder.", **HOW)
bench_app = typer.Typer(help="Measure, and print what was measured. Minutes in --help are of two idle cores.", **HOW)
app.add_typer(train_app, name="train")
app.add_typer(bench_app, name="bench")


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def add_task(name: str, kind: type[TrainSettings], about: str) -> None:
    options = [make_option(f.name, f.type, f.default, f.metadata["help"]) for f in kind.options()]

    @train_app.command(name, help=about)
    @with_options(options)
    def start(
        ctx: typer.Context,
        out: Out = None,
        resume: Resume = None,
        threads: Threads = None,
        json: Json = None,
        parallel: Parallel = None,
        max_restarts: MaxRestarts = 0,
        timeout: Timeout = 60.0,
        **settings: Any,
    ) -> None:
        from .train import TrainArguments, train_task

        given = {name for name in settings if ctx.get_parameter_source(name).name == "COMMANDLINE"}  # type: ignore[union-attr]
        asked = TrainArguments(name, settings, given, out, resume, threads, parallel, timeout, max_restarts, json)
        raise typer.Exit(train_task(asked))


for task, known in TASKS.items():
    add_task(task, known.kind, known.about)


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
    from . import use
    from .output import Output

    output = Output(json, (run, data), picture=picture or f"{run}/future.png")
    use.forecast(run, steps, data, picture, output, threads)


@app.command()
def generate(
    run: Run,
    prompt: Annotated[str, typer.Option(help="How the text begins.")] = "",
    length: Annotated[int, typer.Option(help="How many words, or characters, to write.")] = 100,
    temperature: Annotated[float, typer.Option(help="Below 1 safer, above 1 wilder; 0 takes the likeliest.")] = 0.8,
    top: Annotated[int, typer.Option(help="Draw only from this many of the likeliest; 0 draws from all.")] = 0,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """Let a language model go on with a text."""
    from . import use
    from .output import Output

    options = {"length": length, "temperature": temperature, "top": top}
    use.generate(run, prompt, Output(json, (run,)), threads, seed, **options)


@app.command()
def classify(
    run: Run,
    data: Annotated[str, typer.Argument(metavar="FILE", help="New sequences, of the kind that it was trained with.")],
    out: Annotated[str | None, typer.Option(help="Write all probabilities there, as a CSV file.")] = None,
    missing: Annotated[str | None, typer.Option(help="error or interpolate.  (default: as in training)")] = None,
    features: Annotated[str | None, typer.Option(help="The ResNet for videos, if it is elsewhere now.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch that ResNet from the hub.")] = False,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out videos that cannot be read.")] = False,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """Name the class of new sequences."""
    from . import use
    from .output import Output

    given = {"missing": missing, "features": features, "download": download, "skip_broken": skip_broken}
    output = Output(json, (run, data), out=out)
    use.classify(run, data, out, {k: v for k, v in given.items() if v}, output, threads)


@app.command()
def evaluate(run: Run, threads: Threads = None, json: Json = None) -> None:
    """How good is a run on data it was not trained on?"""
    from . import use
    from .output import Output

    use.evaluate(run, Output(json, (run,)), threads)


@app.command()
def engines(json: Json = None) -> None:
    """What can run a recurrence here, and why not what cannot."""
    from . import diagnose
    from .output import Output

    diagnose.list_engines(Output(json))


@app.command()
def equations(
    cell: Annotated[str, typer.Argument(help="rnn, rnn_relu, lstm, gru, implicit_gru, or yours: FILE.py:CLASS.")],
    dt: Annotated[float, typer.Option(help="Length of the step.")] = 1,
    json: Json = None,
) -> None:
    """Print a cell's step and the derivative that was traced from it."""
    from . import diagnose
    from .output import Output

    diagnose.equations(cell, dt, Output(json, (cell.rpartition(":")[0],)))


@app.command()
def check(seed: Seed = 0, threads: Threads = None, json: Json = None) -> None:
    """Compare everything that computes with something slower, on this machine."""
    from . import diagnose
    from .output import Output

    check_seed(seed)
    raise typer.Exit(diagnose.climb(seed, Output(json), threads))


def add_question(name: str) -> None:
    listed = bench.QUESTIONS[name].listed()
    options = [make_option(f.name, f.type, f.default, f.metadata["help"], f.metadata["metavar"]) for f in listed]

    @bench_app.command(name, help=bench.about(name))
    @with_options(options, first=True)
    def measure(*, threads: Threads = None, json: Json = None, **options: Any) -> None:
        from . import diagnose
        from .output import Output

        output = Output(json, (options.get("data"),), picture=options.get("picture"))
        diagnose.bench(name, output, threads, **options)


for name in bench.QUESTIONS:
    add_question(name)
