"""`./run demo` itself, to its end: what a newcomer is shown is a test like any other."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.release_only
def test_every_check_of_the_demo_holds_and_every_figure_is_in_its_object(orbitkv, model_path, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "python" / "demo.py", "--json", "--orbitkv", orbitkv, "--model", model_path],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] is True and result["seconds"] < 120

    for row, about in zip(result["rows"], (500, 1000, 2000), strict=True):
        assert about * 0.9 < row["prompt_tokens"] < about * 1.1
        assert row["remote_bytes"] == row["pages"] * 368_640 == (row["prompt_tokens"] - 1) // 16 * 368_640
        assert row["releases"] > 0 and row["answer"]
        assert row["ratio"] == pytest.approx(row["cold_ttft_ms"] / row["restored_ttft_ms"])

    held = {(check["step"].split()[0], check["what"]) for check in result["checks"] if check["holds"]}
    assert held >= {
        ("restore", "B's answer equals its own control"), ("restore", "remote bytes are exactly the pages'"),
        ("restore", "A acknowledged the release of every read"), ("restore", "manager A is drained"),
        ("restore", "manager B is drained"), ("serve", "every byte came from B"),
        ("damage", "the damaged block was refused and counted"), ("damage", "B's answer equals its control"),
        ("kill", "B recomputed"), ("kill", "B's answer equals its control"), ("kill", "manager B is drained"),
        ("speed", "restored at least 3 times sooner than computed")}
    assert list(tmp_path.iterdir()) == [], "the demo left its folder behind"
