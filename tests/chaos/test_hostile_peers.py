"""Peers that lie, stall, flood or vanish: the broker ends their connection, nobody else notices.

The broker runs in a process of its own with small limits (`victim.py`). All through these tests a
client of the official SDK sends and receives on it; after each test it must still do so, without an
error and without having waited long. The last test looks for what the process still holds.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.amqp.codec.types import Described, Int, UInt, ULong
from pairbus.amqp.codec.values import encode
from tests.chaos import peers
from tests.chaos.breaches import FLOODS, MUTE, ODDITIES, SPOKEN, Breach
from tests.chaos.peers import ACCEPTED, AMQP, CLOSE, DETACH, SASL, Farewell, Peer, performative
from tests.chaos.victim import LIMITS, Healthy, Victim, start_victim

# The official client's own share is a few milliseconds; the machine may be busy with other tests.
HEALTHY_SECONDS_MAX = 10.0
HANG_UP_SECONDS_MAX = LIMITS.handshake_seconds + 60.0
IDLE_SECONDS_MAX = 2 * LIMITS.idle_timeout_seconds + 60.0
FUZZ_SEED = int(os.environ.get("PAIRBUS_FUZZ_SEED", "1"))
FUZZ_CONVERSATIONS = int(os.environ.get("PAIRBUS_FUZZ_CONVERSATIONS", "200"))
_PEEK = (
    encode(peers.described(0x73, "id", None, None, None, "answers"))
    + encode(Described(ULong(0x74), {"operation": "com.microsoft:peek-message"}))
    + encode(Described(ULong(0x77), {"from-sequence-number": 1, "message-count": Int(250)}))
)


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with start_victim(tmp_path_factory.mktemp("victim")) as victim:
        yield victim


@pytest.fixture(scope="module")
def healthy(victim: Victim) -> Iterator[Healthy]:
    client = Healthy(victim.address.connection_string)
    yield client
    client.stop()


@pytest.fixture(scope="module", autouse=True)
def sleeper(victim: Victim) -> Iterator[Peer]:
    """Attaches before anything else happens, and says nothing ever after."""
    with Peer(victim.address) as peer:
        peer.attach("target", receiver=True)
        yield peer


@pytest.fixture(autouse=True)
def _nobody_notices(victim: Victim, healthy: Healthy) -> Iterator[None]:
    yield
    before, deadline = healthy.round_trips, time.monotonic() + 60
    while healthy.round_trips < before + 2 and not healthy.errors and time.monotonic() < deadline:
        time.sleep(0.01)
    assert victim.is_alive
    assert healthy.errors == []
    assert healthy.round_trips >= before + 2, "the healthy client is stuck"
    slowest, healthy.slowest_seconds = healthy.slowest_seconds, 0.0
    assert slowest < HEALTHY_SECONDS_MAX, f"the healthy client waited {slowest:.1f} s"


def _cases(table: dict[str, Breach]) -> Any:
    return pytest.mark.parametrize(
        "breach", [pytest.param(f, id=name) for name, f in table.items()]
    )


# --- one rule at a time ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mute_farewells(victim: Victim) -> dict[str, Farewell]:
    """Several at a time, because some are only detected when the handshake times out."""

    def part(name: str) -> Farewell:
        with Peer(victim.address) as peer:
            MUTE[name](peer)
            return peer.farewell(within=HANG_UP_SECONDS_MAX)

    with ThreadPoolExecutor(LIMITS.connections_max // 2) as crowd:
        return dict(zip(MUTE, crowd.map(part, MUTE), strict=True))


@pytest.mark.parametrize("breach", MUTE)
def test_hangs_up_before_amqp_is_spoken(breach: str, mute_farewells: dict[str, Farewell]) -> None:
    farewell = mute_farewells[breach]

    assert farewell.is_closed, f"still connected; it said {farewell.data[:200]!r}"


@_cases(SPOKEN)
def test_closes_with_an_error(breach: Breach, victim: Victim) -> None:
    with Peer(victim.address) as peer:
        breach(peer)

        farewell = peer.farewell()

    assert farewell.is_closed, f"still connected; it said {farewell.frames}"
    assert farewell.errors, f"no error before it hung up: {farewell.frames}"
    code, condition, description = farewell.errors[-1]
    assert code == CLOSE, farewell.errors
    assert condition.startswith("amqp:")
    assert description


def test_the_wrong_version_is_answered_with_the_right_one(victim: Victim) -> None:
    with Peer(victim.address) as peer:
        peer.send(b"AMQP\x00\x02\x00\x00")

        farewell = peer.farewell()

    assert farewell.data.startswith((AMQP, SASL))
    assert farewell.is_closed


def test_a_wrong_key_gets_the_sasl_outcome_auth(victim: Victim) -> None:
    with Peer(victim.address) as peer:
        peer.send(SASL, peers.sasl("PLAIN", b"\0nobody\0key"))

        farewell = peer.farewell()

    assert [frame.fields[0] for frame in farewell.frames if frame.code == peers.SASL_OUTCOME] == [1]


@_cases(ODDITIES)
def test_survives_what_is_merely_odd(breach: Breach, victim: Victim) -> None:
    """The broker may refuse or accept it; answering it must never block the broker."""
    with Peer(victim.address) as peer:
        breach(peer)

        peer.farewell(within=0.1)


def _conversation(victim: Victim) -> list[bytes]:
    """A client that does everything right, frame by frame."""
    secret = f"\0{victim.address.policy}\0{victim.address.key}".encode()
    management = "target/$management"
    return [
        *(SASL, peers.sasl("PLAIN", secret), AMQP, peers.opening(), peers.begin()),
        *(peers.attach("target"), peers.transfer(0, peers.message(b"x" * 50))),
        *(peers.attach("target", name="out", handle=1, receiver=True), peers.credit(5, handle=1)),
        performative(peers.DISPOSITION, True, UInt(0), None, False, peers.described(ACCEPTED)),
        peers.attach(management, name="answers", handle=3, receiver=True),
        *(peers.credit(9, handle=3), peers.attach(management, name="ask", handle=2)),
        *(peers.transfer(1, _PEEK, handle=2), performative(DETACH, UInt(1), True)),
        *(performative(peers.END), performative(CLOSE)),
    ]


def test_survives_conversations_with_a_few_wrong_bytes(victim: Victim) -> None:
    choice = random.Random(FUZZ_SEED)
    right = _conversation(victim)
    for _ in range(FUZZ_CONVERSATIONS):
        frames = [bytearray(frame) for frame in right]
        for _ in range(choice.randint(1, 4)):
            # What matters comes late; a broken SASL exchange would hide it.
            position = choice.randrange(0 if choice.random() < 0.1 else 3, len(frames))
            match choice.choice(("byte", "byte", "byte", "cut", "twice", "drop")):
                case "byte":
                    frame = frames[position]
                    frame[choice.randrange(len(frame))] = choice.randrange(256)
                case "cut":
                    del frames[position][choice.randrange(len(frames[position])) + 1 :]
                case "twice":
                    frames.insert(position, frames[position])
                case "drop" if len(frames) > 5:
                    del frames[position]
        with Peer(victim.address) as peer:
            # A transfer may not come before the broker's begin has announced its window, and a
            # farewell in the same breath would make its answers superfluous.
            for part in (frames[:6], frames[6:13], frames[13:]):
                peer.send(*part)
                peer.farewell(within=0.004)

    assert victim.is_alive, f"seed {FUZZ_SEED}"


# --- too much -------------------------------------------------------------------------------------


def _wait_for_a_free_connection(victim: Victim) -> None:
    """The broker may take a moment to see that the crowd is gone."""
    deadline = time.monotonic() + 60
    while True:  # until a slot is free or the time is over
        with Peer(victim.address) as late:
            late.send(SASL)
            if late.farewell(within=0.1).data or time.monotonic() > deadline:
                break
    with Peer(victim.address) as late:
        late.open()


def test_a_crowd_of_strangers_shuts_nobody_out_who_has_a_key(victim: Victim) -> None:
    early = [Peer(victim.address).open() for _ in range(LIMITS.connections_max // 2)]
    crowd = [Peer(victim.address) for _ in range(3 * LIMITS.unauthenticated_max)]
    try:
        with Peer(victim.address) as late:
            late.open()
        turned_away = [peer.farewell().is_closed for peer in crowd[: -LIMITS.unauthenticated_max]]
        left = [bye for peer in early if (bye := peer.farewell(within=0.001)).is_closed]
    finally:
        for peer in early + crowd:
            peer.reset()

    assert all(turned_away)
    assert left == []
    _wait_for_a_free_connection(victim)


def test_links_above_the_limit_are_refused(victim: Victim) -> None:
    with Peer(victim.address) as peer:
        peer.begin()
        peer.send(
            *(peers.attach("target", name=str(n), handle=n) for n in range(4 * LIMITS.links_max)),
            peers.begin(channel=9),
        )

        frames = peer.frames_until(lambda frame: frame.code == peers.BEGIN)

    refused = [frame for frame in frames if frame.error is not None]
    attached = sum(frame.code == peers.ATTACH for frame in frames) - len(refused)
    assert refused
    assert attached <= LIMITS.links_max


def test_sessions_above_the_limit_end_the_connection(victim: Victim) -> None:
    with Peer(victim.address) as peer:
        peer.open().send(*(peers.begin(channel=channel) for channel in range(0, 65_000, 50)))

        farewell = peer.farewell()

    assert farewell.is_closed
    assert farewell.condition is not None


@pytest.mark.req("B-09")
def test_a_message_that_never_ends_is_refused_and_takes_no_memory(victim: Victim) -> None:
    part = b"\0\x53\x75\xb0\x7f\xff\xff\xff" + bytes(60_000)
    more = peers.transfer(0, bytes(60_000), more=True, first=False)
    with victim.growth_below(8), Peer(victim.address) as peer:
        peer.attach("target").send(peers.transfer(0, part, more=True))
        peer.send_what_fits(more * 600, seconds=60)
        peer.send(peers.transfer(0, b"", first=False))
        frames = peer.frames_until(lambda frame: frame.code == peers.DISPOSITION or frame.error)

    rejected = [frame for frame in frames if frame.code == peers.DISPOSITION]
    conditions = [frame.error[0] for frame in frames if frame.error]
    conditions += [str(frame.fields[4].value[0].value[0]) for frame in rejected]
    assert "amqp:link:message-size-exceeded" in conditions, frames


def _still_works(peer: Peer, *, channel: int) -> bool:
    """Whether the broker begins that session; if not, it must have closed with an error."""
    for frame in peer.frames():
        if frame.code == peers.BEGIN and frame.fields[0] == channel:
            return True
        if frame.code == CLOSE:
            assert frame.error is not None
    return False


@pytest.mark.parametrize("is_reading", [True, False], ids=["reads", "never reads"])
@pytest.mark.parametrize("flood", [pytest.param(f, id=name) for name, f in FLOODS.items()])
def test_bears_a_flood_of_tiny_frames(
    flood: Callable[[int], bytes], is_reading: bool, victim: Victim
) -> None:
    data = b"".join(flood(n) for n in range(2_000)) + peers.begin(channel=9)
    with (
        victim.growth_below(12),
        Peer(victim.address, receive_buffer=None if is_reading else 4096) as peer,
    ):
        peer.attach("target", receiver=True)

        if is_reading:
            peer.send_and_read(data, seconds=30)
            assert _still_works(peer, channel=9)
        else:
            peer.send_what_fits(data, seconds=0.5)
            time.sleep(0.2)


# --- too slow -------------------------------------------------------------------------------------


def test_a_handshake_that_never_ends_is_cut_off_however_it_dribbles(victim: Victim) -> None:
    """All at once: silence, and one byte at a time of each protocol that the port speaks."""
    hello = bytes.fromhex("16030100b4010000b00303") + random.Random(7).randbytes(180)
    amqp = SASL + peers.sasl("ANONYMOUS", b"") + AMQP + peers.opening()
    web = (
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        + b"X" * 99
    )
    scripts = {"silence": b"", "AMQP": amqp, "HTTP": web, "TLS": hello, "a SASL header": SASL}
    loris = {name: (Peer(victim.address), iter(script)) for name, script in scripts.items()}
    started = time.monotonic()
    ended: dict[str, float] = {}

    while len(ended) < len(loris) and time.monotonic() - started < HANG_UP_SECONDS_MAX + 1:
        for name, (peer, script) in loris.items():
            if name not in ended:
                peer.send(bytes([byte]) if (byte := next(script, None)) is not None else b"")
                if peer.farewell(within=0.01).is_closed:
                    ended[name] = time.monotonic() - started
    for peer, _ in loris.values():
        peer.reset()

    assert set(ended) == set(loris)
    assert max(ended.values()) < HANG_UP_SECONDS_MAX


def test_a_handshake_that_stops_half_way_is_cut_off(victim: Victim) -> None:
    stages: dict[str, Callable[[Peer], Any]] = {
        "after TLS": lambda peer: peer.encrypt(),
        "after the SASL header": lambda peer: peer.send(SASL),
        "after SASL": lambda peer: peer.authenticate(),
        "after half an open": lambda peer: peer.authenticate().send(peers.opening()[:12]),
        "half a frame announced": lambda peer: peer.send(SASL + b"\0\0\xff\xff\2\1\0\0"),
    }
    halted = {name: Peer(victim.address) for name in stages}
    for name, peer in halted.items():
        stages[name](peer)

    farewells = {name: peer.farewell(within=HANG_UP_SECONDS_MAX) for name, peer in halted.items()}
    for peer in halted.values():
        peer.reset()

    assert [name for name, farewell in farewells.items() if not farewell.is_closed] == []


def test_a_peer_that_falls_silent_is_closed_after_the_idle_time_out(sleeper: Peer) -> None:
    farewell = sleeper.farewell(within=IDLE_SECONDS_MAX)

    assert farewell.is_closed
    assert farewell.condition == "amqp:resource-limit-exceeded"


def test_peers_that_vanish_leave_nothing_behind(victim: Victim) -> None:
    files = victim.settled_usage().files
    for stage in (Peer.authenticate, Peer.open, Peer.begin):
        peer = Peer(victim.address)
        stage(peer)
        peer.reset()
    for receiver in (False, True):
        peer = Peer(victim.address)
        peer.attach("target", receiver=receiver)
        peer.send(peers.credit(100) if receiver else peers.transfer(0, b"half", more=True))
        peer.reset()

    assert victim.settled_usage(files_max=files).files <= files


@pytest.fixture(scope="module")
def _flooded(victim: Victim) -> None:
    """A queue with more in it than a slow reader's buffer may hold."""
    with (
        ServiceBusClient.from_connection_string(victim.address.connection_string) as client,
        client.get_queue_sender("flood") as sender,
    ):
        for _ in range(45):
            sender.send_messages([ServiceBusMessage(bytes(2_000)) for _ in range(100)])


@pytest.mark.usefixtures("_flooded")
def test_what_waits_for_a_reader_that_never_reads_is_bounded(victim: Victim) -> None:
    with victim.growth_below(8), Peer(victim.address, receive_buffer=4096) as peer:
        peer.attach("flood", receiver=True).send(peers.credit(1_000_000))

        time.sleep(1)
    with (
        ServiceBusClient.from_connection_string(victim.address.connection_string) as client,
        client.get_queue_receiver("flood") as receiver,
    ):
        assert receiver.receive_messages(1, max_wait_time=30), "its messages did not come back"


@pytest.mark.usefixtures("_flooded")
def test_answers_that_nobody_reads_are_bounded(victim: Victim) -> None:
    requests = b"".join(peers.transfer(n, _PEEK) for n in range(2_000))
    with victim.growth_below(32), Peer(victim.address, receive_buffer=4096) as peer:
        peer.attach("flood/$management").send(
            peers.attach("flood/$management", name="answers", handle=1, receiver=True),
            peers.credit(1_000_000, handle=1),
        )

        peer.send_what_fits(requests, seconds=2)
        time.sleep(1)


# --- after all that -------------------------------------------------------------------------------


def test_no_file_thread_or_memory_is_left_behind(victim: Victim) -> None:
    def misbehave() -> None:
        for breach in SPOKEN.values():
            with Peer(victim.address) as peer:
                breach(peer)
                peer.farewell()
        for number in range(50):
            with Peer(victim.address) as peer:
                peer.attach("target", receiver=bool(number % 2))
                peer.send(peers.transfer(0, b"half", more=True))

    misbehave()
    before = victim.settled_usage()
    for _ in range(4):
        misbehave()
    after = victim.settled_usage(files_max=before.files)

    assert after.files <= before.files
    assert after.threads <= before.threads
    assert after.MiB - before.MiB < 4
