"""`python -m pairbus` is `pairbus`."""

from pairbus.console.cli import main

if __name__ == "__main__":
    main()
