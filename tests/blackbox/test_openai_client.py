"""`orbitkv serve` through the official `openai` client, unmodified, and a few raw requests for what it cannot send."""
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import pytest
from orbitkv_tools.process import Cluster, Http, wait_until

openai = pytest.importorskip("openai", reason="the openai package is not in the virtual environment: ./run setup")

QUESTION = [{"role": "user", "content": "Name the capital of France."}]


@pytest.fixture(scope="module")
def engine(orbitkv, model_path):
    with Cluster(orbitkv, model_path) as cluster:
        yield cluster.engine("engine")


@pytest.fixture(scope="module")
def client(engine):
    with openai.OpenAI(base_url=f"http://{engine.address}/v1", api_key="unused", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def model(client):
    models = client.models.list().data
    assert len(models) == 1
    return models[0].id


def running(engine):
    return engine.metrics()["orbitkv_serve_requests_running"]


def test_the_model_is_listed_and_found_by_its_name(client, model):
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError) as refusal:
        client.models.retrieve("another")
    assert refusal.value.code == "model_not_found"


def test_a_chat_is_answered_the_same_whole_and_streamed(client, model):
    ask = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**ask)
    choice = whole.choices[0]
    assert "Paris" in choice.message.content and choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == choice.message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [choice.finish_reason]
    assert not chunks[-1].choices and all(chunk.usage is None for chunk in chunks[:-1])
    usage = chunks[-1].usage
    assert usage.completion_tokens == whole.usage.completion_tokens
    ours = usage.model_extra["orbitkv"]
    cached = ours["prefix_hit_tokens"] + ours["restored_tokens"]
    assert usage.prompt_tokens_details.cached_tokens == cached
    assert ours["computed_tokens"] + cached == usage.prompt_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_completions_take_text_and_token_ids_alike(client, model, engine):
    prompt = "The lighthouse keeper wrote"
    ids = engine.json("POST", "/tokenize", {"content": prompt})["tokens"]
    answers = [client.completions.create(model=model, prompt=form, temperature=0, max_tokens=8)
               for form in (prompt, ids, [prompt])]
    assert len({answer.choices[0].text for answer in answers}) == 1
    assert answers[0].usage.prompt_tokens == len(ids)
    assert answers[0].usage.completion_tokens == 8 and answers[0].choices[0].finish_reason == "length"
    streamed = client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == answers[0].choices[0].text


def test_a_seed_repeats_an_answer_and_another_one_changes_it(client, model):
    def tell(seed):
        return client.completions.create(model=model, prompt="Once upon a time", temperature=1.5, seed=seed,
                                         max_tokens=24).choices[0].text

    assert tell(1) == tell(1)
    assert len({tell(seed) for seed in range(2, 6)}) > 1


def test_stop_text_ends_the_answer_and_never_appears(client, model):
    ask = {"model": model, "prompt": "one two three four five six seven", "temperature": 0, "max_tokens": 24}
    free = client.completions.create(**ask).choices[0].text
    stop = free[len(free) // 2:len(free) // 2 + 4]
    for stream in (False, True):
        answer = client.completions.create(**ask, stop=[stop, "never said"], stream=stream)
        pieces = list(answer) if stream else [answer]
        assert "".join(piece.choices[0].text for piece in pieces) == free[:free.index(stop)]
        assert pieces[-1].choices[0].finish_reason == "stop"


def test_the_cache_extension_is_obeyed(client, model):
    prompt = "A page holds sixteen tokens, so this sentence must be long enough to fill several of them. " * 4

    def ask(cache):
        answer = client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=4,
                                           extra_body={"orbitkv": {"cache": cache}})
        return answer.choices[0].text, answer.usage.model_extra["orbitkv"], answer.usage.prompt_tokens

    control, off, prompt_tokens = ask("off")
    assert off["computed_tokens"] == prompt_tokens
    ask("local")
    again, local, _ = ask("local")
    assert again == control and local["prefix_hit_tokens"] >= prompt_tokens // 2
    assert ask("off")[1]["computed_tokens"] == prompt_tokens


def test_special_tokens_in_user_text_stay_text(client, model, engine):
    special = engine.json("POST", "/tokenize", {"content": "<|im_end|>"})["tokens"]
    assert len(special) > 1
    answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "<|im_end|>" * 3}],
                                            max_tokens=4)
    assert answer.usage.prompt_tokens >= 3 * len(special) - 2


def test_several_requests_run_together_and_get_their_own_answers(client, model):
    prompts = [f"Chapter {number}. The story of the number {number} begins" for number in range(6)]

    def tell(prompt):
        return client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=12,
                                         extra_body={"orbitkv": {"cache": "off"}}).choices[0].text

    alone = [tell(prompt) for prompt in prompts]
    together = [None] * len(prompts)

    def store(number):
        together[number] = tell(prompts[number])

    threads = [threading.Thread(target=store, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert together == alone


@pytest.mark.parametrize("more, param", [
    ({"n": 2}, "n"),
    ({"logprobs": True}, "logprobs"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"presence_penalty": 1}, "presence_penalty"),
    ({"temperature": 3}, "temperature"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "messages[0].content[0].type"),
    ({"extra_body": {"orbitkv": {"cache": "maybe"}}}, "orbitkv.cache"),
])
def test_what_is_not_done_is_refused_by_name(client, model, more, param):
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(**{"model": model, "messages": QUESTION, **more})
    assert refusal.value.param == param and refusal.value.type == "invalid_request_error"


def test_unknown_fields_are_ignored(client, model):
    client.chat.completions.create(model=model, messages=QUESTION, max_tokens=1, user="someone", metadata={"a": "b"},
                                   extra_body={"never_heard_of": 1})


def test_an_unknown_model_and_a_prompt_that_does_not_fit_are_refused(client, model):
    with pytest.raises(openai.NotFoundError) as refusal:
        client.chat.completions.create(model="another", messages=QUESTION)
    assert refusal.value.code == "model_not_found" and model in refusal.value.message
    with pytest.raises(openai.BadRequestError) as refusal:
        client.completions.create(model=model, prompt=[1] * 200_000)
    assert refusal.value.code == "context_length_exceeded" and "200000" in refusal.value.message
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=model, prompt="")
    with pytest.raises(openai.BadRequestError) as refusal:
        client.completions.create(model=model, prompt=[10_000_000])
    assert "10000000" in refusal.value.message


@pytest.mark.parametrize("body, status", [
    (b"", 400),
    (b"{", 400),
    (b"[" * 1000, 400),
    (b'{"prompt":"\xff\xfe"}', 400),
    (b'{"prompt":"x","prompt":"y"}', 400),
    (b'{"prompt":"' + b"x" * (5 << 20) + b'"}', 413),
])
def test_bodies_that_are_no_json_of_ours_are_refused(engine, body, status):
    got, text = engine.call("POST", "/v1/completions", body)
    assert got == status
    assert json.loads(text)["error"]["message"]


def test_paths_and_methods_are_refused_as_http_has_it(engine):
    assert engine.call("GET", "/nowhere")[0] == 404
    assert engine.call("GET", "/v1/completions")[0] == 405
    assert engine.json("GET", "/health") == {"status": "ok"}


def test_a_client_that_hangs_up_frees_its_request(engine, client, model):
    stream = client.completions.create(model=model, prompt="Tell me everything", max_tokens=1500, stream=True,
                                       extra_body={"ignore_eos": True})
    next(iter(stream))
    assert running(engine) == 1
    before = engine.metrics()["orbitkv_engine_generated_tokens_total"]
    stream.close()
    assert wait_until(lambda: running(engine) == 0, 5)
    assert engine.metrics()["orbitkv_engine_generated_tokens_total"] - before < 1000

    host, port = engine.address.rsplit(":", 1)
    whole = http.client.HTTPConnection(host, int(port))
    whole.request("POST", "/v1/completions", json.dumps({"prompt": "Tell me", "max_tokens": 1500, "ignore_eos": True}),
                  {"Content-Type": "application/json"})
    assert wait_until(lambda: running(engine) == 1, 5)
    whole.close()
    assert wait_until(lambda: running(engine) == 0, 5)


def test_sigterm_ends_a_busy_server_well_and_its_clients_are_told(orbitkv, model_path):
    with Cluster(orbitkv, model_path) as cluster:
        engine = cluster.engine("engine")
        said = []

        def ask():
            try:
                engine.stream("/v1/completions", {"prompt": "Go on", "max_tokens": 1900, "ignore_eos": True})
            except RuntimeError as error:
                said.append(str(error))

        asks = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
        for thread in asks:
            thread.start()
        assert wait_until(lambda: running(engine) == 3, 10)
        assert engine.program.stop(wait_s=20) == 0, engine.program.tail()
        for thread in asks:
            thread.join(10)
        assert len(said) == 3 and all("shutting down" in text for text in said)


def test_a_second_signal_does_not_wait_for_running_requests(orbitkv, model_path):
    with Cluster(orbitkv, model_path) as cluster:
        engine = cluster.engine("engine")
        said = []

        def ask():
            try:
                engine.stream("/v1/completions", {"prompt": "Go on", "max_tokens": 8000, "ignore_eos": True})
            except RuntimeError as error:
                said.append(str(error))

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        assert wait_until(lambda: running(engine) == 1, 10)
        engine.program.child.send_signal(signal.SIGINT)
        assert not wait_until(lambda: not engine.program.alive, 0.5)
        begin = time.monotonic()
        engine.program.child.send_signal(signal.SIGINT)
        assert engine.program.child.wait(20) == 0, engine.program.tail()
        assert time.monotonic() - begin < 4  # alone, the first one lets it go on for five seconds
        asking.join(10)
        assert said and "shutting down" in said[0]


def test_a_server_without_standard_descriptors_opens_nothing_in_their_place(orbitkv, model_path, start, free_port):
    port = free_port()
    server = start(["sh", "-c", f"exec '{orbitkv}' serve --model '{model_path}' --port {port} <&- >&- 2>&-"])

    def is_served():
        with contextlib.suppress(OSError):
            return Http(f"127.0.0.1:{port}").call("GET", "/health")[0] == 200
        return False

    assert wait_until(is_served, 60)
    assert [os.readlink(f"/proc/{server.child.pid}/fd/{number}") for number in range(3)] == ["/dev/null"] * 3


def loading(orbitkv, model_path, port):
    """Without a stdout, `start` has no first line to wait for."""
    return ["sh", "-c", f"exec '{orbitkv}' serve --model '{model_path}' --port {port} >/dev/null"]


def test_health_says_loading_until_the_model_is_there(orbitkv, model_path, start, free_port):
    port = free_port()
    start(loading(orbitkv, model_path, port))
    heard = []

    def is_ready():
        with contextlib.suppress(OSError):
            heard.append(Http(f"127.0.0.1:{port}").call("GET", "/health"))
        return heard and heard[-1][0] == 200

    assert wait_until(is_ready, 60, step_s=0.001)
    assert heard[0] == (503, '{"status":"loading"}') and heard[-1] == (200, '{"status":"ok"}')


def test_sigterm_while_the_model_loads_ends_well(orbitkv, model_path, start, free_port):
    port = free_port()
    server = start(loading(orbitkv, model_path, port))

    def listens():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    assert wait_until(listens, 60, step_s=0.001)
    assert server.stop(wait_s=60) == 0, server.tail()


def test_a_port_in_use_is_refused_before_the_model_is_read(orbitkv, model_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run([orbitkv, "serve", "--model", model_path, "--port", str(port)], capture_output=True,
                              text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"port {port} of 127.0.0.1 is in use by another program; stop it" in done.stderr


def test_a_model_that_asks_for_its_first_token_gets_it_before_text_alone(orbitkv, tiny_with_bos, start):
    server = start([orbitkv, "serve", "--model", tiny_with_bos, "--port", "0"], r"listening on (http://\S+)")

    def post(path, body):
        request = urllib.request.Request(server.ready_match.group(1) + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.load(reply)

    plain = post("/tokenize", {"content": "Hello"})["tokens"]
    assert post("/tokenize", {"content": "Hello", "add_special": True})["tokens"] == [1, *plain]
    for prompt, count in (("Hello", 1 + len(plain)), (plain, len(plain))):
        answer = post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
        assert answer["usage"]["prompt_tokens"] == count


def test_an_ipv6_address_is_printed_as_a_url_has_it(orbitkv, model_path, start):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    server = start([orbitkv, "serve", "--model", model_path, "--host", "::1", "--port", "0"], r"listening on (http://\S+)")
    with urllib.request.urlopen(server.ready_match.group(1) + "/health", timeout=10) as reply:
        assert reply.status == 200
