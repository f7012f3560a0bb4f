"""A call on its way, in the asyncio shell: as `blocking/delivery.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

from azure.servicebus.exceptions import ServiceBusError

from pairbus.client.aio.bounds import bounded
from pairbus.client.aio.pairing import Pairing, open_link
from pairbus.client.aio.pool import Lane
from pairbus.client.backlog_batch import is_small
from pairbus.client.billing import extra_units
from pairbus.client.course import Course, is_stale, leaves_usable
from pairbus.client.errand import (
    BACKLOG_SECONDS_MIN,
    DIVERTED,
    OPEN_SECONDS_MIN,
    Done,
    Errand,
    FirstFailure,
    Patience,
)
from pairbus.client.route.router import Plan, ToBacklog, ToPrimary
from pairbus.client.sdk import private as internals
from pairbus.client.sdk.messages import diverted, eased

Result = TypeVar("Result")


async def deliver(
    pairing: Pairing,
    sender: Any,
    errand: Errand[Awaitable[Result], Result],
    timeout: float | None,
    failed: FirstFailure | None = None,
) -> Result:
    """`failed`: the first attempt was made, and came to nothing."""
    course = Course(pairing, sender.entity_name, errand, timeout)
    sender.has_called = True
    try:
        done = None if failed is None else await _go_on(pairing, course, failed)
        return await _run(pairing, sender, course) if done is None else done.result
    except Exception as error:
        told = course.told(error)
        if told is error:
            raise
        raise told from error


async def divert_at_once(
    pairing: Pairing, path: str, message: Any, timeout: float | None
) -> Done[None] | FirstFailure | None:
    """One message for an entity that is failed over, on a connection that is open and idle: the
    way of almost every message in an outage, without what only the others need. `deliver` goes on
    where it fails. None: nothing was tried."""
    way = pairing.detour(path)
    lane = None if way is None else pairing.lanes.borrow_at_once(way.queue)
    if way is None or lane is None:
        return None
    sender, clock, is_usable = lane.sender, pairing.clock, False
    began = clock()
    try:
        twin = eased(diverted(message, path))
        if not is_small(sender, twin):
            is_usable = True
            return None
        internals.set_retries(sender, pairing.backlog_retries())
        time = Patience(timeout, pairing.send_seconds)
        patience = time.in_backlog(now=began, at_least=BACKLOG_SECONDS_MIN)
        await internals.send(sender.send_messages, twin, patience)
        seconds = clock() - began
        is_usable = True
    except Exception as error:
        is_usable = leaves_usable(error)
        return FirstFailure(way, error, began)
    finally:
        pairing.lanes.give_back(lane, is_usable=is_usable)
    extra = extra_units(sender, message, sent_as=twin)
    pairing.sent(path, way, count=1, seconds=seconds, extra=extra)
    return DIVERTED


async def _go_on(
    pairing: Pairing, course: Course[Awaitable[Result], Result], failed: FirstFailure
) -> Done[Result] | None:
    way, error = failed.way, failed.error
    if isinstance(way, ToPrimary):
        course.time.on_primary(now=failed.began)
        await _wait(pairing, course.primary_failed(way, error), error)
        return None
    course.time.in_backlog(now=failed.began)
    if is_stale(error):
        return await _in_backlog(pairing, course, way, is_kept_stale=True)
    await _wait(pairing, course.backlog_failed(way, error), error)
    return None


async def _run(pairing: Pairing, sender: Any, course: Course[Awaitable[Result], Result]) -> Result:
    errand = course.errand
    # Each lap ends the call, waits for a throttled service, or follows a change of what is planned:
    # an entity that failed over or is back, a backlog queue less.
    while True:
        plan = course.plan()
        if isinstance(plan, ToPrimary):
            done = await _on_primary(pairing, sender, course, plan)
        elif isinstance(plan, ToBacklog) and errand.count:
            done = await _in_backlog(pairing, course, plan)
        else:  # nothing is to be sent, as in opening the link
            done = Done(errand.when_diverted(""))
        if done is not None:
            return done.result


async def _on_primary(
    pairing: Pairing, sender: Any, course: Course[Awaitable[Result], Result], plan: Plan
) -> Done[Result] | None:
    try:
        has_waited = await sender.turn.take(course.time.on_primary(now=pairing.clock()))
        try:
            if has_waited:  # another may have failed the entity over meanwhile
                plan = pairing.plan(course.path)
            if not isinstance(plan, ToPrimary):
                return None
            if plan.epoch != sender.epoch:
                await sender.renew(plan.epoch)
            remaining = course.time.on_primary(now=pairing.clock())
            try:
                if course.errand.count:
                    result = await course.errand.on_primary(remaining)
                else:  # the SDK opens a link without any time-out
                    async with bounded(remaining, f"opening a link to {course.path!r}"):
                        result = await course.errand.on_primary(remaining)
            except Exception:
                raise
            except BaseException:
                sender.distrust()
                raise
        finally:
            sender.turn.release()
    except Exception as error:
        await _wait(pairing, course.primary_failed(plan, error), error)
        return None
    if course.errand.count:  # a link that opens is no proof that a message would be taken
        extra = extra_units(sender, course.errand.content)
        pairing.sent(course.path, plan, count=course.errand.count, extra=extra)
    return Done(result)


async def _in_backlog(
    pairing: Pairing,
    course: Course[Awaitable[Result], Result],
    way: ToBacklog,
    *,
    is_kept_stale: bool = False,
) -> Done[Result] | None:
    """Sends what is left to one backlog queue, on a new link if the kept one has gone stale."""
    for fresh in (True,) if is_kept_stale else (False, True):
        patience = course.time.in_backlog(now=pairing.clock(), at_least=OPEN_SECONDS_MIN)
        try:
            lane = await pairing.lanes.borrow(way.queue, timeout=patience, fresh=fresh)
        except ServiceBusError as error:
            failure: Exception = error
            break
        was_kept, is_usable = not lane.is_fresh, False
        try:
            await _send_on(pairing, course, lane, way)
            is_usable = True
            return Done(course.errand.when_diverted(way.queue))
        except Exception as error:
            is_usable = leaves_usable(error)
            failure = error
        finally:
            pairing.lanes.give_back(lane, is_usable=is_usable)
        if not (was_kept and is_stale(failure)):
            break
    await _wait(pairing, course.backlog_failed(way, failure), failure)
    return None


async def _send_on(pairing: Pairing, course: Course[Any, Any], lane: Lane, way: ToBacklog) -> None:
    sender, clock = lane.sender, pairing.clock
    internals.check_not_shut(sender)
    internals.set_retries(sender, pairing.backlog_retries())
    if not internals.is_running(sender):
        patience = course.time.in_backlog(now=clock(), at_least=OPEN_SECONDS_MIN)
        await open_link(sender, patience)
    parcels = course.pack(sender, way)
    while parcels:
        began = clock()
        patience = course.time.in_backlog(now=began, at_least=BACKLOG_SECONDS_MIN)
        await internals.send(sender.send_messages, parcels[0].content, patience)
        course.diverted(way, seconds=clock() - began)


async def _wait(pairing: Pairing, seconds: float, error: Exception) -> None:
    if not seconds:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await pairing.closing.wait()
            raise error
