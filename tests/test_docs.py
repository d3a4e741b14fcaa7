"""What the README and the docs show runs as it is shown."""

import re
import shlex
import shutil
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest
from PIL import Image

from jobs import free_port
from plait import cli
from plait.data.shapes import shapes
from processes import PATIENCE, finish, start, started

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "CHANGELOG.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.S)


RUN = ("start", "train", "ragged", "classify", "time", "clients", "memory")


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}.md" for name in RUN)])
def test_python_examples_run(page: str, empty_folder: Path) -> None:
    found = blocks(page, "python")
    assert found
    for text in found:
        exec(compile(text, page, "exec"), {})


@pytest.mark.filterwarnings("ignore:cell normed cannot be traced")
def test_a_cell_is_written_from_nothing_as_the_page_shows(plait, capsys: pytest.CaptureFixture[str]) -> None:
    """Each block goes on where the one before it ended, and prints what is shown; but for the digits of differences."""
    page = "docs/extending.md"
    parts, (checked, equations, warning) = blocks(page, "python"), blocks(page, "text")
    Path("mgu.py").write_text(parts[0])
    assert plait("equations", "mgu.py:MGU") == (0, equations, "")
    scope: dict[str, object] = {}
    for text in parts:
        capsys.readouterr()
        exec(compile(text, page, "exec"), scope)
        if "print(plait.check_cell(MGU))" in text:
            found = capsys.readouterr().out
            digits = re.compile(r"\d\.\de[-+]\d\d(?= <=)")
            assert digits.sub("", found) == digits.sub("", checked)
    decay, normed = (next(t for t in parts if f"class {name}(" in t) for name in ("Decay", "Normed"))
    Path("decay.py").write_text("import plait\n\n\n" + decay)
    code, out, _ = plait("equations", "decay.py:Decay", "--dt", "2")
    assert code == 0
    assert "= -2.0 * " in out
    Path("normed.py").write_text("import plait\n\n\n" + normed.partition("\n\n\n")[0])
    code, _, err = plait("equations", "normed.py:Normed")
    assert code == 2
    assert err.removeprefix("plait: ").strip() == warning.partition(" Engine 'auto'")[0]


@pytest.mark.parametrize(
    "page",
    ["README.md", "docs/start.md", "docs/language.md", pytest.param("docs/rotate.md", marks=pytest.mark.slow)],
)
def test_commands_run(page: str, empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the page, in one folder, on files as the page describes them; training is cut short."""
    Path("book.txt").write_text("the cat sat on the mat\nthe dog sat on the cat\n" * 30)
    rows = [f"{date(2024, 1, 1) + timedelta(d)},{50 + 9 * (d % 7) + d % 28}" for d in range(112)]
    Path("sales.csv").write_text("day,sales\n" + "\n".join(rows) + "\n")
    rows = [
        f"{k},{t},{(t * (1 + k % 2)) % 5},{'walk' if k % 2 else 'run'}" for k in range(40) for t in range(5 + k % 4)
    ]
    Path("walks.csv").write_text("id,time,speed,label\n" + "\n".join(rows) + "\n")
    Path("photos").mkdir()
    for k, row in enumerate(shapes(20).parts["train"].numpy()):
        Image.fromarray(row.reshape(32, 32)).save(f"photos/{k}.png")
    shutil.make_archive("cifar10", "zip", "photos")
    shutil.make_archive("cifar-10-python", "gztar", "photos")
    ran = 0
    for line in "".join(blocks(page, "bash")).splitlines():
        args = shlex.split(line, comments=True)
        if args[:1] != ["plait"] or args[1:2] == ["check"]:  # test_ladder.py runs the ladder
            continue
        if args[1:2] == ["train"] and "--resume" not in args:
            args += ["--epochs", "1", "--hidden", "8"]
        if page == "docs/start.md" and not Path("runs").exists():
            monkeypatch.setattr(sys, "argv", ["plait", "train", "forecast", "--epochs", "1"])
            with pytest.raises(SystemExit):
                cli.main()
        if "--epochs" in args and "--resume" in args:
            args[args.index("--epochs") + 1] = "2"
        monkeypatch.setattr(sys, "argv", args)
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code, line
        ran += 1
    assert ran >= 3


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    assert targets or page == "CHANGELOG.md", "a page that leads nowhere"
    for target in targets:
        assert ((ROOT / page).parent / target).exists(), target


def test_a_loop_of_ones_own_on_a_mesh() -> None:
    """The example needs four processes."""
    (text,) = blocks("docs/ranks.md", "python")
    common = {"WORLD_SIZE": 4, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "OMP_NUM_THREADS": 1}
    ranks = [start(text, **{k: str(v) for k, v in (common | {"RANK": r, "LOCAL_RANK": r}).items()}) for r in range(4)]
    printed = [finish(process)[0] for process in ranks]
    assert re.fullmatch(r"(loss \d\.\d\d\d\n){3}", printed[0])
    assert printed[1:] == ["", "", ""]


def test_the_command_that_cuts_time_cuts_it(empty_folder: Path) -> None:
    """On the data that the page makes; other pages have the same command."""
    (data,) = (text for text in blocks("docs/time.md", "python") if "long.npz" in text)
    exec(compile(data, "docs/time.md", "exec"), {})
    found = [line for page in PAGES for text in blocks(page, "bash") for line in text.splitlines() if "time=2" in line]
    commands = {tuple(shlex.split(line, comments=True)) for line in found}
    assert len(found) >= 2
    assert len(commands) == 1
    process = started(*commands.pop()[1:], "--epochs", "1")
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, (out, err)
    assert "100.0% of the training calls of layers were cut in time" in out
