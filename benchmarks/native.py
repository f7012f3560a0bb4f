"""Load for RabbitMQ in its own protocol, AMQP 0-9-1, as cheap as a client can be.

Every message of a run is the same, so a publish is a constant and so is the length of a delivery:
publishing is writing copies of one byte string, and receiving is counting strides and checking the
delivery tag at each end. Only confirms are parsed one by one. That leaves RabbitMQ nearly all of
the machine, which is the point: a slow client would flatter us. It is no general client.
"""

from __future__ import annotations

import argparse
import socket
import struct

import loop

FRAME_END = b"\xce"
METHOD, HEADER, BODY = 1, 2, 3
CHANNEL = 1
FRAME_MAX = 131_072
CONSUMER_TAG = b"t"
PERSISTENT = struct.pack(">HB", 0x1000, 2)  # property flags: only delivery-mode, 2

CONNECTION_START, CONNECTION_TUNE, CONNECTION_OPEN_OK = (10, 10), (10, 30), (10, 41)
CHANNEL_OPEN_OK, QOS_OK, CONSUME_OK, DELIVER = (20, 11), (60, 11), (60, 21), (60, 60)
QUEUE_DECLARE_OK, QUEUE_DELETE_OK, CONFIRM_SELECT_OK = (50, 11), (50, 41), (85, 11)
ACK = struct.pack(">HH", 60, 80)


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def method(channel: int, number: tuple[int, int], arguments: bytes) -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", *number) + arguments)


def content(body: bytes) -> bytes:
    """The header and body frames; the same bytes when published and when delivered."""
    header = struct.pack(">HHQ", 60, 0, len(body)) + PERSISTENT
    return frame(HEADER, CHANNEL, header) + frame(BODY, CHANNEL, body)


class Channel:
    """A blocking connection with one channel: everything that happens before the clock starts."""

    def __init__(self, port: int, user: str, password: str, vhost: str = "/") -> None:
        self.sock = loop.connect("127.0.0.1", port)
        self._buffer = b""
        self.sock.sendall(b"AMQP\x00\x00\x09\x01")
        self.expect(CONNECTION_START)
        plain = f"\0{user}\0{password}".encode()
        arguments = struct.pack(">I", 0) + short(b"PLAIN") + struct.pack(">I", len(plain)) + plain
        self.sock.sendall(method(0, (10, 11), arguments + short(b"en_US")))
        self.expect(CONNECTION_TUNE)
        tune = struct.pack(">HIH", 1, FRAME_MAX, 0)  # one channel, no heartbeats
        self.sock.sendall(method(0, (10, 31), tune))
        self.call((10, 40), short(vhost.encode()) + b"\0\0", CONNECTION_OPEN_OK, channel=0)
        self.call((20, 10), b"\0", CHANNEL_OPEN_OK)

    def call(
        self, number: tuple[int, int], arguments: bytes, answer: tuple[int, int], channel: int = 1
    ) -> bytes:
        self.sock.sendall(method(channel, number, arguments))
        return self.expect(answer)

    def expect(self, answer: tuple[int, int]) -> bytes:
        while True:
            if len(self._buffer) >= 7:
                size = struct.unpack_from(">I", self._buffer, 3)[0]
                if len(self._buffer) >= size + 8:
                    payload, self._buffer = self._buffer[7 : 7 + size], self._buffer[8 + size :]
                    number = struct.unpack_from(">HH", payload)
                    if number != answer:
                        raise loop.LoadError(f"RabbitMQ said {number} {payload!r}, not {answer}")
                    return payload[4:]
            data = self.sock.recv(loop.READ_SIZE)
            if not data:
                raise loop.LoadError(f"RabbitMQ closed the connection instead of {answer}")
            self._buffer += data

    def declare(self, queue: bytes, kind: bytes, version: int = 0) -> None:
        """Make a durable queue of the kind `classic` or `quorum`; a classic one of a version."""
        table = short(b"x-queue-type") + b"S" + struct.pack(">I", len(kind)) + kind
        if version:
            table += short(b"x-queue-version") + b"I" + struct.pack(">i", version)
        arguments = b"\0\0" + short(queue) + b"\x02" + struct.pack(">I", len(table)) + table
        self.call((50, 10), arguments, QUEUE_DECLARE_OK)

    def delete(self, queue: bytes) -> None:
        """With all its messages; a queue that is not there is fine."""
        self.call((50, 40), b"\0\0" + short(queue) + b"\0", QUEUE_DELETE_OK)

    def depth(self, queue: bytes) -> int:
        """How many messages are there to be received."""
        arguments = b"\0\0" + short(queue) + b"\x01" + struct.pack(">I", 0)  # only look
        answer = self.call((50, 10), arguments, QUEUE_DECLARE_OK)
        return int(struct.unpack_from(">I", answer, 1 + answer[0])[0])

    def close(self) -> None:
        self.sock.close()


class Publisher:
    """Keeps `window` persistent messages in flight until `count` are confirmed."""

    def __init__(
        self, channel: Channel, queue: bytes, body: bytes, count: int, window: int
    ) -> None:
        channel.call((85, 10), b"\0", CONFIRM_SELECT_OK)
        self.sock: socket.socket = channel.sock
        self.done = False
        publish = method(CHANNEL, (60, 40), b"\0\0" + short(b"") + short(queue) + b"\0")
        self._message = publish + content(body)
        self._count, self._window, self._sent = count, window, 0
        self._low = 0  # every tag up to here is confirmed
        self._early: set[int] = set()  # and these above it
        self._rest = b""

    def output(self) -> bytes:
        in_flight = self._sent - self._low - len(self._early)
        more = min(self._window - in_flight, self._count - self._sent)
        self._sent += more
        return self._message * more

    def received(self, data: bytes) -> None:
        data = self._rest + data
        whole = len(data) // 21 * 21  # a confirm is 21 bytes, and nothing else is sent to us
        self._rest = data[whole:]
        for number, tag, multiple in struct.iter_unpack(">7x4sQBx", data[:whole]):
            if number != ACK:
                raise loop.LoadError(f"RabbitMQ did not confirm a message: {data[:200]!r}")
            self._confirm(tag, multiple & 1)
        self.done = self._low >= self._count

    def _confirm(self, tag: int, multiple: int) -> None:
        if multiple:
            self._low = max(self._low, tag)
            if self._early:
                self._early = {early for early in self._early if early > self._low}
        elif tag == self._low + 1:
            self._low = tag
        else:
            self._early.add(tag)
        while self._low + 1 in self._early:
            self._low += 1
            self._early.remove(self._low)


class Consumer:
    """Receives and acknowledges `count` messages, `prefetch` of them outstanding at most.

    What one read brought is acknowledged with one `multiple` ack, the cheapest way there is.
    Nothing answers an ack; so at the end a second consumer is asked for, which a classic queue
    grants only when it has dealt with all of them (a quorum queue may lag by some hundred).
    """

    def __init__(
        self, channel: Channel, queue: bytes, body: bytes, count: int, prefetch: int
    ) -> None:
        channel.call((60, 10), struct.pack(">IHB", 0, prefetch, 0), QOS_OK)
        self.sock: socket.socket = channel.sock
        self.done = False
        self._queue, self._count, self._seen, self._acked = queue, count, 0, 0
        deliver = short(CONSUMER_TAG) + bytes(9) + short(b"") + short(queue)
        self._stride = len(method(CHANNEL, DELIVER, deliver) + content(body))
        self._tag_at = 7 + 4 + len(short(CONSUMER_TAG))
        self._asked = False
        self._rest = bytearray()
        # Consuming begins with the first output, that is when the clock runs.
        self._out = self._consume(CONSUMER_TAG)
        self._consume_ok = len(method(CHANNEL, CONSUME_OK, short(CONSUMER_TAG)))
        self._started = False

    def received(self, data: bytes) -> None:
        rest = self._rest
        rest += data
        if not self._started:
            if len(rest) < self._consume_ok:
                return
            del rest[: self._consume_ok]
            self._started = True
        if self._asked:
            self.done = len(rest) > 0
            return
        whole = len(rest) // self._stride
        if not whole:
            return
        self._seen += whole
        last = (whole - 1) * self._stride
        (tag,) = struct.unpack_from(">Q", rest, last + self._tag_at)
        if tag != self._seen or rest[last + self._stride - 1] != FRAME_END[0]:
            raise loop.LoadError(f"RabbitMQ delivered tag {tag} where {self._seen} was due")
        del rest[: whole * self._stride]

    def output(self) -> bytes:
        out, self._out = self._out, b""
        if self._seen > self._acked:
            self._acked = self._seen
            out += method(CHANNEL, (60, 80), struct.pack(">QB", self._seen, 1))
        if self._seen >= self._count and not self._asked:
            self._asked = True
            out += self._consume(b"barrier")
        return out

    def _consume(self, tag: bytes) -> bytes:
        arguments = b"\0\0" + short(self._queue) + short(tag) + b"\0" + struct.pack(">I", 0)
        return method(CHANNEL, (60, 20), arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--user", default="guest")
    parser.add_argument("--password", default="guest")
    parser.add_argument("--queue", required=True)
    parser.add_argument("--size", type=int, default=500)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--send", type=int, metavar="WINDOW", default=0)
    parser.add_argument("--receive", type=int, metavar="PREFETCH", default=0)
    options = parser.parse_args()
    queue, body = options.queue.encode(), bytes(options.size)
    peers: list[loop.Peer] = []
    for kind, depth in ((Publisher, options.send), (Consumer, options.receive)):
        if depth:
            channel = Channel(options.port, options.user, options.password)
            peers.append(kind(channel, queue, body, options.count, depth))
    loop.measure(lambda: loop.run(peers), options.count)


if __name__ == "__main__":
    main()
