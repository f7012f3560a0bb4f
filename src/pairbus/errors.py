"""Everything pairbus raises on purpose.

PairbusError
├── OptionsError          impossible option of a pairing: the text names it, its value and its range
├── NamespaceError        a namespace refused what was asked of it, or did not answer
└── BrokerError           the local broker cannot do what was asked
    ├── ConfigError           impossible setting: the text names it, its value and its range
    ├── DataFileError         the data file cannot be used (newer version, locked, not ours)
    └── StartError            the broker cannot start (port taken, folder not writable)

What a paired client raises derives from the official SDK's errors as well:
`pairbus.client.sdk.errors`.
"""


class PairbusError(Exception):
    """Catch this to catch us, and nothing else."""


class OptionsError(PairbusError, ValueError):
    """An option is impossible."""


class NamespaceError(PairbusError):
    """A namespace, Azure's or a local one, refused what was asked of it, or did not answer."""


class BrokerError(PairbusError):
    """The local broker cannot do what was asked."""


class ConfigError(BrokerError, ValueError):
    """A setting is impossible."""


class DataFileError(BrokerError):
    """The data file cannot be used."""


class StartError(BrokerError):
    """The broker cannot start."""
