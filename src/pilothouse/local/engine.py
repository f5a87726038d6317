"""The child process that runs llama.cpp. A script: `server.py` starts this file by its path, nobody imports it.

Why a process of its own (measured with xllamacpp 2026.10): its `Server(...)` keeps Python's global lock while it loads,
so no timer, page or Ctrl-C would be served meanwhile; taking it down with a request in flight keeps the lock for up to
30 s, and for ever where that request does not stream; older releases take SIGINT and SIGTERM for themselves; and a
failed assertion inside it is an `abort()`. A child can be killed at once, and dies alone.

The protocol, one JSON object a line:
    stdin   the order: the values that `start` reads; then nothing, and the end of file means "stop"
    stdout  one answer: {"address": "http://127.0.0.1:PORT"} or {"error": "…"}
    stderr  llama.cpp's errors

Imports nothing of Pilothouse: the file has to work wherever the parent found it, and to start fast.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

LOG_ERRORS = 1  # llama.cpp's verbosity: errors only
BATCH_TOKENS = (
    256  # a stop is noticed between two batches: 14 s late with 2048, under 1 s with 256, no slower on a CPU
)
PING_S = 1  # how often a waiting stream looks whether its reader is still there
CACHE_MIB = 256  # prompts of conversations that have no slot now; llama.cpp's own default is 8 GiB
HTTP_THREADS = 16  # one for each request that is being answered or waits for a slot


def start(order: dict[str, Any]) -> Any:
    """Loads the model and returns llama.cpp's server, which listens on a free port of the loopback interface.

    `order`: path, alias, threads, context (tokens a slot), slots, api_key, max_tokens (-1: no limit), sampling
    (llama.cpp's names; used where a request does not say).
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.verbosity = LOG_ERRORS
    params.model.path = order["path"]
    params.model_alias = {order["alias"]}
    params.cpuparams.n_threads = order["threads"]
    params.cpuparams_batch.n_threads = order["threads"]
    params.n_parallel = order["slots"]
    params.n_ctx = order["context"] * order["slots"]
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.n_predict = order["max_tokens"]
    params.cache_ram_mib = CACHE_MIB
    params.port = 0  # a free one; the host is 127.0.0.1 unless one is given
    params.n_threads_http = HTTP_THREADS
    # Only the owner of the key may use it: not another user of the machine, not a page in the browser.
    params.api_keys = [order["api_key"]]
    for name, value in order["sampling"].items():
        setattr(params.sampling, name, value)
    _set_where_known(
        params,
        sse_ping_interval=PING_S,
        cors_origins="",
        cors_credentials=False,
        ui=False,
        endpoint_slots=False,
    )
    return xllamacpp.Server(params)


def _set_where_known(params: Any, **values: Any) -> None:
    """Sets what not every release has; none of it is needed for an answer."""
    for name, value in values.items():
        if hasattr(params, name):
            setattr(params, name, value)


def main() -> None:
    """Starts, answers, and stays until the parent closes stdin or dies."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    order = json.loads(sys.stdin.buffer.readline())
    try:
        server = start(order)
        answer = {"address": server.listening_address}
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent is told
        answer = {"error": str(error) or type(error).__name__}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
    sys.stdin.buffer.read()


if __name__ == "__main__":
    try:
        main()
    finally:
        os._exit(0)  # not through llama.cpp's destructor: it waits for requests in flight
