"""The options of `pairbus broker` that say what it serves, and how."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

from pairbus.cli.shared_options import flag, option, option_group

DEFAULT_DATA: Final = Path("pairbus-data")


class Sku(StrEnum):
    STANDARD = "Standard"
    PREMIUM = "Premium"


@option_group
class BrokerOptions:
    namespace: list[str] | None = option(
        "NAME[:PORT]",
        "Namespace and its port; repeat it for several (default: local). Without a port, "
        "or with 0, the system chooses one. With --config, it sets the port of that namespace "
        "in the file; if the file has only one, it also renames it.",
    )
    queue: list[str] | None = option("NAME", "Queue in every namespace; repeat it for several.")
    topic: list[str] | None = option("NAME", "Topic in every namespace; repeat it for several.")
    subscription: list[str] | None = option(
        "TOPIC/NAME", "Subscription, and its topic, in every namespace; repeat it for several."
    )
    config: Path | None = option(
        "Config.json",
        "Namespaces, queues, topics, subscriptions and rules, in the format of the "
        "official emulator. A file with one namespace also brings the emulator's ports: 5672, "
        "and 5300 for administration and health.",
    )
    administration_port: int | None = option(
        "PORT",
        "Second port for administration and health; 0: the system chooses one (default: "
        "5300 with --config and port 5672, otherwise none, because one port has everything).",
    )
    sku: Sku = option(
        "Standard|Premium",
        "Tier, which limits the message size: Standard 256 KiB, Premium up to 100 MiB "
        "(default: Standard).",
        case_sensitive=False,
        default=Sku.STANDARD,
    )
    accept_bearer: bool = flag(
        "Accept any bearer token without checking its signature, for applications that "
        "use azure-identity; on loopback only, unless you give --allow-insecure.",
        "--accept-bearer",
    )
    policy: list[str] | None = option(
        "NAME:KEY:RIGHTS",
        "Shared access key and its rights, from Manage,Send,Listen; repeat it for several "
        "(default: the emulator's well-known key, which works only on this machine).",
        envvar="PAIRBUS_POLICY",
    )
    policy_file: Path | None = option(
        "FILE",
        "File with policies, one NAME:KEY:RIGHTS on each line. Other users of the machine "
        "see what --policy says, but not what is in a file that only you can read.",
        envvar="PAIRBUS_POLICY_FILE",
    )
    data: Path | None = option(
        "DIR",
        f"Folder for messages and certificates (default: ./{DEFAULT_DATA}).",
        envvar="PAIRBUS_DATA",
    )
    memory: bool = flag("Keep messages only until this process ends.", "--memory")
    host: str = option(
        "HOST",
        "Address to listen on (default: localhost). An address other than loopback needs "
        "--policy and accepts only TLS, unless you give --allow-insecure.",
        envvar="PAIRBUS_HOST",
        default="localhost",
    )
    allow_insecure: bool = flag(
        "Accept connections without TLS and the well-known key on every --host, for "
        "networks of containers. Anyone who can reach the port has all rights.",
        "--allow-insecure",
        envvar="PAIRBUS_ALLOW_INSECURE",
    )
    allow_faults: bool = flag(
        "Accept `pairbus fault` with the well-known key, too. A key of your own with "
        "Manage needs no permission.",
        "--allow-faults",
        envvar="PAIRBUS_ALLOW_FAULTS",
    )
    tls_only: bool = flag("Refuse connections without TLS, also on loopback.", "--tls-only")

    @property
    def folder(self) -> Path | None:
        """Where messages are kept; None: in memory."""
        return None if self.memory else self.data or DEFAULT_DATA
