"""The socket of a client, with a peer that reads slowly."""

import socket
import threading
import time

from pairbus.amqp.client.transport import Transport


def test_output_waits_for_a_slow_reader_and_arrives_in_order():
    pieces = [bytes([number]) * (300_000 + number) for number in range(20)]
    found = bytearray()
    may_read, is_over = threading.Event(), threading.Event()

    def read():
        connection, _ = server.accept()
        with connection:
            may_read.wait(30)
            while len(found) < sum(map(len, pieces)) and (data := connection.recv(65_536)):
                found.extend(data)
            is_over.wait(30)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=read)
        thread.start()
        port = server.getsockname()[1]
        transport = Transport("127.0.0.1", port, tls=None, seconds=30.0)
        for piece in pieces:
            transport.write(piece)
            assert transport.exchange(0.0) == b""
        assert transport.has_output
        may_read.set()
        until = time.monotonic() + 30
        while transport.has_output and time.monotonic() < until:
            transport.exchange(0.1)
        is_over.set()
        thread.join(30)
        transport.close()
    assert found == b"".join(pieces)


def test_an_address_of_a_kind_that_this_machine_lacks_is_not_the_last_one(monkeypatch):
    """As IPv6 where it is switched off: the name has such an address, but no socket can be made."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        found = [
            (socket.AF_APPLETALK, socket.SOCK_STREAM, 6, "", address),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", address),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        Transport("anywhere", address[1], tls=None, seconds=5.0).close()
