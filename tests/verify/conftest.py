"""The commands as `main` runs them, in this process."""

from tests.cli.conftest import clean_environment, pairbus

__all__ = ["clean_environment", "pairbus"]
