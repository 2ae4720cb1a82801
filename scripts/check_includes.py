#!/usr/bin/env python3
"""Refuses every #include that climbs with `../` or starts at the root: it would step around the module table.

usage: check_includes.py SOURCE-ROOT [STAMP DEPFILE]

With STAMP and DEPFILE (as the build calls it) the stamp is touched when all is well, and the depfile names every file
and folder that was looked at, so that the check runs again when one changes and not otherwise.
"""
import pathlib
import re
import sys

FORBIDDEN = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<](?:/|[^">\n]*\.\./)[^\n]*', re.MULTILINE)


def sources_of(root):
    for folder in ("src", "tests"):
        for path in (root / folder).rglob("*"):
            if path.suffix in (".c", ".h"):
                yield path


def main():
    root = pathlib.Path(sys.argv[1])
    sources = sorted(sources_of(root))
    refused = 0
    for path in sources:
        text = path.read_text(errors="replace")
        for found in FORBIDDEN.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            print(f"{path.relative_to(root)}:{line}: {found.group().strip()}: name the header by its module and "
                  "declare that module in the table of meson.build", file=sys.stderr)
            refused += 1
    if refused:
        return 1
    if len(sys.argv) > 3:
        stamp, depfile = sys.argv[2:4]
        folders = sorted({path.parent for path in sources})
        seen = " ".join(str(path).replace(" ", "\\ ") for path in folders + sources)
        pathlib.Path(depfile).write_text(f"{stamp}: {seen}\n")
        pathlib.Path(stamp).touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
