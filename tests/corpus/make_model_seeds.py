#!/usr/bin/env python3
"""Writes the seeds of the `model` fuzz corpus, whole tiny models, into the folder named on the command line."""
import pathlib
import random
import struct
import sys

from make_gguf_seeds import array, file, pair, row, text

BLOCK = {0: 4, 1: 2, 2: 18, 3: 20, 8: 34}
SCALES = {2: 1, 3: 2, 8: 1}
WIDTH, FFN, HEADS, KV_HEADS, WORDS = 32, 32, 2, 1, ["<|im_start|>", "<|im_end|>", "a", "b", "ab"]


def weights(rng, kind, values):
    """Finite numbers: every f16 scale or value is about 1/16, every f32 too."""
    if kind == 0:
        return b"".join(struct.pack("<f", rng.uniform(-0.1, 0.1)) for _ in range(values))
    if kind == 1:
        return b"".join(struct.pack("<e", rng.uniform(-0.1, 0.1)) for _ in range(values))
    scales = struct.pack("<e", 0.0625) * SCALES[kind]
    return b"".join(scales + rng.randbytes(BLOCK[kind] - len(scales)) for _ in range(values // 32))


def model(kind, separate=False, **numbers):
    rng = random.Random(kind)
    keys = {"block_count": 1, "context_length": 16, "embedding_length": WIDTH, "feed_forward_length": FFN,
            "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "rope.dimension_count": 16, **numbers}
    pairs = [pair(b"general.architecture", 8, text(b"llama")),
             pair(b"llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
             pair(b"tokenizer.ggml.model", 8, text(b"gpt2")), pair(b"tokenizer.ggml.pre", 8, text(b"smollm")),
             pair(b"tokenizer.ggml.tokens", 9, array(8, len(WORDS), b"".join(text(word.encode()) for word in WORDS))),
             pair(b"tokenizer.ggml.token_type", 9, array(5, len(WORDS), struct.pack("<5i", 3, 3, 1, 1, 1))),
             pair(b"tokenizer.ggml.merges", 9, array(8, 1, text(b"a b"))),
             pair(b"tokenizer.ggml.eos_token_id", 4, struct.pack("<I", 1))]
    pairs += [pair(b"llama." + key.encode(), 4, struct.pack("<I", value)) for key, value in keys.items()]
    shapes = {"token_embd": (WIDTH, len(WORDS)), "output_norm": (WIDTH,), "blk.0.attn_norm": (WIDTH,),
              "blk.0.attn_q": (WIDTH, WIDTH), "blk.0.attn_k": (WIDTH, 16), "blk.0.attn_v": (WIDTH, 16),
              "blk.0.attn_output": (WIDTH, WIDTH), "blk.0.ffn_norm": (WIDTH,), "blk.0.ffn_gate": (WIDTH, FFN),
              "blk.0.ffn_up": (WIDTH, FFN), "blk.0.ffn_down": (FFN, WIDTH)}
    if separate:
        shapes["output"] = (WIDTH, len(WORDS))
    rows, data = [], b""
    for name, shape in shapes.items():
        kind_here = kind if len(shape) == 2 else 0
        data += b"\0" * (-len(data) % 32)
        rows.append(row(name.encode() + b".weight", shape, kind_here, len(data)))
        data += weights(rng, kind_here, shape[0] * (shape[1] if len(shape) == 2 else 1))
    return file(pairs, rows, data)


SEEDS = {
    "q4_0": model(2),
    "q4_1_separate": model(3, separate=True),
    "q8_0": model(8),
    "f16": model(1),
    "context_1": model(2, **{"context_length": 1}),
    "half_rope": model(2, **{"rope.dimension_count": 8}),
    "more_rope_than_head": model(2, **{"rope.dimension_count": 18}),
    "no_layers": model(2, **{"block_count": 0}),
    "more_layers_than_tensors": model(2, **{"block_count": 1024}),
    "one_dimension_a_head": model(2, **{"attention.head_count": 32, "attention.head_count_kv": 32}),
    "more_heads_than_width": model(2, **{"attention.head_count": 1024, "attention.head_count_kv": 1024}),
    "longest_context": model(2, **{"context_length": 1 << 20}),
}

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in SEEDS.items():
        (folder / name).write_bytes(seed)
