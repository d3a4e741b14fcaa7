"""Prints the lowest version that pyproject.toml allows of each package that plait needs, as pip takes them."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
BOUND = re.compile(r"([A-Za-z0-9_-]+)>=([\d.]+)")


def lowest(dependencies: list[str]) -> dict[str, str]:
    """torch is not among them: its older builds do not run with the lowest numpy on every machine."""
    found = {}
    for text in dependencies:
        bound = BOUND.match(text)
        assert bound, f"{text}: expected a lowest version"
        found[bound[1]] = bound[2]
    return {name: version for name, version in found.items() if name != "torch"}


def dependencies() -> list[str]:
    found: list[str] = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    return found


if __name__ == "__main__":
    print(*(f"{name}=={version}" for name, version in lowest(dependencies()).items()))
