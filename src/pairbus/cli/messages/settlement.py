"""What happens to a message after it is received: it is completed, or what an option says."""

from __future__ import annotations

from enum import StrEnum

from pairbus.cli.shared_options import flag, option, option_group
from pairbus.errors import UsageError


class SettlementAction(StrEnum):
    """The value is the past participle, for output texts."""

    COMPLETE = "completed"
    ABANDON = "abandoned"
    DEAD_LETTER = "dead-lettered"
    DELETE = "deleted"


@option_group
class SettlementOptions:
    """What happens to a message after it is written."""

    abandon: bool = flag("Abandon the messages at the end. This counts as a delivery.", "--abandon")
    dead_letter: bool = flag("Dead-letter the messages.", "--dead-letter")
    delete: bool = flag(
        "Receive and delete: the service deletes each message when it delivers it. Messages on "
        "their way are lost if the command is killed or the connection breaks.",
        "--delete",
    )
    reason: str | None = option("TEXT", "Reason, with --dead-letter.")
    description: str | None = option("TEXT", "Description of the error, with --dead-letter.")

    def parse(self) -> SettlementAction:
        """Raises UsageError."""
        if self.abandon + self.dead_letter + self.delete > 1:
            raise UsageError("--abandon, --dead-letter and --delete cannot be combined")
        if (self.reason or self.description) and not self.dead_letter:
            raise UsageError("--reason and --description need --dead-letter")
        if self.abandon:
            return SettlementAction.ABANDON
        if self.dead_letter:
            return SettlementAction.DEAD_LETTER
        return SettlementAction.DELETE if self.delete else SettlementAction.COMPLETE
