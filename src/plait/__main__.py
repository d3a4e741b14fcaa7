"""The command `plait`, and `python -m plait`: listens for signals before anything heavy is imported."""

import gc
import os
import sys

from .training import signals


def main() -> None:
    signals.listen()
    from .ranks.world import is_one_of_several, quieten

    gc.set_threshold(5_000)  # imports make many objects, and would trigger collections
    if is_one_of_several(os.environ):
        quieten(os.environ)
    try:
        from .cli import main as run

        run()
    finally:
        signals.ignore()  # the command is done, and a signal would only disturb Python's own exit
        if "triton" not in sys.modules:  # it would complain that something of it is left
            gc.freeze()  # spares the last collection at exit: half a second


if __name__ == "__main__":
    main()
