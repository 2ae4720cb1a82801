"""Other people's programs, run the way their users run them: llama.cpp's server, and Redis.

llama.cpp gets the same file and prompts as token ids, over HTTP as ours does. A user may also choose its fast format, so
it runs on the same model requantised to Q4_0 as well; that file is made once and kept in the user's cache folder.
"""
import hashlib
import os
import shutil
import socket
import sys
from pathlib import Path

from orbitkv_tools.process import Http, StartError, free_port

CONTEXT = 4096
GREEDY = {"temperature": 0.0, "samplers": ["top_k"], "top_k": 1, "seed": 1, "ignore_eos": True}


class LlamaServer(Http):
    def __init__(self, cluster, name, model, threads, slots=None):
        argv = [sys.executable, "-m", "orbitkv_bench.llamacpp_server", str(model), str(threads), str(CONTEXT)]
        if slots:
            argv.append(str(slots))
        folder = str(Path(__file__).resolve().parent.parent)
        self.program = cluster.start(name, argv, r"ready http://(\S+)", {"PYTHONPATH": folder})
        super().__init__(self.program.ready_match.group(1))

    def complete(self, tokens, count, keep=False):
        """The server's reply to a greedy completion of token ids; checks that it did exactly the work asked for."""
        reply = self.json("POST", "/completion", {**GREEDY, "prompt": tokens, "n_predict": count, "cache_prompt": keep,
                                                  **({"id_slot": 0} if keep else {})})
        timings = reply["timings"]
        done = timings["prompt_n"] + timings.get("cache_n", 0)
        if done != len(tokens) or timings["predicted_n"] != count or (not keep and timings.get("cache_n", 0)):
            raise RuntimeError(f"llama.cpp did other work than asked: {timings}")
        return reply

    def slot(self, action, **body):
        return self.json("POST", f"/slots/0?action={action}", body)


class Redis:
    """A redis-server without persistence that holds one value."""

    KEY = "block"

    def __init__(self, cluster, size):
        if not shutil.which("redis-server"):
            raise StartError("redis-server is not installed; ./run setup bench installs it")
        for attempt in range(3):  # another program may take the port first
            self.port = free_port()
            try:
                self.program = cluster.start(f"redis-{attempt}", [
                    "redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                    "--dir", str(cluster.folder)], r"Ready to accept connections")
                break
            except StartError:
                if attempt == 2:
                    raise
        header = f"${size}\r\n".encode()
        self.reply_bytes = len(header) + size + 2
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(f"*3\r\n$3\r\nSET\r\n${len(self.KEY)}\r\n{self.KEY}\r\n".encode() + header +
                               os.urandom(size) + b"\r\n")
            if connection.recv(5) != b"+OK\r\n":
                raise RuntimeError("Redis refused the value")

    @property
    def request(self):
        return f"GET {self.KEY}"


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "orbitkv"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def requantised(model):
    """The path of `model` with its Q4_1 tensors in Q4_0, made on the first call."""
    with open(model, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    path = cache_folder() / f"requantised-{digest}-Q4_0.gguf"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}.part")
        try:
            write_requantised(model, unfinished)
            unfinished.rename(path)
        finally:
            unfinished.unlink(missing_ok=True)
    return path


def write_requantised(source, target):
    import gguf
    import numpy

    kinds = gguf.GGMLQuantizationType
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, metadata in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue  # the writer makes these itself
        value = int(gguf.LlamaFileType.MOSTLY_Q4_0) if name == "general.file_type" else metadata.contents()
        kind = metadata.types[0]
        inner = metadata.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, sub_type=inner)
    for tensor in reader.tensors:
        data, kind = tensor.data, tensor.tensor_type
        if kind == kinds.Q4_1:
            plain = gguf.quants.dequantize(data, kind).astype(numpy.float32)
            data, kind = gguf.quants.quantize(plain, kinds.Q4_0), kinds.Q4_0
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def work_of(model):
    """Bytes of all tensors of a GGUF model, and what one pass over it costs at least: bytes read to decode a token, and
    floating-point operations a prompt token."""
    import gguf

    read, weights, has_output = 0, 0, False
    for tensor in gguf.GGUFReader(model).tensors:
        read += int(tensor.n_bytes)
        if len(tensor.shape) > 1 and tensor.name.startswith("blk."):
            weights += int(tensor.n_elements)
        has_output = has_output or tensor.name == "output.weight"
        if tensor.name == "token_embd.weight":
            embedding = int(tensor.n_bytes)
    # An embedding that is also the output matrix is read whole for each token; a separate one only by the row.
    return {"tensor_bytes": read, "decode_bytes": read - (embedding if has_output else 0), "prefill_flop": 2 * weights}
