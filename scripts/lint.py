#!/usr/bin/env python3
"""Checks of form that no compiler makes: `./run help lint` lists them. Prints what to change, and nothing else.

Each check is a function that returns complaints, one text each; no complaint means that it holds.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build-release"
LINK = re.compile(r"!?\[[^\]\n]*\]\(([^)\s]+)(?: \"[^\"]*\")?\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def repo_files(*patterns):
    """Files of the checkout that git tracks or would track."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
                            cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in sorted(set(listed.split("\0")) - {""}) if (ROOT / name).exists()]


def outputs_of_failures(commands, folder=ROOT):
    """Runs the commands on all cores; returns what those wrote that failed."""
    def run(command):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        return done.stdout + done.stderr if done.returncode else None

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [output for output in pool.map(run, commands) if output is not None]


def formatting():
    return outputs_of_failures([["clang-format", "--dry-run", "-Werror", path] for path in repo_files("*.c", "*.h")])


def climbing_includes():
    return outputs_of_failures([[ROOT / "scripts" / "check_includes.py", ROOT]])


def readable_paths(text):
    """Link targets of a Markdown text that name files: no addresses, no anchors, nothing inside code blocks."""
    for target in LINK.findall(FENCE.sub("", text)):
        path = target.partition("#")[0]
        if path and not re.match(r"[a-z][a-z0-9+.-]*:", path):
            yield path


def dead_links():
    complaints = []
    for page in repo_files("*.md"):
        for target in readable_paths(page.read_text()):
            base = ROOT if target.startswith("/") else page.parent
            if not (base / target.lstrip("/")).exists():
                complaints.append(f"{page.relative_to(ROOT)}: the link to {target} leads nowhere\n")
    return complaints


def module_map():
    """Each module has a README, and README.md's map links to it; the map names nothing that is not there."""
    modules = {path.parent.name for path in ROOT.glob("src/*/meson.build")}
    mapped = set(re.findall(r"\]\(src/(\w+)/?(?:README\.md)?\)", (ROOT / "README.md").read_text()))
    complaints = [f"src/{name}: has no README.md\n" for name in sorted(modules)
                  if not (ROOT / "src" / name / "README.md").exists()]
    complaints += [f"README.md: the map lacks a link to src/{name}\n" for name in sorted(modules - mapped)]
    complaints += [f"README.md: the map names src/{name}, which is no module\n" for name in sorted(mapped - modules)]
    return complaints


def compile_commands():
    return json.loads((BUILD / "compile_commands.json").read_text())


def source_of(entry):
    return pathlib.Path(entry["directory"], entry["file"]).resolve()


def headers_alone():
    """Compiles each public header by itself with the flags of its own module."""
    flags = {}
    for entry in compile_commands():
        path = source_of(entry)
        if path.is_relative_to(ROOT / "src"):
            kept = [word for word in shlex.split(entry["command"])[1:] if re.match(r"-[IDWfmisO]|-std", word)]
            flags.setdefault(path.relative_to(ROOT / "src").parts[0], kept)
    commands = []
    for header in repo_files("src/*/include/**/*.h"):
        module, _, *inside = header.relative_to(ROOT / "src").parts
        if module in flags:
            include = "/".join(inside)
            commands.append(["sh", "-c", 'printf "#include \\"%s\\"\\n" "$0" | gcc "$@" -fsyntax-only -x c -',
                             include, *flags[module]])
    return outputs_of_failures(commands, BUILD)


def static_analysis():
    """clang-tidy over all that is compiled but the modules' tests, whose assertions its analyser cannot follow."""
    sources = {source_of(entry) for entry in compile_commands()}
    wanted = sorted(path for path in sources if path.is_relative_to(ROOT) and
                    not (path.is_relative_to(ROOT / "src") and "tests" in path.parts))
    return outputs_of_failures([["clang-tidy", "-p", BUILD, "--quiet", path] for path in wanted])


CHECKS = [
    ("formatting (clang-format -i FILE repairs it)", formatting),
    ("includes that climb", climbing_includes),
    ("links in the docs", dead_links),
    ("the module map", module_map),
    ("public headers that do not compile alone", headers_alone),
    ("static analysis (clang-tidy)", static_analysis),
]


def main():
    failed = 0
    for number, (words, check) in enumerate(CHECKS, 1):
        print(f"[{number}/{len(CHECKS)}] {words} ...", flush=True)
        for complaint in check():
            failed += 1
            print(complaint, end="")
    if failed:
        print(f"lint: {failed} complaints", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
