"""The command `plait`, and `python -m plait`: listens for signals before anything heavy is imported."""

import os

from .ranks.world import quieten
from .training import signals


def main() -> None:
    signals.listen()
    if "WORLD_SIZE" in os.environ or "PMI_SIZE" in os.environ or "SLURM_NTASKS" in os.environ:
        quieten(os.environ)
    try:
        from .cli import main as run

        run()
    finally:
        signals.ignore()  # the command is done, and a signal would only disturb Python's own exit


if __name__ == "__main__":
    main()
