"""The build itself, tested: what the module table does not allow must not build.

Two trees. The probe tree is this repo's own meson.build with its table replaced by three one-file modules, each using
the one before: low <- mid <- top. Each test changes one thing in it and looks at what meson and ninja say. The real
tree is configured as it stands, and every compile command of every module is held against the module's row.

Negative controls: the unchanged probe tree must build, and with a guard taken out of meson.build the forbidden include
must build too, which shows that it is the guard that stops it.
"""
import json
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TABLE = re.compile(r"^modules = \[\n(.*?)^\]\n", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\s*\['(\w+)', \[(.*?)\]\],$", re.MULTILINE)
PROBE_ROWS = {"low": [], "mid": ["low"], "top": ["mid"]}


class Tree:
    """The probe tree; `build()` returns None when it builds, else what meson or ninja said."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "scripts").mkdir(parents=True)
        (folder / "tests").mkdir()
        for name in ("meson.build", "meson_options.txt", "scripts/check_includes.py", "tests/fuzz_replay.c"):
            shutil.copy(ROOT / name, folder / name)
        # What stands behind the loop over the modules is no part of the rules, and its folders are not here.
        self.edit_rules(r"(?s)(.*\nendforeach\n).*", r"\1")
        self.set_rows(PROBE_ROWS)
        for name in PROBE_ROWS:
            self.write(f"src/{name}/meson.build", f"sources = files('{name}.c')\n")
            self.write(f"src/{name}/include/okv/{name}/{name}.h", f"int okv_{name}(void);\n")
            self.write(f"src/{name}/{name}.c",
                       "".join(f'#include "okv/{used}/{used}.h"\n' for used in [name] + PROBE_ROWS[name]) +
                       f"int okv_{name}(void)\n{{\n\treturn 1;\n}}\n")

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def include(self, module, header):
        """Adds one include line to the module's source."""
        path = self.folder / "src" / module / f"{module}.c"
        path.write_text(f'#include "{header}"\n' + path.read_text())

    def set_rows(self, rows):
        body = "".join(f"  ['{name}', [{', '.join(repr(used) for used in uses)}]],\n" for name, uses in rows.items())
        self.edit_rules(TABLE, f"modules = [\n{body}]\n")

    def edit_rules(self, old, new):
        path = self.folder / "meson.build"
        text, changes = re.subn(old, new, path.read_text())
        assert changes == 1, f"meson.build no longer holds {old}"
        path.write_text(text)

    def configure(self):
        return complaint_of(["meson", "setup", "out"], self.folder)

    def build(self):
        configured = (self.folder / "out" / "build.ninja").exists()
        complaint = None if configured else self.configure()
        return complaint or complaint_of(["ninja", "-C", "out"], self.folder)


def complaint_of(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return None if done.returncode == 0 else done.stdout + done.stderr


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "tree")


def test_unchanged_probe_tree_builds(tree):
    assert tree.build() is None


def test_declared_include_builds(tree):
    tree.include("top", "okv/mid/mid.h")
    assert tree.build() is None


def test_undeclared_include_fails_to_compile(tree):
    tree.include("mid", "okv/top/top.h")
    assert "okv/top/top.h: No such file or directory" in tree.build()


def test_include_of_a_dependency_of_a_dependency_fails_to_compile(tree):
    tree.include("top", "okv/low/low.h")
    assert "okv/low/low.h: No such file or directory" in tree.build()


def test_include_of_another_modules_private_header_fails_to_compile(tree):
    tree.write("src/mid/secret.h", "int secret;\n")
    tree.include("top", "secret.h")
    assert "secret.h: No such file or directory" in tree.build()


def test_public_header_is_held_by_the_table_too(tree):
    tree.write("src/mid/include/okv/mid/mid.h", '#include "okv/low/low.h"\nint okv_mid(void);\n')
    assert "okv/low/low.h: No such file or directory" in tree.build(), "top may not see low through mid's header"


def test_unit_test_sees_only_its_own_closure(tree):
    tree.write("src/mid/meson.build", "sources = files('mid.c')\nunit_tests = ['mid']\n")
    tree.write("src/mid/tests/test_mid.c", '#include "okv/top/top.h"\nint main(void)\n{\n\treturn 0;\n}\n')
    assert "okv/top/top.h: No such file or directory" in tree.build()


def test_upward_edge_fails_to_configure(tree):
    tree.set_rows(PROBE_ROWS | {"low": ["top"]})
    assert "Key top is not in the dictionary" in tree.configure()


def test_edge_to_itself_fails_to_configure(tree):
    tree.set_rows(PROBE_ROWS | {"mid": ["mid"]})
    assert "Key mid is not in the dictionary" in tree.configure()


@pytest.mark.parametrize("header", ["../low/include/okv/low/low.h", "okv/../../../low/include/okv/low/low.h",
                                    "/usr/include/errno.h"])
def test_include_that_climbs_or_is_absolute_fails_to_build(tree, header):
    tree.include("top", header)
    assert f'src/top/top.c:1: #include "{header}"' in tree.build()


def test_climbing_include_added_to_a_built_tree_fails_the_next_build(tree):
    assert tree.build() is None
    tree.write("src/top/inner.h", '#include "../mid/include/okv/mid/mid.h"\n')
    assert "src/top/inner.h:1" in tree.build()


def test_control_without_its_target_a_climbing_include_builds(tree):
    tree.include("top", "../low/include/okv/low/low.h")
    tree.edit_rules("  build_by_default: true\\)", "  build_by_default: false)")
    assert tree.build() is None


def test_control_with_includes_passed_on_a_dependency_of_a_dependency_builds(tree):
    tree.include("top", "okv/low/low.h")
    tree.edit_rules(r"include_of \+= \{name: own_include\}", "include_of += {name: includes}")
    assert tree.build() is None


@pytest.fixture(scope="module")
def real_commands(tmp_path_factory):
    """Compile commands of the real tree, configured as it stands."""
    out = tmp_path_factory.mktemp("real")
    assert complaint_of(["meson", "setup", out, ROOT], ROOT) is None
    return json.loads((out / "compile_commands.json").read_text())


def real_rows():
    table = TABLE.search((ROOT / "meson.build").read_text()).group(1)
    return {name: re.findall(r"'(\w+)'", uses) for name, uses in ROW.findall(table)}


def modules_included(entry):
    """Names of the modules whose public includes this compile command can see."""
    found = set()
    for folder in re.findall(r"-I(\S+)", entry["command"]):
        path = pathlib.Path(entry["directory"], folder).resolve()
        if path.name == "include" and path.is_relative_to(ROOT / "src"):
            found.add(path.parent.name)
    return found


def test_every_command_of_the_real_tree_sees_exactly_its_modules_row(real_commands):
    rows = real_rows()
    seen = set()
    for entry in real_commands:
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if not path.is_relative_to(ROOT / "src"):
            continue  # the replay driver of the fuzz targets
        if path == ROOT / "src" / "app" / "main.c":
            assert modules_included(entry) == set(), "the program itself only calls the dispatcher"
            continue
        module = path.relative_to(ROOT / "src").parts[0]
        own = {module} if (ROOT / "src" / module / "include").is_dir() else set()  # nobody is above `app`
        assert modules_included(entry) == {*own, *rows[module]}, entry["file"]
        seen.add(module)
    assert seen == set(rows)


def test_every_module_folder_has_a_row():
    assert {path.parent.name for path in ROOT.glob("src/*/meson.build")} == set(real_rows())
