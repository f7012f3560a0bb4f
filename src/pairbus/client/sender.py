"""What a paired sender does in both shells: each of its calls, as a generator of steps.

An unpaired sender behaves like the SDK's. For a paired one, `send.py` decides what each call does.
A shell's `sender.py` has the public methods, and carries the steps out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from azure.servicebus import ServiceBusMessageBatch

from pairbus.client.checks import check_arguments, check_cancellable, check_live
from pairbus.client.pairing import PairingCore
from pairbus.client.route.plans import ToPrimary
from pairbus.client.sdk import private
from pairbus.client.sdk.batches import DivertedBatch, count_of, give_ids
from pairbus.client.send import SendCall, SendRequest
from pairbus.client.state import ClientState
from pairbus.client.steps import AcquireLock, CallPrimary, Steps


class SenderCore:
    """The first base class of a shell's sender. The SDK's sender is the next one, so `super()`
    here is the SDK's.

    A step is an object of `steps.py`, or a function to call, which is a method of the SDK.
    """

    client_state: ClientState[Any]
    """The client's state. It has the pairing, even if the client was paired after this sender was
    made.
    """
    lock: Any
    """The shell's `SenderLock`."""
    epoch = 0
    """The entity's epoch when the link to the primary was opened."""
    has_called = False
    is_closed = False

    entity_name: str

    @property
    def raises_busy(self) -> bool:
        """For `PromptFailures`."""
        return self.client_state.pairing is not None

    @property
    def is_in_use(self) -> bool:
        """The application has used this sender and will close it, so the background may open a link
        for it.
        """
        return self.has_called and not self.is_closed

    def require_new_link(self) -> None:
        """A call was interrupted, and its answer may still arrive on this link. The next call opens
        a new one.
        """
        self.epoch = -1

    def _sdk_open(self) -> Any:
        """For the shells: open the link as the SDK does."""
        raise NotImplementedError

    # --- the calls --------------------------------------------------------------------------------

    def _opening(self) -> Steps[None]:
        pairing = self.client_state.pairing
        if pairing is None:
            yield self._unpaired(self._sdk_open)
        else:
            yield from self._opening_primary(pairing)

    def _sending(
        self, message: Any, timeout: float | None, options: Mapping[str, Any]
    ) -> Steps[None]:
        pairing = self.client_state.pairing
        if pairing is None:
            sdk: Any = super()
            yield self._unpaired(sdk.send_messages, message, timeout=timeout, **options)
            return
        check_arguments(self, timeout, options)
        message = give_ids(message)
        count = count_of(message)
        if not count or message == {}:
            return  # like the SDK
        yield from SendCall(pairing, self, self._request(message, count), timeout).steps()

    def _scheduling(
        self, messages: Any, schedule: datetime, timeout: float | None, options: Mapping[str, Any]
    ) -> Steps[list[int]]:
        sdk: Any = super()
        pairing = self.client_state.pairing
        numbers: list[int]
        if pairing is None:
            call = sdk.schedule_messages
            numbers = yield self._unpaired(call, messages, schedule, timeout=timeout, **options)
            return numbers
        check_arguments(self, timeout, options)
        messages = give_ids(messages)
        count = count_of(messages)
        if not count:
            return []
        request = SendRequest(
            messages=messages,
            count=count,
            schedule=schedule,
            returns_numbers=True,
            on_primary=lambda seconds: sdk.schedule_messages(messages, schedule, timeout=seconds),
        )
        numbers = yield from SendCall(pairing, self, request, timeout).steps()
        return numbers

    def _cancelling(
        self, sequence_numbers: Any, timeout: float | None, options: Mapping[str, Any]
    ) -> Steps[None]:
        sdk: Any = super()
        cancel = sdk.cancel_scheduled_messages
        check_live(self)
        check_cancellable(self.entity_name, sequence_numbers)
        pairing = self.client_state.pairing
        if pairing is None:
            yield self._unpaired(cancel, sequence_numbers, timeout=timeout, **options)
            return
        limit = pairing.timing.send_seconds if timeout is None else timeout
        holder = object()
        try:
            yield AcquireLock(limit, holder)
            try:
                yield CallPrimary(
                    limit, lambda seconds: cancel(sequence_numbers, timeout=seconds, **options)
                )
            except GeneratorExit:
                self.require_new_link()
                raise
        finally:
            self.lock.release(holder)

    def _making_batch(self, max_size_in_bytes: int | None) -> Steps[ServiceBusMessageBatch]:
        sdk: Any = super()
        self.client_state.check()
        self.has_called = True
        pairing = self.client_state.pairing
        create = partial(sdk.create_message_batch, max_size_in_bytes)
        batch: ServiceBusMessageBatch
        if pairing is None:
            batch = yield create
            return batch
        if not private.knows_limits(self):
            yield from self._opening_primary(pairing)
        path = self.entity_name
        # With ordered failback, the envelopes are made when the batch is sent.
        is_plain = pairing.is_ordered or isinstance(pairing.plan(path), ToPrimary)
        if private.knows_limits(self):
            batch = yield create
        else:  # the entity is failed over, and the SDK would open the link to the primary
            limit = pairing.pool.batch_bytes_max
            size = max_size_in_bytes or limit
            if size > limit:  # the SDK's own error
                raise ValueError(
                    f"Max message size: {size} is too large, acceptable max batch size is: {limit} "
                    "bytes."
                )
            batch = private.new_batch(self, size)
        return batch if is_plain else DivertedBatch.of(batch, path)

    def _sending_stored(self, messages: Sequence[Any]) -> Steps[None]:
        """Send messages of the outbox. One alone goes without a batch, which may be too small."""
        sent = messages[0] if len(messages) == 1 else list(messages)
        request = self._request(sent, len(messages), is_from_outbox=True)
        pairing = self.client_state.pairing
        assert pairing is not None
        yield from SendCall(pairing, self, request, None).steps()

    def _request(self, messages: Any, count: int, *, is_from_outbox: bool = False) -> SendRequest:
        sdk: Any = super()

        def send(seconds: float) -> Any:
            sent = messages if request.batch is None else request.batch
            if isinstance(sent, DivertedBatch):
                sent.make_plain()
            return sdk.send_messages(sent, timeout=seconds)

        request = SendRequest(
            messages=messages,
            count=count,
            on_primary=send,
            new_batch=sdk.create_message_batch if isinstance(messages, list) else None,
            is_from_outbox=is_from_outbox,
        )
        return request

    def _opening_primary(self, pairing: PairingCore) -> Steps[None]:
        check_live(self)
        request = SendRequest(on_primary=lambda seconds: self._sdk_open())
        yield from SendCall(pairing, self, request, None).steps()

    def _unpaired(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
        """The SDK's own call."""
        self.client_state.check()
        self.has_called = True
        return partial(call, *args, **kwargs)
