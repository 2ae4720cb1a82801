"""An engine's end of the session protocol, written from docs/formats/session.md alone: for tests that need a peer of
the manager which can also be rude (everything that a Client writes can be written wrong), and for benches that need
pages of a size of their own.

As a program (`python session_client.py SOCKET DEED`) it is an engine in a process of its own, see main().
"""
import array
import contextlib
import ctypes
import fcntl
import hashlib
import mmap
import os
import random
import socket
import struct
import sys
import time
from typing import NamedTuple

VERSION = 1
HELLO, ACCEPT, REFUSE, DOORBELL, BYE = 1, 2, 3, 4, 5
PUBLISH, QUERY, PREPARE, RESTORE, RELEASE, CANCEL, REPORT_DAMAGED = 1, 2, 3, 4, 5, 6, 7

# Of enum okv_status.
OK, INVALID, EXISTS, MISMATCH, STALE, AHEAD, BUSY, DEADLINE = 0, 1, 4, 5, 7, 8, 9, 13
PROTOCOL, ERR_VERSION, PERMISSION = 33, 34, 98

SLOTS, BLOCKS_MAX = 32, 1024
REQUEST_AREA, REPLY_AREA = 262_144, 65_536
HEAD_BYTES = 8_192
RING_BYTES = HEAD_BYTES + SLOTS * (REQUEST_AREA + REPLY_AREA)
REQUESTS_SENT, REQUESTS_TAKEN, REPLIES_SENT, REPLIES_TAKEN = 64, 128, 192, 256
REQUESTS_AT, REPLIES_AT, MESSAGE_BYTES = 320, 2_368, 64

PAGE_TOKENS = 16


class Shape(NamedTuple):
    """What decides how large a page is."""

    layers: int
    heads: int
    width: int

    @property
    def page_bytes(self):
        return 2 * self.layers * PAGE_TOKENS * self.heads * self.width * 2  # Kraw and V, in f16


STAND_IN = Shape(layers=4, heads=2, width=64)
PAGE_BYTES = STAND_IN.page_bytes
ZERO = bytes(32)

F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 2, 4


class Ended(Exception):
    """The manager ended the session."""


class Refused(Exception):
    """The manager's REFUSE; `status` and `text` are what it said."""

    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status, self.text = status, text


def key(shape=STAND_IN):
    """An encoded materialisation key for pages of that shape."""
    u32 = struct.Struct("<I").pack
    fields = [b"w" * 32, ZERO, b"t" * 32, b"page-lkvt-1", b"adjacent", b"none", struct.pack("<d", 1e5),
              u32(shape.width), u32(shape.layers), u32(shape.heads), u32(shape.width), u32(PAGE_TOKENS), b"f16", u32(0),
              u32(1), b"stand-in", u32(1), u32(1), b"test"]
    return b"".join(struct.pack("<HI", number, len(value)) + value for number, value in enumerate(fields))


def block_hash(tokens, parent=ZERO, lineage=ZERO, shape=STAND_IN):
    digest = hashlib.sha256(b"orbitkv key 1\0" + key(shape)).digest()
    return hashlib.sha256(b"orbitkv block 1\0" + digest + parent + lineage + struct.pack("<I", len(tokens)) +
                          struct.pack(f"<{len(tokens)}I", *tokens)).digest()


def chain(first_token, count, shape=STAND_IN):
    """`count` whole pages of a sequence: [(hash, parent, token ids)]."""
    pages, parent = [], ZERO
    for page in range(count):
        tokens = list(range(first_token + page * PAGE_TOKENS, first_token + (page + 1) * PAGE_TOKENS))
        pages.append((block_hash(tokens, parent, shape=shape), parent, tokens))
        parent = pages[-1][0]
    return pages


def block(name, parent=ZERO, offset=0, tokens=PAGE_TOKENS):
    return name + parent + ZERO + struct.pack("<QII", offset, tokens, 0)


def request(op, slot, generation, count=0, tokens=0, lease=0, index=0, target_slot=0, target_generation=0):
    return struct.pack("<IIQIIQIIQ16x", op, slot, generation, count, tokens, lease, index, target_slot,
                       target_generation)


def message(kind, body=b"", version=VERSION, magic=b"OKVS", reserved=0):
    return magic + struct.pack("<HHI", version, kind, reserved) + body


def hello(arena_bytes, page_bytes=PAGE_BYTES, previous=0, name=b"stand-in", encoded=None, **head):
    encoded = key() if encoded is None else encoded
    return message(HELLO, struct.pack("<QQQH", page_bytes, arena_bytes, previous, len(name)) + name +
                   struct.pack("<H", len(encoded)) + encoded, **head)


def memory(size, seals=F_SEAL_GROW | F_SEAL_SHRINK):
    """A memfd of `size` bytes."""
    descriptor = os.memfd_create("okv-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    if seals:
        fcntl.fcntl(descriptor, F_ADD_SEALS, seals)
    return descriptor


class Connection:
    """One bare connection to the manager's socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(path))  # waits for its turn; with a timeout it would fail where the queue is full
        self.socket.settimeout(10)

    def send(self, data, descriptors=()):
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self.socket.sendmsg([data], control)
        except (BrokenPipeError, ConnectionResetError):
            raise Ended from None

    def receive(self):
        """(type, body, descriptors) of the next packet."""
        try:
            data, control, _, _ = self.socket.recvmsg(1024, socket.CMSG_SPACE(4 * 4))
        except ConnectionResetError:
            raise Ended from None
        if not data:
            raise Ended
        descriptors = array.array("i")
        for _, _, passed in control:
            descriptors.frombytes(passed[:len(passed) // 4 * 4])
        _, version, kind, _ = struct.unpack_from("<4sHHI", data)
        assert version == VERSION
        return kind, data[12:], list(descriptors)

    def expect_end(self):
        """Reads until the manager closes; raises Refused if it says why, and TimeoutError if it does not close."""
        with contextlib.suppress(Ended):
            while True:
                kind, body, _ = self.receive()
                if kind == REFUSE:
                    status, size = struct.unpack_from("<HH", body)
                    raise Refused(status, body[4:4 + size].decode("ascii"))

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Client(Connection):
    """An attached engine with an arena of `pages` pages."""

    def __init__(self, path, pages=8, previous=0, name=b"stand-in", shape=STAND_IN):
        super().__init__(path)
        self.page_bytes = shape.page_bytes
        size = -(-pages * self.page_bytes // 4096) * 4096
        arena, ring = memory(size), memory(RING_BYTES)
        self.arena, self.ring = mmap.mmap(arena, size), mmap.mmap(ring, RING_BYTES)
        self.arena_bytes = size
        # Whole 8-byte stores, not bytes that the manager could see half of.
        self.counters = (ctypes.c_uint64 * (HEAD_BYTES // 8)).from_buffer(self.ring)
        self.generation = [0] * SLOTS
        self.sent = self.taken = 0
        self.pool = None
        struct.pack_into("<4sIII", self.ring, 0, b"OKVR", 1, SLOTS, 0)
        try:
            self.send(hello(size, self.page_bytes, previous, name, key(shape)), [arena, ring])
        finally:
            os.close(arena)
            os.close(ring)
        kind, body, descriptors = self.receive()
        assert kind == ACCEPT, body
        self.session, pool_bytes, self.incarnation, verification = struct.unpack("<QQ16sH", body)
        assert verification == 1
        self.pool = mmap.mmap(descriptors[0], pool_bytes, prot=mmap.PROT_READ)
        os.close(descriptors[0])

    def close(self):
        super().close()
        self.counters = None
        for region in (self.arena, self.ring, self.pool):
            if region is not None:
                region.close()

    def bye(self):
        self.send(message(BYE))
        self.expect_end()

    def set_counter(self, offset, value):
        self.counters[offset // 8] = value

    def counter(self, offset):
        return self.counters[offset // 8]

    @staticmethod
    def area(slot):
        return HEAD_BYTES + slot * (REQUEST_AREA + REPLY_AREA)

    def put(self, entry, area=b"", slot=0):
        """Writes a request and what belongs to it, and does not count it yet."""
        self.ring[self.area(slot):self.area(slot) + len(area)] = area
        at = REQUESTS_AT + self.sent % SLOTS * MESSAGE_BYTES
        self.ring[at:at + MESSAGE_BYTES] = entry
        self.sent += 1

    def ring_the_bell(self):
        self.set_counter(REQUESTS_SENT, self.sent)
        self.send(message(DOORBELL))

    def start(self, op, area=b"", slot=0, **fields):
        self.generation[slot] += 1
        self.put(request(op, slot, self.generation[slot], **fields), area, slot)
        self.ring_the_bell()

    def reply(self, limit_s=10):
        """(status, count, lease, remote bytes, slot) of the next reply."""
        deadline = time.monotonic() + limit_s
        while self.counter(REPLIES_SENT) == self.taken:
            if time.monotonic() > deadline:
                raise TimeoutError("no reply")
            self.socket.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                self.receive()  # a doorbell, or the end
            self.socket.settimeout(10)
        at = REPLIES_AT + self.taken % SLOTS * MESSAGE_BYTES
        _, slot, generation, status, count, lease, remote_bytes = struct.unpack_from("<IIQIIQQ", self.ring, at)
        assert generation == self.generation[slot] + 1, "the answer is to what was asked"
        self.generation[slot] = generation
        self.taken += 1
        self.set_counter(REPLIES_TAKEN, self.taken)
        return status, count, lease, remote_bytes, slot

    def ask(self, op, area=b"", **fields):
        self.start(op, area, **fields)
        return self.reply()

    # What a well-behaved engine does.

    def publish(self, pages, contents):
        """Publishes `contents` as `pages` of chain(); returns (status, count)."""
        for number, content in enumerate(contents):
            self.arena[number * self.page_bytes:(number + 1) * self.page_bytes] = content
        blocks = b"".join(block(name, parent, number * self.page_bytes)
                          for number, (name, parent, _) in enumerate(pages))
        ids = [token for _, _, tokens in pages for token in tokens]
        return self.ask(PUBLISH, blocks + struct.pack(f"<{len(ids)}I", *ids), count=len(pages), tokens=len(ids))[:2]

    def query(self, pages):
        return self.ask(QUERY, b"".join(block(name, parent) for name, parent, _ in pages), count=len(pages))[:2]

    def prepare(self, pages):
        """(status, count, lease)."""
        return self.ask(PREPARE, b"".join(block(name, parent) for name, parent, _ in pages), count=len(pages))[:3]

    def restore(self, lease):
        """(status, [content of each block of the lease])."""
        status, count, _, _, slot = self.ask(RESTORE, lease=lease)
        contents = []
        for number in range(count if status == OK else 0):
            at = self.area(slot) + REQUEST_AREA + number * 32
            offset, length = struct.unpack_from("<QQ", self.ring, at)
            contents.append(self.pool[offset:offset + length])
        return status, contents

    def release(self, lease):
        return self.ask(RELEASE, lease=lease)[0]


CHURN_PAGES = 24


def churn_once(client, rng, kept):
    """One thing that an engine does, with one of 40 sequences; leases that it leaves open are in `kept`."""
    first = rng.randrange(40) * 10_000
    pages = chain(first, CHURN_PAGES)
    contents = [random.Random(first + number).randbytes(PAGE_BYTES) for number in range(CHURN_PAGES)]
    client.start(PREPARE, b"".join(block(name, parent) for name, parent, _ in pages), count=CHURN_PAGES)
    if rng.random() < 0.2:
        client.start(CANCEL, slot=1, target_slot=0, target_generation=client.generation[0])
        replies = sorted((client.reply() for _ in range(2)), key=lambda reply: reply[4])
        status, count, lease, _, _ = replies[0]
    else:
        status, count, lease, _, _ = client.reply()
    if lease:
        kept.append(lease)
        status, came = client.restore(lease)
        assert (status, came) == (OK, contents[:count]), f"wrong bytes in sequence {first}"
    if count < CHURN_PAGES and rng.random() < 0.7:
        client.publish(pages, contents)
    while kept and (len(kept) > 3 or rng.random() < 0.7):
        client.release(kept.pop())


def churn(path, seed):
    """Uses the manager at `path` for ever, through its deaths; only wrong bytes end it."""
    rng = random.Random(seed)
    print("busy", flush=True)
    while True:
        try:
            with Client(path, CHURN_PAGES, name=b"churn") as client:
                kept = []
                while True:
                    churn_once(client, rng, kept)
        except (Ended, OSError):  # the manager is gone, or stands still
            time.sleep(0.05)


def main():
    """Deeds of a process of its own: `hold` keeps an active lease and breaks the protocol with it; `claim SESSION` says
    that SESSION was its own and is over; `churn SEED` is a busy engine. The first two print what came of it and wait for
    their end."""
    path, deed, *arguments = sys.argv[1:]
    if deed == "churn":
        churn(path, int(arguments[0]))
    elif deed == "claim":
        client = Client(path, previous=int(arguments[0]), name=b"claimer")
        print("attached", flush=True)
    else:
        client = Client(path, name=b"holder")
        pages = chain(900_000, 2)
        client.publish(pages, [b"h" * PAGE_BYTES] * 2)
        _, _, lease = client.prepare(pages)
        client.restore(lease)
        client.set_counter(REQUESTS_SENT, 1 << 40)
        client.send(message(DOORBELL))
        client.expect_end()
        print("broken", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
