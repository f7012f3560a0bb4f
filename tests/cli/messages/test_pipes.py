"""Commands in a shell's pipes, with a broker in a process of its own that may be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.process import BrokerProcess
from tests.cli.conftest import Run
from tests.cli.process import SECONDS, in_shell, shell, started
from tests.waiting import wait_until

COUNT = 2000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), {"a": {}, "b": {}})
    process.start()
    yield process
    process.kill()


@pytest.fixture(autouse=True)
def used(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIRBUS_PRIMARY", broker.connection_string)


def bodies(pairbus: Run, *words: str) -> list[str]:
    done = pairbus("peek", *words, "--json", "--count", "99999")
    assert (done.code, done.err) == (0, "")
    return [json.loads(line)["body"] for line in done.out.splitlines()]


def test_messages_go_from_pipe_to_pipe(broker: BrokerProcess, pairbus: Run) -> None:
    done = in_shell(
        "seq 250 | pairbus send a --lines && "
        "pairbus receive a --all --wait 2s --json | pairbus send b --json-lines && "
        "(set +o pipefail; pairbus peek b --json --count 250 | head -n 1 | wc -l) && "
        "pairbus receive b --count 250 --json > all.jsonl",
        cwd=broker.folder,
    )

    printed = ["sent 250 messages to 'a'", "sent 250 messages to 'b'", "1"]
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, printed, "")
    lines = (broker.folder / "all.jsonl").read_text().splitlines()
    assert [json.loads(line)["body"] for line in lines] == [str(n) for n in range(1, 251)]
    assert bodies(pairbus, "b") == []


def test_a_broker_that_is_killed_while_dead_letters_are_resubmitted_loses_none(
    broker: BrokerProcess, pairbus: Run, stdin: Callable[[bytes], None]
) -> None:
    stdin(b"".join(b"%d\n" % number for number in range(COUNT)))
    assert pairbus("send", "a", "--lines").code == 0
    pairbus("receive", "a", "--count", str(COUNT), "--dead-letter", "--json")
    with started("dead-letters", "resubmit", "a", "--keep-ids") as process:
        # Some are under way when the first has come.
        wait_until(lambda: bodies(pairbus, "a"), seconds=SECONDS)

        broker.kill()
        _, err = process.communicate(timeout=SECONDS)
    broker.start()

    assert "Traceback" not in err
    everything = {str(number) for number in range(COUNT)}
    alive, dead = bodies(pairbus, "a"), bodies(pairbus, "a/$DeadLetterQueue")
    assert {*alive, *dead} == everything
    again = pairbus("dead-letters", "resubmit", "a", "--keep-ids", "--json")
    assert json.loads(again.out)["left"] == 0
    assert set(bodies(pairbus, "a")) == everything


def test_ctrl_c_loses_nothing_of_what_is_in_a_pipe(
    broker: BrokerProcess, pairbus: Run, stdin: Callable[[bytes], None]
) -> None:
    """On a terminal, both commands get it. The one has completed what the other has not sent."""
    pairbus("receive", "a", "--all", "--wait", "1s", "--json")
    pairbus("receive", "b", "--all", "--wait", "1s", "--json")
    stdin(b"".join(b"%d\n" % number for number in range(COUNT)))
    assert pairbus("send", "a", "--lines").code == 0
    line = "pairbus receive a --all --wait 1h --json | pairbus send b --json-lines"
    with subprocess.Popen(
        shell(line), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        wait_until(lambda: bodies(pairbus, "b"), seconds=SECONDS)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)

    sent = len(bodies(pairbus, "b"))
    assert err.decode() == f"pairbus: interrupted, sent {sent:,} messages\n"
    everything = {str(number) for number in range(COUNT)}
    assert {*bodies(pairbus, "a"), *bodies(pairbus, "b")} == everything


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize(
    ("option", "lines", "part"),
    [
        ("--lines", b"1\n2\n", b"part"),
        ("--json-lines", b'{"body": "1"}\n{"body": "2"}\n', b'{"b'),
    ],
)
def test_ctrl_c_does_not_send_half_a_line(
    pairbus: Run, option: str, lines: bytes, part: bytes, is_closed: bool
) -> None:
    pairbus("receive", "b", "--all", "--wait", "1s", "--json")
    with started("send", "b", option, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        os.write(process.stdin.fileno(), lines + part)
        wait_until(lambda: len(bodies(pairbus, "b")) == 2, seconds=SECONDS)

        process.send_signal(signal.SIGINT)
        if is_closed:  # by the command that writes into it, and got the same Ctrl-C
            _, err = process.communicate(timeout=SECONDS)
        else:
            process.wait(SECONDS)
            _, err = process.communicate()

    told = f"interrupted, sent 2 messages, without the {len(part)} bytes of an unfinished line"
    assert (process.returncode, err) == (130, f"pairbus: {told}\n")
    assert bodies(pairbus, "b") == ["1", "2"]


def test_the_last_line_of_a_pipe_needs_no_newline(broker: BrokerProcess, pairbus: Run) -> None:
    pairbus("receive", "b", "--all", "--wait", "1s", "--json")

    done = in_shell("printf '1\\n2' | pairbus send b --lines")

    assert (done.returncode, done.stdout, done.stderr) == (0, "sent 2 messages to 'b'\n", "")
    assert bodies(pairbus, "b") == ["1", "2"]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (">&-", "Bad file descriptor"),
        pytest.param(
            ">/dev/full",
            "No space left on device",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full"),
        ),
        ("", "Broken pipe"),
    ],
)
@pytest.mark.parametrize("option", ["", "--json"])
def test_what_was_accepted_is_said_when_stdout_cannot_be_written_to(
    pairbus: Run, target: str, reason: str, option: str
) -> None:
    pairbus("receive", "b", "--all", "--wait", "1s", "--json")
    if not target:  # nobody reads it
        with started("send", "b", "z", *option.split()) as process:
            assert process.stdout is not None
            process.stdout.close()
            process.stdout = None
            _, err = process.communicate(timeout=SECONDS)
        code = process.returncode
    else:
        done = in_shell(f"pairbus send b z {option} {target}")
        code, err = done.returncode, done.stderr

    told = f"pairbus: cannot write to stdout: {reason}; sent 1 message\n"
    assert (code, err) == (1, told)
    assert bodies(pairbus, "b") == ["z"]


@pytest.mark.parametrize("command", ["peek", "receive"])
def test_watch_goes_on_after_the_broker_was_down(
    broker: BrokerProcess, pairbus: Run, command: str
) -> None:
    pairbus("receive", "b", "--all", "--wait", "2s", "--json")
    pairbus("send", "b", "before")
    with started(command, "b", "--watch", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["body"] == "before"
        broker.kill()
        lost = process.stderr.readline()
        broker.start()
        pairbus("send", "b", "after")
        body = "before"  # again, if it was written and not completed yet
        while body == "before":
            body = json.loads(process.stdout.readline())["body"]
        assert body == "after"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)

    assert lost.startswith(f"cannot reach localhost:{broker.port}: ")
    assert lost.endswith("; trying again until it answers\n")
    assert (process.returncode, err) == (130, f"localhost:{broker.port} answers again\n")
