"""Downloads against a server on this machine that breaks off, refuses and lies."""

import hashlib
import http.server
import socket
import threading

import pytest

from datasets import DataError
from datasets import fetch as fetch_module
from datasets.errors import no_progress
from datasets.fetch import FOOD101_MD5, FOOD101_URL, download

BODY = bytes(range(256)) * 8192  # 2 MiB
MD5 = hashlib.md5(BODY).hexdigest()


class Server:
    """Serves BODY; the test says how each request goes wrong."""

    def __init__(self):
        self.break_after: list[int] = []
        self.status: list[int] = []
        self.ranges = True
        self.requests: list[str | None] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                wanted = self.headers.get("Range")
                outer.requests.append(wanted)
                if outer.status:
                    self.send_error(outer.status.pop(0))
                    return
                start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
                if wanted and outer.ranges and start >= len(BODY):
                    self.send_error(416)
                    return
                partial = bool(wanted) and outer.ranges
                body = BODY[start:] if partial else BODY
                self.send_response(206 if partial else 200)
                self.send_header("Content-Length", str(len(body)))
                if partial:
                    self.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
                self.end_headers()
                if outer.break_after:
                    self.wfile.write(body[: outer.break_after.pop(0)])
                    self.wfile.flush()
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                else:
                    self.wfile.write(body)

            def log_message(self, format, *args):
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            def handle_error(self, request, client_address):
                pass

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/food-101.tar.gz"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    served = Server()
    thread = threading.Thread(target=served.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    served.server.shutdown()
    served.server.server_close()
    thread.join()


def fetch(server, tmp_path, md5=MD5, progress=no_progress):
    return download(server.url, tmp_path / "f.tar.gz", md5=md5, progress=progress, retry_wait_s=0)


def test_a_file_is_downloaded_checked_and_reported(server, tmp_path):
    reports = []
    path = fetch(server, tmp_path, progress=lambda *report: reports.append(report))
    assert path.read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == ["f.tar.gz"]
    assert ("downloading", len(BODY), len(BODY)) in reports
    assert reports[-1] == ("checking", len(BODY), len(BODY))


def test_a_connection_that_breaks_is_resumed_where_it_broke(server, tmp_path):
    server.break_after = [1_000_000, 500_000]
    assert fetch(server, tmp_path).read_bytes() == BODY
    assert server.requests[0] is None
    assert [wanted and wanted.startswith("bytes=") for wanted in server.requests[1:]] == [
        True,
        True,
    ]
    starts = [int(wanted[6:-1]) for wanted in server.requests[1:]]
    assert 0 < starts[0] <= 1_000_000
    assert starts[0] < starts[1] <= 1_500_000


def test_a_later_call_goes_on_from_the_kept_bytes(server, tmp_path):
    (tmp_path / "f.tar.gz.partial").write_bytes(BODY[:1234])
    assert fetch(server, tmp_path).read_bytes() == BODY
    assert server.requests == ["bytes=1234-"]


def test_a_whole_partial_file_is_only_checked(server, tmp_path):
    (tmp_path / "f.tar.gz.partial").write_bytes(BODY)
    assert fetch(server, tmp_path).read_bytes() == BODY


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.ranges = False
    (tmp_path / "f.tar.gz.partial").write_bytes(b"x" * 1000)
    assert fetch(server, tmp_path).read_bytes() == BODY


def test_a_wrong_md5_is_an_error_and_nothing_stays(server, tmp_path):
    with pytest.raises(DataError, match="has not the published MD5"):
        fetch(server, tmp_path, md5="0" * 32)
    assert list(tmp_path.iterdir()) == []


def test_a_finished_file_is_not_downloaded_again(server, tmp_path):
    fetch(server, tmp_path)
    server.requests.clear()
    fetch(server, tmp_path)
    assert server.requests == []


def test_another_file_of_that_name_is_left_alone(server, tmp_path):
    (tmp_path / "f.tar.gz").write_bytes(b"mine")
    with pytest.raises(DataError, match="is not the published file; move it away"):
        fetch(server, tmp_path)
    assert (tmp_path / "f.tar.gz").read_bytes() == b"mine"


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_is_told_at_once(status, server, tmp_path):
    server.status = [status]
    with pytest.raises(DataError, match=f"the server answers {status}"):
        fetch(server, tmp_path)
    assert len(server.requests) == 1


def test_a_server_that_is_busy_for_a_while_is_asked_again(server, tmp_path):
    server.status = [503, 429, 500]
    assert fetch(server, tmp_path).read_bytes() == BODY


def test_giving_up_keeps_the_bytes_and_says_so(server, tmp_path):
    server.break_after = [300_000] + [0] * 9
    with pytest.raises(
        DataError, match=r"check the network and run it again, it goes on after [1-9]"
    ):
        fetch(server, tmp_path)
    kept = (tmp_path / "f.tar.gz.partial").read_bytes()
    assert kept
    assert BODY.startswith(kept)


def test_no_server_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(DataError, match="check the network") as error:
        download(
            "http://127.0.0.1:9/x", tmp_path / "x", md5=MD5, progress=no_progress, retry_wait_s=0
        )
    assert "\n" not in str(error.value)


def test_a_disk_without_room_is_told_before_downloading(server, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(fetch_module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DataError, match="needs 2,097,152 more bytes, 1,000 are free"):
        fetch(server, tmp_path)


def test_a_full_disk_is_told_at_once(server, tmp_path, monkeypatch):
    def full(stage, done, total):
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match="the disk is full"):
        fetch(server, tmp_path, progress=full)
    assert len(server.requests) == 1


def test_food_101_is_fetched_from_its_publisher_with_the_published_md5():
    # The address and sum that torchvision, TensorFlow Datasets and the publisher's page give.
    assert FOOD101_URL == "https://data.vision.ee.ethz.ch/cvl/food-101.tar.gz"
    assert FOOD101_MD5 == "85eeb15f3717b99a5da872d97d918f87"
