"""`python -m pairbus` is `pairbus`."""

from pairbus.cli.main import main

if __name__ == "__main__":
    main()
