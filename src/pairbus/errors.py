"""Everything pairbus raises on purpose.

PairbusError
├── OptionsError          an option of the Python API is invalid: the text names it and its range
├── UsageError            a command was used wrongly: the text shows the correct form
├── MissingExtra          a part of pairbus needs a package that is not installed
├── NamespaceError        a namespace refused a request, or did not answer
├── OutputError           a command cannot write its output
├── OutboxError           the file of an outbox cannot be used (full, in use, damaged, newer)
└── BrokerError           the local broker cannot do what was asked
    ├── ConfigError           impossible setting: the text names it, its value and its range
    ├── DataFileError         the data file cannot be used (newer version, locked, not ours)
    └── StartError            the broker cannot start (port taken, folder not writable)

What a paired client raises derives from the official SDK's errors as well:
`pairbus.client.sdk.pairing_errors`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import TracebackType
from typing import Final

LENGTH_MAX: Final = 300


class PairbusError(Exception):
    """The base class of all errors that pairbus raises on purpose."""


class OptionsError(PairbusError, ValueError):
    """An option is impossible."""


class MissingExtra(PairbusError, ImportError):
    """A part of pairbus needs a package that is not installed. The text has the command that
    installs it.
    """

    def __init__(self, part: str, *, package: str, extra: str) -> None:
        super().__init__(
            f"{part} needs {package}, which is not installed: pip install 'pairbus[{extra}]'"
        )


@contextmanager
def requires_extra(part: str, extra: str) -> Iterator[None]:
    """A context manager for imports. It reports a package that is not installed as MissingExtra."""
    try:
        yield
    except ModuleNotFoundError as error:
        package, _, module = (error.name or "").partition(".")
        if package == "pairbus":
            raise  # not a missing package, but a bug in pairbus
        if module and find_spec(package) is not None:
            package = f"a newer {package}"
        raise MissingExtra(part, package=package, extra=extra) from error


def check_installed(part: str, extra: str, *packages: str) -> None:
    """Raises MissingExtra now, for packages that are imported only on first use."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtra(part, package=package, extra=extra)


def check_broker_installed(part: str, *, has_syphon: bool = False) -> None:
    """The broker, and the commands that start one, say at once which package is missing.

    `has_syphon`: they also start a syphon, on Spark.
    """
    packages = ("defusedxml", "httptools", "lark", "starlette", "trustme", "uvicorn", "websockets")
    if has_syphon:
        check_installed(part, "broker,spark", *packages, "pyspark")
    else:
        check_installed(part, "broker", *packages)


class UsageError(PairbusError):
    """A command was used wrongly. The command line exits with code 2."""


class NamespaceError(PairbusError):
    """A namespace, on Azure or on this machine, refused a request or did not answer."""


class OutputError(PairbusError):
    """A command cannot write its output: the disk is full, the file is not writable, or the port
    for metrics is taken.
    """


class OutboxError(PairbusError):
    """The file of an outbox cannot be used. The text names the file and says what to do."""


class BrokerError(PairbusError):
    """The local broker cannot do what was asked."""


class ConfigError(BrokerError, ValueError):
    """A setting is impossible."""


class DataFileError(BrokerError):
    """The data file cannot be used."""


class StartError(BrokerError):
    """The broker cannot start."""


def one_line(error: BaseException | None) -> str:
    """The error's type and text on one line, for logs, statuses and other errors.

    The SDK's texts contain line breaks and can be very long.
    """
    if error is None:
        return "unknown cause"
    text = " ".join(str(error).split()).rstrip(".")  # more text may follow
    if len(text) > LENGTH_MAX:
        text = f"{text[: LENGTH_MAX - 3]}..."
    name = type(error).__qualname__
    return f"{name}: {text}" if text else name


def without_frames(error: BaseException) -> BaseException:
    """A copy of an error, to be kept for long: an error holds the frames that it went through, and
    these hold a dead connection and all its buffers. An error that was never raised, or that cannot
    be copied, is returned.
    """
    if error.__traceback__ is None:
        return error
    try:
        kept = _copied(error, {})
        return kept if str(kept) == str(error) else error
    except Exception:  # the class of an application, or of its credential, can do anything
        return error


def _copied(error: BaseException, copies: dict[int, BaseException]) -> BaseException:
    if id(error) in copies:
        return copies[id(error)]
    copy = copies[id(error)] = type(error).__new__(type(error), *error.args)
    for name, value in vars(error).items():
        if isinstance(value, BaseException):
            setattr(copy, name, _copied(value, copies))
        elif not isinstance(value, TracebackType):
            setattr(copy, name, value)
    if error.__cause__ is not None:
        copy.__cause__ = _copied(error.__cause__, copies)
    return copy
