#!/usr/bin/env python3
"""Writes the seeds of the `gguf` fuzz corpus into the folder named on the command line."""
import pathlib
import struct
import sys


def text(value):
    return struct.pack("<Q", len(value)) + value


def pair(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


def array(kind, count, elements):
    return struct.pack("<IQ", kind, count) + elements


def row(name, extents, kind, offset):
    return text(name) + struct.pack("<I", len(extents)) + struct.pack(f"<{len(extents)}Q", *extents) + struct.pack("<IQ", kind, offset)


def file(pairs=(), rows=(), data=b"", version=3, alignment=32, counts=None):
    tensors, count = counts or (len(rows), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, count) + b"".join(pairs) + b"".join(rows)
    return head + b"\0" * (-len(head) % alignment if data else 0) + data


ALL_TYPES = [pair(b"k%d" % kind, kind, bytes(size)) for kind, size in
             [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (7, 1), (10, 8), (11, 8), (12, 8)]]
WORDS = pair(b"words", 9, array(8, 3, text(b"one") + text(b"") + text(b"\xff\xfe")))
Q = {2: 18, 3: 20, 8: 34}

SEEDS = {
    "empty": b"",
    "magic_only": b"GGUF",
    "no_pairs": file(),
    "version_2": file([WORDS], version=2),
    "version_1": file([WORDS], version=1),
    "big_endian": file([WORDS], version=3 << 24),
    "all_types": file(ALL_TYPES + [WORDS, pair(b"name", 8, text(b"all"))]),
    "all_tensors": file([WORDS], [row(b"f32", [8], 0, 0), row(b"f16", [16], 1, 32)]
                        + [row(b"q%d" % kind, [32], kind, 64 + 64 * i) for i, kind in enumerate(Q)],
                        b"\0\0\x80\x3f" * 8 + b"\0\x3c" * 16 + b"\0\x3c".ljust(64, b"\x11") * 3),
    "nan_scale": file([], [row(b"q", [32], 2, 0)], b"\0\x7e" + bytes(16)),
    "overlap": file([], [row(b"a", [8], 0, 0), row(b"b", [8], 0, 0)], bytes(32)),
    "misaligned": file([], [row(b"a", [1], 0, 4)], bytes(32)),
    "beyond_the_end": file([], [row(b"a", [1 << 40], 0, 0)], bytes(32)),
    "product_overflow": file([], [row(b"a", [1 << 33, 1 << 33], 0, 0)], bytes(32)),
    "huge_counts": file(counts=(1 << 62, 1 << 62)),
    "negative_counts": file(counts=((1 << 64) - 1, 0)),
    "huge_array": file([pair(b"a", 9, array(8, 16 << 20, b""))]),
    "nested_array": file([pair(b"a", 9, array(9, 1, array(0, 1, b"\0")))]),
    "huge_string": file([pair(b"a", 8, struct.pack("<Q", 1 << 63))]),
    "huge_key": file([struct.pack("<Q", (1 << 64) - 8)], counts=(0, 1)) + bytes(64),
    "bad_bool": file([pair(b"a", 7, b"\2")]),
    "repeated_key": file([pair(b"a", 7, b"\1"), pair(b"a", 7, b"\1")]),
    "alignment": file([pair(b"general.alignment", 4, struct.pack("<I", 64))], [row(b"a", [1], 0, 0)], bytes(4), alignment=64),
    "alignment_3": file([pair(b"general.alignment", 4, struct.pack("<I", 3))]),
    "removed_type": file([], [row(b"a", [32], 4, 0)], bytes(64)),
    "five_dimensions": file([], [row(b"a", [1] * 5, 0, 0)], bytes(64)),
    "cut_row": file([], [row(b"a", [1, 2], 0, 0)[:-9]], counts=(1, 0)),
}

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in SEEDS.items():
        (folder / name).write_bytes(seed)
