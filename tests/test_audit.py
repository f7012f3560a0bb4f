"""`make audit`, with a server of our own in place of OSV."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "audit"
LOCK = """# a comment
good==1.0 \\
    --hash=sha256:00
bad-one==2.0.post1 ; sys_platform == 'linux' \\
    --hash=sha256:00
"""


@pytest.fixture
def osv():
    """Answers with what is in `answer`, and keeps the last request."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self):
            server.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(server.answer)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def audit(port, tmp_path):
    lock = tmp_path / "requirements.lock"
    lock.write_text(LOCK)
    words = [sys.executable, str(SCRIPT), "--url", f"http://127.0.0.1:{port}/", str(lock)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def test_a_known_vulnerability_fails(osv, tmp_path):
    osv.answer = json.dumps({"results": [{"vulns": [{"id": "PYSEC-1"}]}, {}]}).encode()

    done = audit(osv.server_port, tmp_path)

    asked = [(one["package"]["name"], one["version"]) for one in osv.asked["queries"]]
    assert asked == [("bad-one", "2.0.post1"), ("good", "1.0")]
    assert done.returncode == 1
    assert "audit: bad-one 2.0.post1 has known vulnerabilities: https://osv.dev/PYSEC-1" in (
        done.stderr
    )
    assert "good" not in done.stderr


def test_no_known_vulnerability_is_said_in_a_line(osv, tmp_path):
    osv.answer = b'{"results": [{}, {}]}'

    done = audit(osv.server_port, tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "audit: none of 2 packages has a known vulnerability\n"


@pytest.mark.parametrize("answer", [None, b"<html>", b"[]", b'{"results": []}'])
def test_a_service_that_does_not_answer_fails_nothing(osv, tmp_path, answer):
    osv.answer = answer
    nobody = 1

    done = audit(nobody if answer is None else osv.server_port, tmp_path)

    assert done.returncode == 0
    assert done.stderr.startswith("audit: skipped, http://127.0.0.1:")
    assert done.stderr.count("\n") == 1
