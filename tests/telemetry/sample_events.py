"""One event of each kind, some variants, and the events of a whole outage in order."""

from pairbus import events
from pairbus.events import (
    BacklogReadmitted,
    BacklogWithdrawn,
    Calmed,
    Closed,
    Diverted,
    FailBackDelayed,
    FailedBack,
    FailedOver,
    Flapping,
    HeldInOutbox,
    LeftOutbox,
    OutboxOpened,
    OutboxStalled,
    Paired,
    PingSent,
    PrimaryFailed,
    Recovered,
    Returning,
    SendFailed,
    StoredInOutbox,
    SyphonFailed,
    SyphonRestarted,
    Throttled,
)

CONTOSO = "contoso"
QUEUES = tuple(f"contoso/x-servicebus-transfer/{index}" for index in range(3))
QUEUE = QUEUES[1]
LOST = ConnectionError("the line is dead")
REFUSED = PermissionError("no entry")

paired = Paired(namespace=CONTOSO, backlog_queues=QUEUES, made=QUEUES[2:])
primary_failed = PrimaryFailed(
    namespace=CONTOSO, path="orders", error=LOST, since_seconds=12.34, failover_in_seconds=47.66
)
recovered = Recovered(namespace=CONTOSO, path="orders")
failed_over = FailedOver(
    namespace=CONTOSO, path="orders", backlog_queue=QUEUE, error=LOST, after_seconds=60.0
)
failed_back = FailedBack(namespace=CONTOSO, path="orders", reason="ping", after_seconds=300.5)
failed_back_by_hand = FailedBack(
    namespace=CONTOSO, path="orders", reason="by hand", after_seconds=4.0
)
returning = Returning(namespace=CONTOSO, path="orders", backlog_queue=QUEUE, after_seconds=300.5)
fail_back_delayed = FailBackDelayed(
    namespace=CONTOSO, path="orders", backlog_queue=QUEUE, seconds=60.0, error=None
)
flapping = Flapping(namespace=CONTOSO, path="orders", times=1, pings_needed=4, after_seconds=8.0)
flapping_again = Flapping(
    namespace=CONTOSO, path="orders", times=2, pings_needed=8, after_seconds=2.0
)
calmed = Calmed(namespace=CONTOSO, path="orders")
diverted = Diverted(namespace=CONTOSO, path="orders", backlog_queue=QUEUE, count=1, seconds=0.02)
diverted_batch = Diverted(
    namespace=CONTOSO, path="orders", backlog_queue=QUEUE, count=40, seconds=0.3
)
withdrawn = BacklogWithdrawn(namespace=CONTOSO, backlog_queue=QUEUE, error=REFUSED, left=2)
readmitted = BacklogReadmitted(namespace=CONTOSO, backlog_queue=QUEUE, left=3)
throttled = Throttled(namespace=CONTOSO, path="orders", wait_seconds=10, backlog_queue=None)
throttled_backlog = Throttled(
    namespace=CONTOSO, path="orders", wait_seconds=10, backlog_queue=QUEUE
)
ping_unanswered = PingSent(namespace=CONTOSO, path="orders", answered=False, error=LOST)
ping_answered = PingSent(namespace=CONTOSO, path="orders", answered=True, error=None)
send_failed = SendFailed(
    namespace=CONTOSO, path="orders", primary_error=LOST, backlog_error=REFUSED
)
OUTBOX = {
    "namespace": CONTOSO,
    "file": "/var/lib/shop/outbox.db",
    "oldest_seconds": 4.5,
    "file_bytes": 8192,
}
outbox_opened = OutboxOpened(**OUTBOX, waiting=2, held=1)
stored = StoredInOutbox(**OUTBOX, path="orders", count=3, waiting=5)
left_outbox = LeftOutbox(**OUTBOX, path="orders", count=3, waiting=2)
held = HeldInOutbox(**OUTBOX, path="orders", message_id="a1", reason="too old", waiting=1)
outbox_emptied = LeftOutbox(**OUTBOX, path="orders", count=1, waiting=0)
stalled = OutboxStalled(
    namespace=CONTOSO, path="orders", error=REFUSED, waiting=2, retry_in_seconds=30.0
)
syphon_failed = SyphonFailed(
    namespace=CONTOSO, error=LOST, down_seconds=0.0, restart_in_seconds=1.0
)
syphon_failed_again = SyphonFailed(
    namespace=CONTOSO, error=REFUSED, down_seconds=1.2, restart_in_seconds=2.0
)
syphon_restarted = SyphonRestarted(namespace=CONTOSO, down_seconds=7.1)
closed = Closed(namespace=CONTOSO)

# From pairing to close, with an outage that is over at the end.
HISTORY = [
    paired,
    outbox_opened,
    primary_failed,
    recovered,
    primary_failed,
    failed_over,
    diverted,
    diverted_batch,
    throttled_backlog,
    withdrawn,
    send_failed,
    stored,
    readmitted,
    left_outbox,
    stalled,
    held,
    outbox_emptied,
    ping_unanswered,
    ping_answered,
    returning,
    fail_back_delayed,
    failed_back,
    throttled,
    failed_over,
    flapping,
    failed_back_by_hand,
    calmed,
    syphon_failed,
    syphon_failed_again,
    syphon_restarted,
    closed,
]
KINDS = {
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, events.Event) and not kind.__subclasses__()
}
