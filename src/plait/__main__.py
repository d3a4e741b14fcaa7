"""The command `plait`, and `python -m plait`: listens for signals before anything heavy is imported."""

from .training import signals


def main() -> None:
    signals.listen()
    try:
        from .cli import main as run

        run()
    finally:
        signals.ignore()  # all is said: what Python does on its way out is not to be disturbed


if __name__ == "__main__":
    main()
