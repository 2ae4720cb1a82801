#!/usr/bin/env python3
"""Writes the seeds of the `session_message` and `session_ring` fuzz corpora beside this file."""
import pathlib
import struct

HERE = pathlib.Path(__file__).parent
KEY = (HERE / "key" / "sample").read_bytes()
HEAD_BYTES, SLOT_BYTES = 8192, (256 + 64) << 10


def message(kind, body=b"", magic=b"OKVS", version=1, reserved=0):
    return magic + struct.pack("<HHI", version, kind, reserved) + body


def hello(page=None, arena=1 << 30, name=b"engine", key=KEY, previous=0):
    return message(1, struct.pack("<QQQH", page or 368640, arena, previous, len(name)) + name + struct.pack("<H", len(key)) + key)


MESSAGES = {
    "hello": hello(),
    "hello_wrong_page": hello(page=1),
    "hello_small_arena": hello(arena=1),
    "hello_newline_in_name": hello(name=b"a\nb"),
    "hello_cut_key": hello(key=KEY[:50]),
    "accept": message(2, struct.pack("<QQ16sH", 1, 1 << 30, b"i" * 16, 1)),
    "accept_no_session": message(2, struct.pack("<QQ16sH", 0, 1 << 30, b"i" * 16, 1)),
    "accept_unknown_mode": message(2, struct.pack("<QQ16sH", 1, 1 << 30, b"i" * 16, 9)),
    "refuse": message(3, struct.pack("<HH", 5, 5) + b"other"),
    "doorbell": message(4),
    "bye": message(5),
    "unknown_type": message(6),
    "other_version": message(1, version=2),
    "other_magic": message(5, magic=b"OKVX"),
    "reserved_set": message(5, reserved=1),
    "empty": b"",
}


def write(offset, data):
    return b"".join(struct.pack("<IB", offset + at, len(data[at:at + 128])) + data[at:at + 128] for at in range(0, len(data), 128))


def request(op=2, slot=0, generation=1, count=1, tokens=0, lease=0, index=0):
    return struct.pack("<IIQIIQIIQ16x", op, slot, generation, count, tokens, lease, index, 0, 0)


def block(tokens=16, arena=0):
    return bytes(96) + struct.pack("<QII", arena, tokens, 0)


def sent(count):
    return write(64, struct.pack("<Q", count))


def at_request(index):
    return 320 + 64 * index


def one(fields, slot=0, blocks=block()):
    return write(HEAD_BYTES + slot * SLOT_BYTES, blocks) + write(at_request(0), request(**fields)) + sent(1)


RINGS = {
    "query": one({}),
    "publish": one({"op": 1, "tokens": 16}, blocks=block() + bytes(64)),
    "prepare_outside_arena": one({"op": 3}, blocks=block(arena=1 << 40)),
    "no_tokens": one({}, blocks=block(tokens=0)),
    "unknown_op": one({"op": 99}),
    "slot_beyond": one({"slot": 32}),
    "even_generation": one({"generation": 2}),
    "huge_count": one({"count": 0xffffffff}),
    "huge_tokens": one({"op": 1, "tokens": 0xffffffff}),
    "release": one({"op": 5, "count": 0, "lease": 1}),
    "counter_beyond": sent(1 << 60),
    "replay": one({}) + write(at_request(1), request()) + sent(2),
    "reply_counter": write(256, struct.pack("<Q", 77)) + one({}),
}

for folder, seeds in (("session_message", MESSAGES), ("session_ring", RINGS)):
    (HERE / folder).mkdir(exist_ok=True)
    for name, data in seeds.items():
        (HERE / folder / name).write_bytes(data)
