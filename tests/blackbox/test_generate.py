"""`orbitkv generate` as its user meets it: what it prints, what it refuses and with which words, how it stops."""
import json
import signal
import subprocess
import time

import pytest


def generate(orbitkv, *options, text=None, data=None):
    return subprocess.run([str(orbitkv), "generate", *options], input=data if data is not None else (text or "").encode(),
                          capture_output=True, timeout=60, check=False)


def answer(orbitkv, model, *options):
    done = generate(orbitkv, "--model", model, "--json", "--ignore-end", "--max-tokens", "24", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_version_and_help_are_answers(orbitkv):
    done = subprocess.run([str(orbitkv), "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("orbitkv ")
    done = generate(orbitkv, "--help")
    assert done.returncode == 0
    assert b"--max-tokens N" in done.stdout


def test_threads_and_page_size_do_not_change_a_token(orbitkv, tiny):
    prompt = ("--prompt", "The same words, cut another way. " * 6)
    expected = answer(orbitkv, tiny, *prompt, "--threads", "1")
    assert len(expected["ids"]) == 24
    assert expected["finish"] == "length"
    for options in (("--threads", "2"), ("--page-tokens", "8"), ("--page-tokens", "64")):
        assert answer(orbitkv, tiny, *prompt, *options)["ids"] == expected["ids"]


def test_a_seed_draws_the_same_tokens_again_and_another_seed_does_not(orbitkv, tiny):
    hot = ("--prompt", "Once", "--temperature", "1.5")
    first = answer(orbitkv, tiny, *hot, "--seed", "1")["ids"]
    assert answer(orbitkv, tiny, *hot, "--seed", "1")["ids"] == first
    assert answer(orbitkv, tiny, *hot, "--seed", "2")["ids"] != first


def test_streamed_text_is_the_text_of_the_object(orbitkv, tiny):
    options = ("--prompt", "Grüße aus 東京 🙂", "--kv-dtype", "f32")
    text = answer(orbitkv, tiny, *options)["text"]
    done = generate(orbitkv, "--model", tiny, "--ignore-end", "--max-tokens", "24", "--stats", *options)
    assert done.returncode == 0
    assert done.stdout.decode() == text + "\n"
    assert b"answer: 24 tokens" in done.stderr


def test_the_prompt_comes_from_standard_input_and_options_from_a_file(orbitkv, tiny, tmp_path):
    config = tmp_path / "generate.conf"
    config.write_text(f"# for this test\nmodel = {tiny}\nmax-tokens = 24\nignore-end = true\njson = true\n")
    done = generate(orbitkv, "--config", str(config), text="Once upon a time")
    assert json.loads(done.stdout)["ids"] == answer(orbitkv, tiny, "--prompt", "Once upon a time")["ids"]


def test_a_chat_prompt_is_framed_by_the_template(orbitkv, tiny):
    plain = answer(orbitkv, tiny, "--prompt", "Hello")["prompt_ids"]
    framed = answer(orbitkv, tiny, "--prompt", "Hello", "--chat")["prompt_ids"]
    assert len(framed) > len(plain)
    assert any(framed[i:i + len(plain)] == plain for i in range(len(framed)))


@pytest.mark.parametrize(("true", "false", "words"), [
    (b"llama.block_count", b"llama.block_tnuoc", "the model file has no llama.block_count"),
    (b"blk.0.ffn_up.weight", b"blk.0.ffn_pu.weight", "the model file has no tensor blk.0.ffn_up.weight"),
    (b"tokenizer.ggml.merges", b"tokenizer.ggml.segrem", "has no metadata key tokenizer.ggml.merges"),
])
def test_what_a_model_lacks_is_refused_with_the_file_and_what_to_do(orbitkv, tiny, tmp_path, true, false, words):
    lying = tmp_path / "lying.gguf"
    with open(tiny, "rb") as file:
        lying.write_bytes(file.read().replace(true, false))
    done = generate(orbitkv, "--model", str(lying), "--prompt", "Hello")
    assert done.returncode == 1
    assert "/lying.gguf: " in done.stderr.decode()
    assert done.stderr.decode().endswith(f"{words}; convert the model again, or take another\n")


def test_a_model_that_asks_for_its_first_token_gets_it_before_text_alone(orbitkv, tiny, tiny_with_bos):
    plain = answer(orbitkv, tiny, "--prompt", "Hello")["prompt_ids"]
    assert answer(orbitkv, tiny_with_bos, "--prompt", "Hello")["prompt_ids"] == [1, *plain]
    framed = answer(orbitkv, tiny, "--prompt", "Hello", "--chat")["prompt_ids"]
    assert answer(orbitkv, tiny_with_bos, "--prompt", "Hello", "--chat")["prompt_ids"] == framed


def test_another_chat_template_is_refused_with_what_to_do_here(orbitkv, tiny, tmp_path):
    other = tmp_path / "other.gguf"
    with open(tiny, "rb") as file:
        other.write_bytes(file.read().replace(b"{% for message in messages %}", b"{% for passage in messages %}"))
    done = generate(orbitkv, "--model", str(other), "--chat", "--prompt", "Hello")
    assert done.returncode == 1
    assert b"the chat template is not ChatML" in done.stderr
    assert done.stderr.endswith(b"; leave --chat away\n")


@pytest.mark.parametrize(("options", "data", "status", "words"), [
    (("--prompt", "x"), b"", 2, "--model FILE is needed"),
    (("--model", "MODEL", "--max-token", "3"), b"", 2, "did you mean --max-tokens?"),
    (("--model", "MODEL", "--temperature", "-1"), b"", 2, "--temperature takes a number from 0 to 100"),
    (("--model", "/nonexistent.gguf", "--prompt", "x"), b"", 1, "/nonexistent.gguf: cannot be opened"),
    (("--model", __file__, "--prompt", "x"), b"", 1, "GGUF"),
    (("--model", "MODEL"), b"", 1, "the prompt is empty; give --prompt TEXT, or text on standard input"),
    (("--model", "MODEL"), b"caf\xe9", 1, "not valid UTF-8"),
    (("--model", "MODEL"), b"a b c d " * 300, 1, "prompt and completion together may have 512 (the model's context); shorten it"),
    (("--model", "MODEL", "--prompt", "x", "--page-tokens", "12"), b"", 1, "multiple of 8"),
    (("--model", "MODEL", "--prompt", "x", "--top-p", "0"), b"", 1, "top_p must be above 0"),
])
def test_what_cannot_be_done_is_refused_with_what_to_do(orbitkv, tiny, options, data, status, words):
    done = generate(orbitkv, *(tiny if word == "MODEL" else word for word in options), data=data)
    assert words in done.stderr.decode()
    assert done.returncode == status
    assert done.stdout == b""


@pytest.mark.parametrize("options", [
    ("generate", "--model", "MODEL", "--prompt", "x", "--ignore-end"),
    ("generate", "--model", "MODEL", "--prompt", "x", "--ignore-end", "--json"),
    ("generate", "--help"),
    ("--version",),
])
def test_a_full_disk_is_reported(orbitkv, tiny, options):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([str(orbitkv), *(tiny if word == "MODEL" else word for word in options)], stdout=full,
                              stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 1
    assert b"standard output: No space left" in done.stderr


def test_a_full_disk_is_reported_also_where_nothing_is_left_to_flush(orbitkv, model_path):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([str(orbitkv), "generate", "--model", str(model_path), "--prompt", "tree " * 1200,
                               "--max-tokens", "1", "--json"], stdout=full, stderr=subprocess.PIPE, timeout=120,
                              check=False)
    assert done.returncode == 1
    assert b"standard output: No space left" in done.stderr


@pytest.mark.parametrize(("closed", "status"), [("<&-", 1), (">&-", 1), ("2>&-", 0)])
def test_a_closed_standard_descriptor_is_no_other_file(orbitkv, tiny, closed, status):
    prompt = "" if closed == "<&-" else "--prompt x"
    done = subprocess.run(["sh", "-c", f"'{orbitkv}' generate --model '{tiny}' --ignore-end --stats {prompt} {closed}"],
                          capture_output=True, timeout=60, check=False)
    assert done.returncode == status
    complaint = {"<&-": b"standard input: Bad file descriptor", ">&-": b"standard output: Bad file descriptor", "2>&-": b""}
    assert complaint[closed] in done.stderr


def test_ctrl_c_stops_and_keeps_what_was_written(orbitkv, model_path):
    child = subprocess.Popen([str(orbitkv), "generate", "--model", str(model_path), "--prompt", "Count: 1 2 3",
                              "--max-tokens", "8000", "--ignore-end"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = child.stdout.read(1)
    child.send_signal(signal.SIGINT)
    begin = time.monotonic()
    out, complaints = child.communicate(timeout=30)
    assert time.monotonic() - begin < 10
    assert child.returncode == 1
    assert (first + out).endswith(b"\n")
    assert b"stopped by a signal" in complaints
