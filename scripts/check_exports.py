#!/usr/bin/env python3
"""Checks that a shared library exports exactly the functions that its header declares: check_exports.py LIBRARY HEADER."""
import re
import subprocess
import sys


def main():
    library, header = sys.argv[1:]
    symbols = subprocess.run(["nm", "--dynamic", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    exported = {line.split()[-1].split("@")[0] for line in symbols.splitlines()}
    exported -= {name for name in exported if name.startswith(("__asan", "__odr_asan", "_init", "_fini"))}
    declared = set(re.findall(r"ORBITKV_API[^;(]*?\b(orbitkv_\w+)\(", open(header, encoding="utf-8").read()))
    if not declared or exported != declared:
        print(f"exported but not declared: {sorted(exported - declared)}\ndeclared but not exported: {sorted(declared - exported)}")
        return 1
    print(f"{len(declared)} functions, each declared and exported")
    return 0


if __name__ == "__main__":
    sys.exit(main())
