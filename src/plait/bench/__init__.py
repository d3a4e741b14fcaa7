"""One file for each question, with one function `measure`. Its parameters are the options of `plait bench`.

An option stands once, in the signature of `measure`: its name, its type with the sentence for --help, its default.
"""

import ast
import inspect
from pathlib import Path

from . import options

QUESTIONS = (
    *("loop", "layers", "batch", "phases", "schedule", "functions", "ragged", "bucketing", "language", "ranks"),
    *("classify", "time", "ladder", "peers", "public", "cuda"),
)


def asked(name: str) -> tuple[str, inspect.Signature]:
    """What a file asks (the first paragraph of its docstring), and the signature of its `measure`.

    Both are read from the text of the file. To import it would import torch, which takes seconds, and --help must not.
    The `def` is run, with the names of options.py, but never called.
    """
    tree = ast.parse(Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8"))
    (measure,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "measure")
    measure.returns = None  # a Report, which comes with torch
    scope = dict(vars(options))
    exec(compile(ast.Module([measure], []), name, "exec"), scope)
    return (ast.get_docstring(tree) or "").split("\n\n")[0], inspect.signature(scope["measure"])
