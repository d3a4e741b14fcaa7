"""Every package that plait needs has a lowest version; `make test-lowest` runs with those."""

import re
from importlib.metadata import version

import pytest

from lowest import dependencies, lowest


def numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)[:3]]


def test_the_lowest_versions_are_read() -> None:
    assert lowest(["torch>=2.6,<=2.13.0", "numba>=0.62.1", "pillow>=8"]) == {"numba": "0.62.1", "pillow": "8"}
    with pytest.raises(AssertionError, match="rich: expected a lowest version"):
        lowest(["rich"])


def test_what_is_installed_is_no_older() -> None:
    for name, least in lowest(dependencies()).items():
        assert numbers(version(name)) >= numbers(least), name
