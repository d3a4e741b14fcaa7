"""The command `plait`, and `python -m plait`: listens for signals before anything heavy is imported."""

from .training import signals


def main() -> None:
    signals.listen()
    try:
        from .cli import main as run

        run()
    finally:
        signals.ignore()  # the command is done, and a signal would only disturb Python's own exit


if __name__ == "__main__":
    main()
