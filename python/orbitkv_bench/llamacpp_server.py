"""llama.cpp's own HTTP server as a process of its own, from the Python package xllamacpp.

Called as `python -m orbitkv_bench.llamacpp_server MODEL THREADS CONTEXT [SLOT_FOLDER]`; prints its address when it answers.
One slot and no prompt cache in RAM, which is what a single user with an empty cache measures; everything else is the
package's default.
"""
import signal
import sys

import xllamacpp


def main():
    model, threads, context = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.port = 0  # any free one, on loopback
    parameters.n_parallel = 1
    parameters.n_ctx = context
    parameters.n_gpu_layers = 0
    parameters.cache_ram_mib = 0
    parameters.cpuparams.n_threads = threads
    parameters.cpuparams_batch.n_threads = threads
    if len(sys.argv) > 4:
        parameters.endpoint_slots = True
        parameters.slot_save_path = sys.argv[4].rstrip("/") + "/"
    server = xllamacpp.Server(parameters)
    print("ready", server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
