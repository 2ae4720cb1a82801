#!/usr/bin/env python3
"""Writes the seeds of the `tokenizer` fuzz corpus into the folder named on the command line."""
import pathlib
import sys

SEEDS = {
    "empty": b"",
    "words": b"the world and the other thing, I'm sure; it's 1234 + 5.6e7\n\n  in  there \t\r\n",
    "contractions": b"'s't're've'm'll'd 'S' '' ' !'s",
    "spaces": "  \u00a0\u2003\u3000 \u0085\u2028 x \u1680".encode(),
    "numbers": "12 \u0661\u0662 \u2167 \u00bd \u00b2 \u2460 7a8".encode(),
    "emoji": "\U0001f600\U0001f469\u200d\U0001f469\u200d\U0001f467\ufe0f\u20e3".encode(),
    "cjk": "\u4e2d\u6587\uff0c\u4e16\u754c \u3042\u30a2 \ud55c\uad6d".encode(),
    "combining": "e\u0301a\u0300\u0301 \u0627\u0644\u0633\u064e\u0651".encode(),
    "specials": b"<|im_start|>system<|im_end|><|endoftext|>",
    "controls": bytes(range(128)),
    "every_byte": bytes(range(256)),
    "cut_character": "\u4e2d".encode()[:2],
    "overlong": b"\xc0\x80\xe0\x80\x80\xf0\x80\x80\x80",
    "surrogate": b"\xed\xa0\x80",
    "too_high": b"\xf4\x90\x80\x80\xf5\xff",
    "subparts": b"\xf0\x90\x41\xe1\x80\xc2\xf1\x80\x80\x80\x80",
    "long_word": b"the" * 700,
}

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in SEEDS.items():
        (folder / name).write_bytes(seed)
