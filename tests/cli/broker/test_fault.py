"""`pairbus fault` against a running broker, over its port."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus.broker import Broker, Policy, Right
from pairbus.broker.faults import KINDS
from tests.cli.conftest import Run
from tests.cli.process import finished_after


@pytest.mark.req("B-13")
def test_a_fault_is_started_listed_and_cleared(pairbus: Run, broker: Broker) -> None:
    started = pairbus(
        *("fault", "add", "throttle", "--entity", "orders"),
        *("--rate", "0.2", "--on", "send", "--on", "receive"),
    )
    assert (started.code, started.err) == (0, "")
    expected = "fault 1 is active: throttle on orders rate=0.2 on=send,receive, until 20"
    assert started.out.startswith(expected)
    [fault] = broker.faults.active()
    assert fault.fault.seconds == 600
    assert (fault.fault.entity, fault.fault.rate) == ("orders", 0.2)

    listed = pairbus("fault", "list")
    head, row = (line.split() for line in listed.out.splitlines())
    assert head == ["id", "kind", "entity", "state", "until", "settings", "hits"]
    assert row[:4] == ["1", "throttle", "orders", "active"]
    assert row[-3:] == ["rate=0.2", "on=send,receive", "0"]

    assert pairbus("fault", "clear", "1") == (0, "fault 1 cleared\n", "")
    assert broker.faults.all() == []


def test_a_fault_hits_applications_until_it_is_cleared(pairbus: Run, broker: Broker) -> None:
    with (
        ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        pairbus("fault", "add", "cannot-send", "--entity", "Orders")
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("refused"))

        assert pairbus("fault", "clear").out == "all faults cleared\n"
        sender.send_messages(ServiceBusMessage("taken"))
        assert pairbus("fault", "clear").out == "no faults are active or planned\n"


def test_a_fault_may_end_by_itself(pairbus: Run, broker: Broker) -> None:
    done = pairbus("fault", "add", "slow", "--latency", "10ms", "--duration", "1m", "--json")

    fault = json.loads(done.out)
    assert (fault["kind"], fault["state"], fault["seconds"]) == ("slow", "active", 60)
    assert fault["endsAt"] is not None
    assert json.loads(pairbus("fault", "list", "--json").out) == [fault]


def test_several_faults_are_cleared_by_number(pairbus: Run, broker: Broker) -> None:
    for _ in range(3):
        pairbus("fault", "add", "hang", "--entity", "orders")

    assert pairbus("fault", "clear", "1", "3").out == "fault 1 cleared\nfault 3 cleared\n"

    assert [fault.id for fault in broker.faults.all()] == [2]


def test_a_script_plans_faults(pairbus: Run, broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "outage.json"
    faults = [
        {"at": 0, "kind": "throttle", "rate": 0.5, "seconds": 600},
        {"at": 3600, "kind": "restart"},
    ]
    file.write_text(json.dumps(faults))

    done = pairbus("fault", "script", str(file), "--seed", "7", "--json")

    assert [(fault["kind"], fault["state"]) for fault in json.loads(done.out)] == [
        ("throttle", "active"),
        ("restart", "planned"),
    ]
    assert "from 20" in pairbus("fault", "list").out
    pairbus("fault", "clear")
    file.write_text(json.dumps({"script": faults, "seed": 7}))
    again = pairbus("fault", "script", str(file), "--json")
    assert [fault["seed"] for fault in json.loads(again.out)] == [
        fault["seed"] for fault in json.loads(done.out)
    ]


def test_the_kinds_are_those_that_the_broker_has(pairbus: Run) -> None:
    text = pairbus("fault", "kinds").out

    assert [line.split()[0] for line in text.splitlines()[1:]] == [*KINDS]
    assert list(json.loads(pairbus("fault", "kinds", "--json").out)) == list(KINDS)


def test_every_setting_of_every_kind_has_an_option(pairbus: Run) -> None:
    kinds = json.loads(pairbus("fault", "kinds", "--json").out)
    settings = {name for names in kinds.values() for name in names}
    assert "latencySeconds" in settings  # as in the JSON of a script
    text = pairbus("fault", "add", "--help").out

    for name in settings:
        words = re.sub("([A-Z])", r"-\1", name).lower()
        option = "duration" if name == "seconds" else words.removesuffix("-seconds")
        assert f"--{option} " in text


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["add", "earthquake"],
            "'earthquake' is not a kind of fault; the kinds are unreachable, hang, ",
        ),
        (
            ["add", "throttle", "--mode", "drop"],
            "throttle has no option --mode; it has --entity, --duration, ",
        ),
        (["add", "throttle", "--rate", "3"], "throttle: --rate is 3.0, but must be a number from"),
        (["add", "throttle", "--on", "x"], "--on is ['x'], but must be one or more of send, "),
        (["add", "hang", "--duration", "0s"], "hang: --duration is 0.0, but must be a number from"),
        (["add", "slow"], "slow: set --latency, --bytes-per-second, or both"),
        (["add", "disk_full", "--entity", "a"], "hits the whole namespace"),
        (["add", "unreachable"], "cannot be cleared from outside; set --duration"),
        (["add", "hang", "--duration", "soon"], "--duration 'soon' is not a duration"),
        (["add", "hang", "--entity", "nope"], "namespace 'local' has no entity 'nope'; `pairbus"),
        (["add", "hang", "--entity", "oders"], "no entity 'oders'; did you mean 'orders'?"),
        (["script", "absent.json"], "absent.json: cannot read it: No such file or directory"),
        (["clear", "x"], "NUMBER 'x' is not a whole number"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    pairbus: Run, broker: Broker, words: list[str], error: str
) -> None:
    done = pairbus("fault", *words)

    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert error in done.err
    assert broker.faults.all() == []


def test_a_mistyped_entity_is_refused_while_other_faults_are_active(
    pairbus: Run, broker: Broker, tmp_path: Path
) -> None:
    file = tmp_path / "outage.json"
    file.write_text('[{"at": 0, "kind": "hang"}, {"at": 5, "kind": "hang", "entity": "oders"}]')
    pairbus("fault", "add", "cannot_contact")

    added = pairbus("fault", "add", "hang", "--entity", "oders")
    planned = pairbus("fault", "script", str(file))

    for done in (added, planned):
        assert done.code == 2
        assert "no entity 'oders'; did you mean 'orders'?" in done.err
    assert len(broker.faults.all()) == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "not JSON"),
        ("{}", "a script is a JSON list of faults"),
        ('[{"kind": "hang"}]', "entry 0 of the script needs 'at'"),
        ('[{"at": 0, "kind": "unreachable"}]', "set --duration"),
    ],
)
def test_an_error_in_a_script_names_its_file(
    pairbus: Run, broker: Broker, tmp_path: Path, text: str, error: str
) -> None:
    file = tmp_path / "outage.json"
    file.write_text(text)

    done = pairbus("fault", "script", str(file))

    assert done.code == 2
    assert done.err.startswith(f"pairbus: {file}: ")
    assert error in done.err


def test_what_the_broker_refuses_is_exit_code_1(pairbus: Run, broker: Broker) -> None:
    absent = pairbus("fault", "clear", "99")
    stranger = pairbus("fault", "list", "-c", broker.connection_string.replace("SAS_KEY", "KEY"))

    assert (absent.code, stranger.code) == (1, 1)
    assert f"localhost:{broker.port} has no fault 99; `pairbus fault list` shows" in absent.err
    assert "there is no policy 'RootManageSharedAccessKey' with this key" in stranger.err


def test_it_needs_the_manage_claim(pairbus: Run) -> None:
    policy = Policy(name="shop", key="k", rights=frozenset({Right.SEND, Right.LISTEN}))
    with Broker(policies=[policy]) as running:
        done = pairbus("fault", "list", "-c", running.connection_string)

    assert done.code == 1
    assert "policy 'shop' has no Manage claim" in done.err


def test_a_broker_that_is_not_there_is_an_error(pairbus: Run) -> None:
    with Broker() as gone:
        text = gone.connection_string

    done = pairbus("fault", "list", "-c", text)

    assert done.code == 1
    assert (
        ": Connection refused; is the broker running, and is this its port? The fault" in done.err
    )
    assert done.err.endswith("`unreachable` closes the port until its duration is over.\n")


def test_a_mistyped_kind_gets_a_suggestion(pairbus: Run) -> None:
    done = pairbus("fault", "add", "throtle", "-c", "Endpoint=sb://localhost:1;SharedAccessKey=k")

    assert done.code == 2
    assert done.err == "pairbus: 'throtle' is not a kind of fault; did you mean 'throttle'?\n"


def test_a_tls_only_broker_is_asked_with_its_ca_file(pairbus: Run) -> None:
    with Broker(tls_only=True) as running:
        words = ("fault", "list", "-c", running.connection_string)

        trusted = pairbus(*words, "--ca-file", str(running.ca_file))
        stranger = pairbus(*words)

    assert trusted.code == 0
    assert stranger.code == 1
    assert "its certificate is not trusted" in stranger.err


@pytest.fixture
def other_server() -> Iterator[int]:
    """Something else on a port."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_another_server_has_no_faults(pairbus: Run, other_server: int) -> None:
    text = (
        f"Endpoint=sb://127.0.0.1:{other_server};SharedAccessKeyName=a;SharedAccessKey=b;"
        "UseDevelopmentEmulator=true"
    )

    done = pairbus("fault", "list", "-c", text)

    assert done.code == 1
    assert "has no faults on demand (it answers with 404): is it a pairbus broker?" in done.err


def test_a_namespace_that_closed_its_port_opens_it_again(
    pairbus: Run, broker: Broker, use: Callable[[Broker], Broker]
) -> None:
    assert pairbus("fault", "add", "unreachable", "--duration", "10m").code == 0

    refused = pairbus("fault", "list")
    broker.faults.clear()
    back = pairbus("fault", "list")

    assert (refused.code, back.code) == (1, 0)
    assert "cannot reach" in refused.err


def test_in_a_process_of_its_own_it_loads_no_sdk(broker: Broker) -> None:
    code = "import atexit; atexit.register(lambda: print('azure.servicebus' in sys.modules))"

    done = finished_after(code, "fault", "list", "--json")

    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\nFalse\n", "")


def test_a_large_number_is_shown_in_full(pairbus: Run, broker: Broker) -> None:
    pairbus("fault", "add", "slow", "--bytes-per-second", "12500000")

    assert "bytes-per-second=12500000" in pairbus("fault", "list").out


def test_clear_prints_json_for_programs(pairbus: Run, broker: Broker) -> None:
    pairbus("fault", "add", "hang", "--entity", "orders")

    assert json.loads(pairbus("fault", "clear", "1", "--json").out) == {"cleared": [1]}
    assert json.loads(pairbus("fault", "clear", "--json").out) == {"cleared": "all"}
