"""`pairbus` and `python -m pairbus`: the command line, if it is installed."""

import sys

INTERRUPTED = 130


def main() -> None:
    try:
        _run()
    except KeyboardInterrupt:  # while modules are loaded; commands handle it themselves
        sys.exit(INTERRUPTED)


def _run() -> None:
    from pairbus.errors import MissingExtra, requires_extra

    try:
        with requires_extra("the command line", "cli"):
            from pairbus.cli.main import main as run
    except MissingExtra as error:
        print(f"pairbus: {error}", file=sys.stderr)
        sys.exit(1)
    run()


if __name__ == "__main__":
    main()
