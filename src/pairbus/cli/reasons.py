"""Why a namespace could not be reached, in the system's own words."""

from __future__ import annotations

import socket
import ssl


def why_unreachable(error: BaseException) -> str:
    """Libraries wrap what happened in layers; the lowest one says it best."""
    lowest: str | None = None
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:  # ends: each exception is looked at once
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, ssl.SSLCertVerificationError):
            return "its certificate is not trusted; give the file of its authority with --ca-file"
        if isinstance(one, socket.gaierror):
            return "there is no host of that name"
        if isinstance(one, OSError) and one.strerror:
            lowest = lowest or one.strerror
        elif isinstance(one, TimeoutError):
            lowest = lowest or "it does not answer"
        wrapped = (getattr(one, name, None) for name in ("reason", "inner_exception"))
        related = (one.__cause__, one.__context__, *wrapped, *one.args)
        waiting += [each for each in related if isinstance(each, BaseException)]
    return lowest or " ".join(str(error).split()) or type(error).__name__
