"""The lint can fail: each check is shown something that it must complain about."""
import pytest


@pytest.fixture
def lint(script, tmp_path):
    module = script("lint")
    module.ROOT = tmp_path
    (tmp_path / "src" / "base").mkdir(parents=True)
    (tmp_path / "src" / "base" / "meson.build").write_text("")
    (tmp_path / "src" / "base" / "README.md").write_text("# base\n")
    (tmp_path / "README.md").write_text("| [base](src/base/README.md) |\n")
    module.repo_files = lambda pattern: sorted(tmp_path.rglob(pattern))
    return module


def test_whole_tree_has_no_complaints(lint):
    assert lint.dead_links() == [] and lint.module_map() == []


def test_dead_link_is_found_and_addresses_anchors_and_code_are_not(lint):
    (lint.ROOT / "page.md").write_text("[a](src/base/README.md#x) [b](https://example.org/x) [c](#here)\n"
                                       "```\n[d](in/code.md)\n```\n[e](gone.md)\n")
    assert lint.dead_links() == ["page.md: the link to gone.md leads nowhere\n"]


def test_module_without_readme_or_place_in_the_map_is_found(lint):
    (lint.ROOT / "src" / "span").mkdir()
    (lint.ROOT / "src" / "span" / "meson.build").write_text("")
    complaints = "".join(lint.module_map())
    assert "src/span: has no README.md" in complaints and "lacks a link to src/span" in complaints


def test_map_that_names_no_module_is_found(lint):
    (lint.ROOT / "README.md").write_text("[base](src/base/README.md) [gone](src/gone/README.md)\n")
    assert lint.module_map() == ["README.md: the map names src/gone, which is no module\n"]


def test_header_that_needs_another_before_it_is_found(lint):
    include = lint.ROOT / "src" / "base" / "include" / "okv" / "base"
    include.mkdir(parents=True)
    (include / "good.h").write_text("#include <stdint.h>\nuint8_t okv_good(void);\n")
    (include / "bad.h").write_text("uint8_t okv_bad(void);\n")
    lint.BUILD = lint.ROOT
    lint.repo_files = lambda pattern: sorted(include.glob("*.h"))
    lint.compile_commands = lambda: [{"directory": str(lint.ROOT), "file": "src/base/x.c",
                                      "command": f"cc -I{lint.ROOT}/src/base/include -std=gnu17 -o x.o -c x.c"}]
    complaints = lint.headers_alone()
    assert len(complaints) == 1 and "bad.h" in complaints[0]


def test_analysis_looks_at_all_that_is_compiled_but_the_modules_tests(lint):
    names = ["src/base/x.c", "src/base/tests/test_x.c", "bench/speed.c", "tests/fuzz_replay.c", "/usr/src/generated.c"]
    lint.BUILD = lint.ROOT
    lint.compile_commands = lambda: [{"directory": str(lint.ROOT), "file": name, "command": ""} for name in names]
    lint.outputs_of_failures = lambda commands: [str(command[-1]) for command in commands]
    assert lint.static_analysis() == [str(lint.ROOT / name) for name in ("bench/speed.c", "src/base/x.c",
                                                                         "tests/fuzz_replay.c")]
