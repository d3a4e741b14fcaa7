"""`make test-clients`: programs of other packages, plain and after `plait.accelerate`.

Fails if a program is not exact or none of its layers is swapped. How fast it is, is reported.
"""

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

import torch
from race import Case, Failed, Timing, compared, is_exact

import plait
from plait.bench.core.report import processor

CLIENTS = {
    "pytorch-forecasting": ("TFT", "DeepAR"),
    "sb3-contrib": ("RecurrentPPO",),
    "torchrl": ("LSTMModule", "GRUModule"),
    "neuralforecast": ("LSTM", "GRU", "DeepAR"),
    "stanza": ("POS", "POS, rec_dropout"),
}
COLUMNS = ("model", "swapped", "off", "threads", "training", "share", "reach", "inference", "share", "reach")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("clients", nargs="*", help="which ones, as CLIENT or CLIENT:CASE (default: all)")
    parser.add_argument("--environments", type=Path, default=Path(".venv-clients"), help="a folder for each client")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a measurement, at least")
    parser.add_argument("--cpu", action="store_true", help="CPU time, of one thread: for a machine that is busy")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def chosen(names: list[str], environments: Path) -> list[Case]:
    cases = [Case(c, name, environments.absolute() / c / "bin" / "python") for c in CLIENTS for name in CLIENTS[c]]
    return [c for c in cases if not names or c.client in names or f"{c.client}:{c.name}" in names]


def cells(row: dict[str, Any]) -> list[str]:
    off = f"{row['float32']:.0e}" if "float64" not in row else f"{row['float64']:.0e} (64)"
    parts = [row["case"], f"{row['swapped']}/{row['layers']}", off, str(row["threads"])]
    for kind in ("training", "inference"):
        found = row[kind]
        spread = (found["high"] - found["low"]) / 2
        parts += [f"{found['faster']:.2f} ±{spread:.2f}", f"{found['share'] * 100:.0f} %", f"{found['reached']:.2f}"]
    return parts


def table(rows: list[dict[str, Any]]) -> str:
    lines = [list(COLUMNS), ["---"] * len(COLUMNS), *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("| " + " | ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)) + " |" for line in lines)


def where(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "date": str(datetime.date.today()),
        "processor": processor(),
        "torch": torch.__version__,
        "plait": plait.__version__,
        **{row["client"]: row["version"] for row in rows},
    }


def problems(case: Case, row: dict[str, Any]) -> list[str]:
    found = []
    if not row["swapped"]:
        found.append(f"{case.client}, {case.name}: none of {row['layers']} layers is swapped")
    if not is_exact(row):
        found.append(f"{case.client}, {case.name}: off by {row['float64']:.1e} in float64")
    return found


def main() -> int:
    options = arguments()
    counts = [1] if options.cpu else options.threads
    timings = [Timing(threads, options.repeats, options.seconds, options.cpu) for threads in counts]
    rows: list[dict[str, Any]] = []
    wrong: list[str] = []
    missing: list[str] = []
    for case in chosen(options.clients, options.environments):
        if not (case.python.parent.parent / "installed").exists():
            missing.append(case.client)
            continue
        print(f"{case.client}: {case.name} ...", file=sys.stderr, flush=True)
        try:
            found = compared(case, timings)
        except Failed as e:
            wrong.append(f"{case.client}, {case.name}: {e}")
        else:
            rows += found
            wrong += problems(case, found[0])
            print(table(found), file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps({"environment": where(rows), "rows": rows, "wrong": wrong}, indent=1))
    print(", ".join(f"{name} {value}" for name, value in list(where(rows).items())[:4]))
    for client in dict.fromkeys(row["client"] for row in rows):
        of_client = [row for row in rows if row["client"] == client]
        print(f"\n{client} {of_client[0]['version']}\n\n{table(of_client)}")
    for client in dict.fromkeys(missing):
        print(f"\n{client}: not measured, for it could not be installed")
    for sentence in wrong:
        print(f"\n{sentence}")
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
