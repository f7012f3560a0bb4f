"""`pairbus` and `python -m pairbus`: the command line, if it is installed."""

import sys


def main() -> None:
    try:
        _run()
    except KeyboardInterrupt:  # before or after a command; commands handle it themselves
        sys.exit(130)


def _run() -> None:
    from pairbus.cli.loading import interrupt_ends_process
    from pairbus.errors import MissingExtra, requires_extra

    try:
        with interrupt_ends_process(), requires_extra("the command line", "cli"):
            from pairbus.cli.main import main as run
    except MissingExtra as error:
        print(f"pairbus: {error}", file=sys.stderr)
        sys.exit(1)
    run()


if __name__ == "__main__":
    main()
