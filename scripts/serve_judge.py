"""A local OpenAI-compatible server for ``intervention.judge.backend: endpoint``, from what is installed: no hub, no network.

    python scripts/serve_judge.py --port 8008                                  # SmolLM2-135M in llama.cpp's server
    python scripts/serve_judge.py --port 8008 --engine vllm --model DIRECTORY  # any model folder in vLLM's own server

Runs in the foreground until it is killed. The model is known as ``judge``.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from prepare_model import GGUF, source

NAME = "judge"


def llama_cpp(port: int, context: int, threads: int) -> None:
    """Serve SmolLM2-135M-Instruct with llama.cpp."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(source() / GGUF)
    params.model_alias = {NAME}
    params.n_ctx, params.n_parallel, params.port, params.hostnames = context, 1, port, ["127.0.0.1"]
    params.cpuparams.n_threads, params.cpuparams.poll = threads, 0  # threads that spin while they wait starve others
    server = xllamacpp.Server(params)
    print(f"serving {NAME} at {server.listening_address}/v1", flush=True)
    signal.pause()


def vllm(port: int, context: int, threads: int, model: Path) -> None:
    """Serve a model folder with vLLM; replaces this process."""
    os.environ |= {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", str(context), "--enforce-eager", "--dtype", "float32", "--max-num-seqs", "16"]
    command += ["--enable-prompt-tokens-details"]  # reports cached tokens
    os.execv(sys.executable, command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8008)
    parser.add_argument("--engine", choices=("llama.cpp", "vllm"), default="llama.cpp")
    parser.add_argument("--model", type=Path, help="model folder, for vllm")
    parser.add_argument("--context", type=int, default=4096, help="tokens of prompt and answer")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    for name, most in (("port", 65535), ("context", 1 << 20), ("threads", 1024)):
        if not 1 <= getattr(arguments, name) <= most:
            parser.error(f"--{name} is {getattr(arguments, name)}, expected 1 to {most}")
    try:
        socket.create_server(("127.0.0.1", arguments.port)).close()
    except OSError as error:
        parser.error(f"--port {arguments.port} cannot be served: {error.strerror or error}")
    if arguments.engine == "llama.cpp":
        llama_cpp(arguments.port, arguments.context, arguments.threads)
    elif arguments.model is None or not (arguments.model / "config.json").is_file():
        parser.error(
            "--engine vllm needs --model DIRECTORY, a folder with config.json (scripts/prepare_model.py writes one)"
        )
    else:
        vllm(arguments.port, arguments.context, arguments.threads, arguments.model)


if __name__ == "__main__":
    main()
