"""The count that decides whether a run passed: each way in which a test program can go wrong must be a failure."""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COUNT_LINE = re.compile(r"^\d+ passed, \d+ failed(, \d+ skipped)?$")


def record(stdout, result="OK", returncode=0):
    return {"name": "orbitkv:base+unit / base_x", "stdout": stdout, "result": result, "returncode": returncode}


@pytest.mark.parametrize("words, stdout, result, returncode, expected", [
    ("each case counts", "1..2\nok 1 - a\nok 2 - b\n", "OK", 0, (2, 0, 0)),
    ("a failed case counts once", "1..2\nok 1 - a\nnot ok 2 - b\n# why\n# not ok - group\n", "FAIL", 1, (1, 1, 0)),
    ("a skipped case as cmocka writes it", "1..2\nok 1 - a\nnot ok 2 # SKIP b\n", "OK", 0, (1, 0, 1)),
    ("a skipped case as TAP writes it", "1..1\nok 1 - a # SKIP no model\n", "OK", 0, (0, 0, 1)),
    ("dying before the end", "1..3\nok 1 - a\n", "FAIL", -11, (1, 1, 0)),
    ("dying before the first case", "1..3\n", "FAIL", -6, (0, 1, 0)),
    ("a leak after the last case", "1..1\nok 1 - a\n", "FAIL", 23, (1, 1, 0)),
    ("too long", "1..2\nok 1 - a\n", "TIMEOUT", -15, (1, 1, 0)),
    ("two groups in one program", "1..1\nok 1 - a\n1..1\nok 1 - b\n", "OK", 0, (2, 0, 0)),
    ("a replayed corpus is one case", "7 inputs replayed\n", "OK", 0, (1, 0, 0)),
    ("a replayed corpus that crashed", "", "FAIL", -6, (0, 1, 0)),
    ("a program that printed nothing and failed", "", "ERROR", 127, (0, 1, 0)),
])
def test_c_program_is_counted(script, words, stdout, result, returncode, expected):
    count = script("test").count_c_program(record(stdout, result, returncode))
    assert (count.passed, len(count.failures), count.skipped) == expected, words


def test_pytest_report_is_counted(script, tmp_path):
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite><testcase classname="a" name="x"/>'
                      '<testcase classname="a" name="y"><failure/></testcase>'
                      '<testcase classname="a" name="z"><error/><system-out/></testcase>'
                      '<testcase classname="a" name="w"><skipped/></testcase></testsuite></testsuites>')
    count = script("test").count_junit(report)
    assert (count.passed, len(count.failures), count.skipped) == (1, 2, 1)


def test_last_line_of_a_run_is_the_count():
    done = run("--quick", "base")
    assert done.returncode == 0
    assert COUNT_LINE.match(done.stdout.splitlines()[-1])


def test_unknown_word_is_refused_with_the_known_ones():
    done = run("nonsense")
    assert done.returncode != 0
    assert "nonsense" in done.stderr and "blackbox" in done.stderr and "base" in done.stderr


def test_run_in_which_nothing_ran_fails():
    done = run("--quick", "layering", "-k", "no_test_has_this_name")
    assert done.returncode != 0
    assert done.stdout.splitlines()[-1] == "0 passed, 0 failed"


def run(*words):
    return subprocess.run([ROOT / "scripts" / "test.py", *words], capture_output=True, text=True, cwd=ROOT,
                          stdin=subprocess.DEVNULL, env=os.environ)
