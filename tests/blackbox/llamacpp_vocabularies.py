"""The tokenizer test vectors of llama.cpp: vocabularies as GGUF files, with inputs and the ids that llama.cpp gives.

They are in the source archive of the PyPI package llama-cpp-python (MIT), under the llama.cpp that it carries. The
archive (77 MB) is fetched once through pip's own index configuration, checked by SHA-256, and only the files named
here are kept in the user's cache folder. Nothing is built: `pip download` would build the package to learn its name.
"""
import hashlib
import os
import pathlib
import tarfile
import tempfile

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
ARCHIVE_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
NAMES = ("gpt-2", "starcoder")
FILES = [f"ggml-vocab-{name}.gguf{suffix}" for name in NAMES for suffix in ("", ".inp", ".out")]


class Unavailable(Exception):
    """The files are not here and cannot be fetched."""


def folder():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(cache) / "orbitkv" / "oracles" / f"{PACKAGE}-{VERSION}"


def download(target):
    """Writes the source archive to the open file `target` and returns its SHA-256."""
    from pip._internal.commands.download import DownloadCommand

    command = DownloadCommand("download", "")
    with command.main_context():
        options, _ = command.parse_args(["--quiet", "--retries", "1"])
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session)
        links = [found.link for found in finder.find_all_candidates(PACKAGE)
                 if str(found.version) == VERSION and not found.link.is_wheel]
        if not links:
            raise Unavailable(f"the package index gives no source archive of {PACKAGE} {VERSION}; offline?")
        reply = session.get(links[0].url_without_fragment, stream=True, headers={"Accept-Encoding": "identity"})
        reply.raise_for_status()
        digest = hashlib.sha256()
        for chunk in reply.iter_content(1 << 20):
            digest.update(chunk)
            target.write(chunk)
    return digest.hexdigest()


def unpack(archive, into):
    with tarfile.open(archive) as tar:
        for member in tar:
            name = pathlib.PurePosixPath(member.name)
            if member.isfile() and name.name in FILES and name.parts[-2] == "models":
                part = into / (name.name + ".part")
                part.write_bytes(tar.extractfile(member).read())
                part.rename(into / name.name)


def vocabularies():
    """The folder that holds FILES, fetched if they are not there. Raises Unavailable."""
    place = folder()
    if all((place / name).exists() for name in FILES):
        return place
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=place, suffix=".tar.gz") as archive:
        try:
            digest = download(archive)
        except Unavailable:
            raise
        except Exception as error:  # whatever pip's network layer raises
            raise Unavailable(f"{PACKAGE} {VERSION} could not be fetched ({type(error).__name__}); offline?") from error
        archive.flush()
        if digest != ARCHIVE_SHA256:
            raise Unavailable(f"the archive of {PACKAGE} {VERSION} has SHA-256 {digest}, not the expected one")
        unpack(archive.name, place)
    missing = [name for name in FILES if not (place / name).exists()]
    if missing:
        raise Unavailable(f"the archive of {PACKAGE} {VERSION} lacks {missing}")
    return place
