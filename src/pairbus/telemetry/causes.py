"""An exception in the few words that fit into a line or a label."""

from __future__ import annotations

LENGTH_MAX = 300


def one_line(error: BaseException | None) -> str:
    """Its type and text. The SDK's texts have line breaks, and a log is read by the line."""
    if error is None:
        return "the cause is not known"
    text = " ".join(str(error).split())
    if len(text) > LENGTH_MAX:
        text = f"{text[: LENGTH_MAX - 3]}..."
    name = error_type(error)
    return f"{name}: {text}" if text else name


def error_type(error: BaseException) -> str:
    """The class's name: few values, however different the texts are."""
    return type(error).__qualname__
