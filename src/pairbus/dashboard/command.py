"""`pairbus dashboard`: the pair on one page."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pairbus.cli.pair.targets import ObserveOptions, observe, parse_pair
from pairbus.cli.parse import parse_positive_duration, parse_timeout
from pairbus.cli.shared_options import flag, flatten_options, option
from pairbus.cli.target import is_loopback
from pairbus.cost.prices import load
from pairbus.dashboard.collect import Collector, make_sources
from pairbus.dashboard.live import Live
from pairbus.dashboard.messages import Changes
from pairbus.dashboard.security import Access, LoginSessions
from pairbus.dashboard.server import bind, serve
from pairbus.errors import UsageError, check_installed

PORT: Final = 8765
TOKEN_LENGTH_MIN: Final = 16
_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")


@flatten_options
def dashboard(
    *,
    pair: ObserveOptions,
    ledger: Path | None = option("DIR", "Ledger of a syphon, for its totals and its cost."),
    prices: Path | None = option(
        "FILE.toml", "Price list (default: an example; see docs/cost.md)."
    ),
    allow_changes: bool = flag(
        "Let people resubmit and purge dead letters, and start and end faults of local "
        "brokers. The page asks before each change, and the change is logged to stderr.",
        "--allow-changes",
    ),
    host: str = option(
        "ADDRESS",
        "Address to listen on (default: 127.0.0.1). Any other than loopback "
        "needs --certificate and --key, or --proxy-url.",
        default="127.0.0.1",
    ),
    port: int = option(
        "N",
        f"Port to listen on (default: {PORT}); 0 lets the system choose one.",
        min=0,
        max=65535,
        default=PORT,
    ),
    token: str | None = option(
        "TEXT",
        "Token to log in with (default: PAIRBUS_DASHBOARD_TOKEN). If the dashboard can "
        "be reached from other machines and none is given, it makes one and prints it.",
        envvar="PAIRBUS_DASHBOARD_TOKEN",
        show_envvar=False,
    ),
    certificate: Path | None = option("FILE", "Certificate chain for TLS, as PEM."),
    key: Path | None = option("FILE", "Key of --certificate, as PEM."),
    proxy_url: str | None = option(
        "URL",
        "Where a reverse proxy with TLS serves the dashboard, as in "
        "https://pair.example.com. Only requests for this name are accepted then.",
    ),
    session: str = option("DURATION", "How long a login is valid (default: 8h).", default="8h"),
    interval: str | None = option(
        "DURATION",
        "How often to probe the namespaces (default: 500ms for brokers on this machine, "
        "5s for others).",
    ),
    timeout: str = option(
        "DURATION", "How long to wait for an answer (default: 5s).", default="5s"
    ),
) -> None:
    """Show a pair on one page, live: state, backlog, failovers, dead letters, messages and cost.

    It changes nothing unless it is started with --allow-changes. It keeps the last hour in memory.
    On loopback it needs no token. On any other address it needs a token and TLS. The policies of
    both namespaces need Manage and Listen. If a right is missing, the page says so.

    Exit codes: 0 ended by Ctrl-C or SIGTERM, 1 it cannot start, 2 usage error, 130 interrupted
    twice, or before it has started.

    \b
    Examples:
      pairbus dashboard
      pairbus dashboard --metrics http://app-1:9100/metrics
      pairbus dashboard --allow-changes --port 0
      pairbus dashboard --host 0.0.0.0 --certificate cert.pem --key key.pem
    """
    check_installed("pairbus dashboard", "dashboard", "nicegui", "uvicorn", "defusedxml")
    observed = observe(parse_pair(pair), pair)
    price_list = load(prices)
    sources = make_sources(
        observed,
        ledger=ledger,
        timeout_seconds=parse_timeout(timeout),
        interval_seconds=None
        if interval is None
        else parse_positive_duration(interval, "--interval"),
    )
    if ledger is not None:
        check_installed("--ledger", "spark", "pyarrow")
    session_seconds = parse_positive_duration(session, "--session")
    is_public = check_access(host, token, certificate, key, proxy_url)
    is_token_made = is_public and not token
    token = secrets.token_urlsafe(24) if is_token_made else token or None
    _log_changes()
    with bind(host, port) as listener:
        port = listener.getsockname()[1]
        access = Access(
            hosts=allowed_hosts(host, port, proxy_url),
            scheme="https" if certificate or proxy_url else "http",
            token=token,
        )
        sessions = LoginSessions(session_seconds)
        live = Live(
            Collector(sources),
            observed.targets,
            Changes(observed.targets, are_allowed=allow_changes),
            price_list,
            sessions if token else None,
        )

        def on_ready() -> None:
            address = proxy_url or _address(host, port, is_tls=certificate is not None)
            print(f"dashboard ready: {address}", flush=True)
            if is_token_made:
                print(f"token: {token}", flush=True)

        serve(live, sessions, access, listener, certificate=certificate, key=key, on_ready=on_ready)


def check_access(
    host: str,
    token: str | None,
    certificate: Path | None,
    key: Path | None,
    proxy_url: str | None,
) -> bool:
    """Whether other machines can reach it. Raises UsageError for what would not be safe."""
    if (certificate is None) != (key is None):
        raise UsageError("--certificate and --key belong together: give both")
    for name, file in (("--certificate", certificate), ("--key", key)):
        if file is not None and not os.access(file, os.R_OK):
            raise UsageError(f"{name} {file}: cannot be read, or does not exist")
    if proxy_url is not None:
        try:
            parts = urlsplit(proxy_url)
            is_root = parts.path in ("", "/")
            is_valid = parts.scheme == "https" and parts.hostname and parts.port != 0 and is_root
        except ValueError:  # the port, or an IPv6 address
            is_valid = False
        if not is_valid:
            raise UsageError(
                f"--proxy-url {proxy_url!r}: must be https:// and a host name, as in "
                "https://pair.example.com; a path is not supported"
            )
    if token and (len(token) < TOKEN_LENGTH_MIN or not token.isprintable()):
        raise UsageError(f"--token: use at least {TOKEN_LENGTH_MIN} characters that can be typed")
    if is_loopback(host) and proxy_url is None:
        return False
    if certificate is None and proxy_url is None:
        raise UsageError(
            f"--host {host} can be reached from other machines, so it needs TLS: give "
            "--certificate and --key, or the URL of a proxy with TLS, with --proxy-url"
        )
    return True


def allowed_hosts(host: str, port: int, proxy_url: str | None) -> frozenset[str] | None:
    if proxy_url is not None:
        names = {urlsplit(proxy_url).netloc.lower()}
    elif is_loopback(host):
        names = {f"{name}:{port}" for name in (*_LOOPBACK_NAMES, host.lower())}
    else:
        return None  # the token and the certificate protect it, under whatever name
    # A browser leaves out the port of http and of https.
    return frozenset(names | {name.removesuffix(":443").removesuffix(":80") for name in names})


def _address(host: str, port: int, *, is_tls: bool) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if is_tls else 'http'}://{name}:{port}/"


def _log_changes() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("pairbus.dashboard")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    # The SDK logs each lost connection, and without a handler that goes to stderr.
    logging.getLogger().addHandler(logging.NullHandler())
