"""`pairbus` and `python -m pairbus`: the command line, if it is installed."""

import sys

from pairbus.errors import MissingExtra, requires_extra


def main() -> None:
    try:
        with requires_extra("the command line", "cli"):
            from pairbus.cli.main import main as run
    except MissingExtra as error:
        print(f"pairbus: {error}", file=sys.stderr)
        sys.exit(1)
    run()


if __name__ == "__main__":
    main()
