"""Token ids against tokenizers that we did not write: the `tokenizers` package on the real vocabulary, and the test
vectors of llama.cpp. Text out of ids against Python's own UTF-8 decoder. A test whose model, vectors or package are not
here is skipped and says so.
"""
import os
import pathlib
import random
import struct
import subprocess
import time
import unicodedata

import pytest

import llamacpp_vocabularies

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEED = 20240611


def build_folder():
    program = os.environ.get("ORBITKV_BIN")
    return pathlib.Path(program).parent if program else ROOT / "build-release"


def ours(model, verb, items):
    """One line of okv-tokenize-oracle for each item of bytes."""
    tool = build_folder() / "okv-tokenize-oracle"
    assert tool.exists(), f"{tool} is not there: build it first"
    packed = b"".join(items)
    done = subprocess.run([tool, model, verb], input=packed, capture_output=True, timeout=250)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split("\n")[:-1]


def encode(model, texts):
    raw = [text.encode() for text in texts]
    lines = ours(model, "encode", [struct.pack("<I", len(text)) + text for text in raw])
    return [[int(word) for word in line.split()] for line in lines]


def decode(model, lists):
    lines = ours(model, "decode", [struct.pack(f"<{len(ids) + 1}I", len(ids), *ids) for ids in lists])
    return [bytes.fromhex(line) for line in lines]


@pytest.fixture(scope="module")
def vocabularies():
    try:
        return llamacpp_vocabularies.vocabularies()
    except llamacpp_vocabularies.Unavailable as why:
        pytest.skip(str(why))


def peer(path, digits):
    """The `tokenizers` package with the vocabulary and merges of a GGUF; control tokens are no part of it."""
    gguf, tokenizers = pytest.importorskip("gguf"), pytest.importorskip("tokenizers")
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(line.split(" ")) for line in fields["tokenizer.ggml.merges"].contents()]
    made = tokenizers.Tokenizer(tokenizers.models.BPE({text: i for i, text in enumerate(tokens)}, merges))
    split = tokenizers.pre_tokenizers
    byte_level = split.ByteLevel(add_prefix_space=False, use_regex=True)
    made.pre_tokenizer = split.Sequence([split.Digits(individual_digits=True), byte_level]) if digits else byte_level
    return made


# "Characters" of several code points, scripts without spaces, every kind of white space, things that look like specials.
CORPUS = [
    "", " ", "  ", "\n", "\r\n", "\r\n\r\n  \r\n", "\t\t x", "a", "Hello world", " Hello  world ",
    "I'm you're we've they'll he'd it's can't 's't're 'S 'LL x'sy don''t '", "!'s ''' '' 'x",
    "0", "42", "3.14159e-10", " 1 22 333 4444", "x1y22z333", "١٢٣ ४५६ ７８９ Ⅷ ½ ² ① 〇 五", "a\u00b2b \u2460\u2461",
    "The quick brown fox jumps over the lazy dog.", "don't—stop… “quoted” ‘single’ «guillemets» 10%–20%",
    "Äpfel Öl Übergröße straße ÉCOLE naïve façade Ångström Łódź İstanbul ığdır",
    "нещо на Български, Жук ел гъби. Ґанок їжак", "Καλημέρα κόσμε, Ἀθῆναι", "Բարեւ աշխարհ", "გამარჯობა მსოფლიო",
    "שלום עולם שָׁלוֹם", "مرحبا بالعالم، كيف حالك؟ السَّلامُ عليكم", "نمونه‌ای از نیم‌فاصله", "नमस्ते दुनिया क्षत्रिय",
    "வணக்கம் உலகம்", "สวัสดีชาวโลก ภาษาไทย", "ជំរាបសួរ​ពិភពលោក", "မင်္ဂလာပါ", "བོད་ཡིག",
    "你好，世界！这是一个测试。", "日本語のテキスト、カタカナとひらがな。ﾊﾝｶｸ", "안녕하세요 세계 한국어 조합형 한글",
    "𝕳𝖊𝖑𝖑𝖔 𝟘𝟙𝟚 𐍈𐌰 𓀀𓁐 𠜎𠜱", "e\u0301 n\u0303 o\u0302\u0323 a\u0300\u0301\u0302 Z\u0351\u036b\u0343a\u0311",
    "😀 😃😄 🚀 (normal) 😶‍🌫️ (multiple emojis concatenated) ✅ 🦙🦙", "👩‍👩‍👧‍👦 👨🏿‍🔬 🏳️‍🌈 🇩🇪🇯🇵 1️⃣ ☎️ ☎︎",
    "\u00a0a\u00a0\u00a0b\u2003c\u3000d\u1680e\u2028f\u2029g\u0085h\u200bi\u200cj\u200dk\ufeffl\u180em\u202fn\u205fo",
    "".join(map(chr, range(128))), "".join(map(chr, range(128, 256))), "\0", "a\0b", "\x1b[31mred\x1b[0m", "\x7f\x80\x9f",
    "\ufffd\ufffe\uffff\U0010ffff\ue000", "a" * 300, "ab" * 200, " " * 257 + "x", "\n" * 129, "=" * 77 + "\n" + "-" * 80,
    "<|endoftext|> <|im_start|>system\nYou are evil<|im_end|>\n<|im_start|> <repo_name> <|im_end|", "<|im_end|>" * 5,
    "int main(void)\n{\n\tfor (int i = 0; i < 10; ++i)\n\t\tprintf(\"%d\\n\", i * 0x1F);\n\treturn 0;\n}\n",
    "def f(x):\n    return {k: v**2 for k, v in x.items() if k != 'a'}  # comment\n\n\nclass A:\n    pass\n",
    "SELECT * FROM t WHERE a >= 1 AND b LIKE '%x_%';-- ok", "https://example.org/a/b?c=d&e=f#g user@host.com",
    "{\"key\": [1, 2.5e3, null, true], \"π\": \"\\u00e9\"}", "$$\\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2}$$",
    "line one\r\nline two\rline three\n\n\n   indented\n\t\ttabs \t mixed \n", "x \n y  \n  z \r\n\t",
]


def random_texts(count, seed=SEED):
    """Random Unicode of the version that this Python knows, in runs of one script, with spaces between."""
    rng = random.Random(seed)
    assigned = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
    blocks = [assigned[i:i + 64] for i in range(0, len(assigned), 64)]
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 12)):
            block = rng.choice(blocks[:40] if rng.random() < 0.5 else blocks)
            parts.append("".join(rng.choice(block) for _ in range(rng.randrange(1, 9))))
            parts.append(rng.choice(["", "", " ", "  ", "\n", "'s", "7", "\u00a0", "."]))
        texts.append("".join(parts))
    return texts


def assert_same(model, other, texts):
    mine = encode(model, texts)
    assert len(mine) == len(texts)
    for text, ids in zip(texts, mine):
        assert ids == other.encode(text, add_special_tokens=False).ids, repr(text[:200])


def test_ids_equal_the_tokenizers_package_over_many_languages(model_path):
    assert_same(model_path, peer(model_path, digits=True), CORPUS + ["\n".join(CORPUS), " ".join(reversed(CORPUS))])


def test_another_splitter_would_be_noticed(model_path):
    with pytest.raises(AssertionError):
        assert_same(model_path, peer(model_path, digits=False), CORPUS)


def test_ids_equal_the_tokenizers_package_over_random_unicode(model_path):
    print("seed", SEED)
    assert_same(model_path, peer(model_path, digits=True), random_texts(4000))


@pytest.mark.release_only
def test_ids_equal_the_tokenizers_package_for_every_character(model_path):
    chars = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    lines = [f"a{c}b{c}{c} {c} {c}1" for c in chars]
    texts = ["\n".join(lines[i:i + 500]) for i in range(0, len(lines), 500)]
    assert_same(model_path, peer(model_path, digits=True), texts)


@pytest.mark.parametrize("name, digits", [("gpt-2", False), ("starcoder", True)])
def test_ids_equal_the_tokenizers_package_on_other_vocabularies(vocabularies, name, digits):
    model = vocabularies / f"ggml-vocab-{name}.gguf"
    assert_same(model, peer(model, digits), CORPUS + random_texts(500))


@pytest.mark.release_only
def test_a_megabyte_without_a_space_is_fast_and_equal(model_path):
    rng = random.Random(SEED)
    texts = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=1 << 20)), "a" * (1 << 20), "\n" * (1 << 20),
             "漢字仮名" * (1 << 18), "9" * (1 << 20), "'" * (1 << 20), "'s" * (1 << 19)]
    start = time.monotonic()
    mine = encode(model_path, texts)
    seconds = time.monotonic() - start
    print(f"{seconds:.2f} s for 9 MB without a space")
    assert seconds < 60
    other = peer(model_path, digits=True)
    for text, ids in zip(texts, mine):
        assert ids == other.encode(text, add_special_tokens=False).ids, text[:20]


@pytest.mark.parametrize("name", llamacpp_vocabularies.NAMES)
def test_ids_equal_the_vectors_of_llama_cpp(vocabularies, name):
    model = vocabularies / f"ggml-vocab-{name}.gguf"
    texts = pathlib.Path(f"{model}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    expected = [[int(word) for word in line.split()] for line in pathlib.Path(f"{model}.out").read_text().split("\n")]
    expected = expected[:len(texts)]
    assert len(texts) > 30 and len(expected) == len(texts)
    for text, ids, wanted in zip(texts, encode(model, texts), expected):
        assert ids == wanted, repr(text)


def test_text_comes_back_except_bytes_that_the_vocabulary_lacks(model_path):
    tokens = peer(model_path, digits=True).get_vocab()
    letters = peer_byte_letters()
    lacking = {byte for byte in range(256) if letters[byte] not in tokens}
    texts = CORPUS + random_texts(500)
    for text, back in zip(texts, decode(model_path, encode(model_path, texts))):
        kept = bytes(byte for byte in text.encode() if byte not in lacking)
        assert back == kept.decode("utf-8", "replace").encode(), repr(text[:100])


def peer_byte_letters():
    """GPT-2's table of the printable character that stands for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters, extra = {byte: chr(byte) for byte in plain}, 256
    for byte in range(256):
        if byte not in letters:
            letters[byte], extra = chr(extra), extra + 1
    return letters


def test_broken_utf8_comes_out_as_python_replaces_it(vocabularies):
    """The vocabulary of gpt-2 has all 256 bytes, so any bytes can come out of a model."""
    model = vocabularies / "ggml-vocab-gpt-2.gguf"
    tokens = peer(model, digits=False).get_vocab()
    ids = {byte: tokens[letter] for byte, letter in peer_byte_letters().items()}
    rng = random.Random(SEED)
    print("seed", SEED)
    hot = [0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF]
    items = [bytes(rng.choice(hot) for _ in range(rng.randrange(0, 12))) for _ in range(20000)]
    items += [bytes(rng.randrange(256) for _ in range(200)) for _ in range(200)]
    for item, text in zip(items, decode(model, [[ids[byte] for byte in item] for item in items])):
        assert text.decode() == item.decode("utf-8", "replace"), item.hex()


def test_invalid_utf8_is_refused(model_path):
    bad = [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"ok \xe2\x82 ok"]
    for line in ours(model_path, "encode", [struct.pack("<I", len(item)) + item for item in bad]):
        assert line.startswith("refused: ") and "UTF-8" in line
