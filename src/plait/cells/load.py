"""A cell by its name, or from a user's file: path/to/file.py:MGU."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from ..errors import PlaitError, unknown
from . import get
from .base import Cell


def load(name: str) -> type[Cell]:
    file, colon, wanted = name.rpartition(":")
    if not colon and not name.endswith(".py"):
        return get(name)
    if not colon or not wanted.isidentifier():
        raise PlaitError(f"cell '{name}': expected the file and the class, as in path/to/file.py:MGU.")
    module = run(Path(file))
    cells = [key for key, value in vars(module).items() if is_cell(value)]
    if not hasattr(module, wanted):
        if not cells:
            raise PlaitError(f"{file} has no class '{wanted}', and no cell at all: write one as class {wanted}(Cell).")
        raise unknown(f"{file}: cell", wanted, cells)
    cell = getattr(module, wanted)
    if not is_cell(cell):
        raise PlaitError(f"{file}: {wanted} is not a cell: expected a class that is derived from plait.Cell.")
    found: type[Cell] = cell
    return found


def is_cell(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Cell) and value is not Cell


def run(path: Path) -> ModuleType:
    """The file as a module, as Python itself would run it."""
    if not path.is_file():
        raise PlaitError(f"{path}: there is no such file; expected path/to/file.py:MGU.")
    spec = spec_from_file_location(f"plait_user_{path.stem}", path)  # its name may be another module's
    if spec is None or spec.loader is None:
        raise PlaitError(f"{path}: expected a file of Python, with a name that ends in .py.")
    module = module_from_spec(spec)
    folder = str(path.parent.resolve())
    sys.path.insert(0, folder)
    sys.modules[spec.name] = module  # dataclasses look it up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        first, *_ = str(e).splitlines() or [""]
        raise PlaitError(f"{path} cannot be imported: {type(e).__name__}: {first.rstrip('.')}.") from e
    finally:
        sys.path.remove(folder)
    return module
