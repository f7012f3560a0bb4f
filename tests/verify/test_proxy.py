"""A link forwards both ways until it is cut, and again when it is mended."""

import socket
import threading

import pytest

from pairbus.verify.proxy import LinkCut, Network


@pytest.fixture
def network():
    made = Network()
    yield made
    made.close()


@pytest.fixture
def echo():
    """The port of a server that answers with what it gets, in capitals."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_serve, args=(server,), daemon=True).start()
        yield server.getsockname()[1]


def _serve(server):
    try:
        while True:
            accepted, _ = server.accept()
            threading.Thread(target=_answer, args=(accepted,), daemon=True).start()
    except OSError:
        return


def _answer(accepted):
    with accepted:
        while data := accepted.recv(100):
            accepted.sendall(data.upper())


def connected(link):
    return socket.create_connection(("127.0.0.1", link.port), timeout=10)


@pytest.mark.parametrize("how", [LinkCut.DROP, LinkCut.DROP_ANSWERS])
def test_what_is_sent_through_a_cut_link_arrives_when_it_is_mended(network, echo, how):
    link = network.link_to(echo)
    with connected(link) as client:
        client.sendall(b"one")
        assert client.recv(100) == b"ONE"

        link.cut(how)
        assert link.is_cut
        client.sendall(b"two")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(100)
        link.mend()

        client.settimeout(10)
        assert client.recv(100) == b"TWO"


def test_a_reset_ends_connections_and_new_ones_too(network, echo):
    link = network.link_to(echo)
    with connected(link) as client:
        client.sendall(b"one")
        assert client.recv(100) == b"ONE"

        link.cut(LinkCut.RESET)

        assert _is_ended(client)
    with connected(link) as client:
        assert _is_ended(client)
    link.mend()
    with connected(link) as client:
        client.sendall(b"three")
        assert client.recv(100) == b"THREE"


def test_a_target_that_does_not_listen_ends_the_connection(network, echo):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with connected(network.link_to(port)) as client:
        assert _is_ended(client)


def _is_ended(client):
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True
