"""Prefill and decode workers behind both real routers: the answers are one server's."""
import concurrent.futures
import json
import random
import struct
import subprocess

import httpx
import pytest

from conftest import ROOT, TERN, Server, ask, needs_smollm2
from disaggregated import ALIKE, Pair, metric
from routers import TINY, tiny

TASKS = [json.loads(line) for line in open(ROOT / "tests/data/tiny/tasks_dev.jsonl")]
GREEDY = {"temperature": 0, "max_new_tokens": 12}


@pytest.fixture(scope="module")
def alone():
    """One server that does both halves."""
    server = tiny(*ALIKE).wait_ready()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def pair():
    two = Pair()
    yield two
    two.wait_idle()
    assert metric(two.decode, "sglang:num_transfer_failed_reqs_total") == 0
    assert two.decode.stop() == 0, two.decode.log()
    assert two.prefill.stop() == 0, two.prefill.log()
    two.kill()


@pytest.fixture(scope="module", params=["sr", "smg"])
def router(request, pair):
    return pair.router(request.param)


def sse(reply):
    assert reply.status_code == 200, reply.read()
    lines = [line for line in reply.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def post(one, path, body):
    reply = httpx.post(one.url + path, json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    # Log probabilities are float32: where a router writes an answer anew, it may change digits that
    # float32 does not have.
    return reply.json(parse_float=lambda text: struct.unpack("f", struct.pack("f", float(text)))[0])


def choices(answer):
    for volatile in ("id", "created"):
        answer.pop(volatile, None)
    return answer["choices"]


def test_workers_say_what_they_are(pair):
    for worker, mode in ((pair.prefill, "prefill"), (pair.decode, "decode")):
        info = httpx.get(worker.url + "/server_info").json()
        assert info["disaggregation_mode"] == mode and info["dp_size"] == info["tp_size"] == 1
        assert httpx.get(worker.url + "/model_info").json()["disaggregation_mode"] == mode
        loads = httpx.get(worker.url + "/v1/loads").json()["loads"][0]["disaggregation"]
        assert loads["mode"] == mode
        assert httpx.get(worker.url + "/v1/models").json()["data"][0]["owned_by"] == "sglang"
        # FAKE_BOOTSTRAP_HOST: a health check, which has no other half.
        reply = httpx.post(worker.url + "/generate", timeout=10, json={
            "text": "x", "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "bootstrap_host": "2.2.2.2", "bootstrap_room": 0})
        assert reply.status_code == 200, reply.text
        assert httpx.get(worker.url + "/health_generate", timeout=30).status_code == 200
    assert httpx.get(f"http://127.0.0.1:{pair.bootstrap_port}/health").text == "OK"


def test_chat_completions_and_generate(router, alone):
    chat = {"model": "tiny", "messages": TASKS[0]["messages"], "temperature": 0, "max_tokens": 24}
    whole = choices(post(alone, "/v1/chat/completions", chat))
    assert choices(post(router, "/v1/chat/completions", chat)) == whole
    with httpx.stream("POST", router.url + "/v1/chat/completions", json={**chat, "stream": True},
                      timeout=60) as reply:
        text = "".join(chunk["choices"][0]["delta"].get("content") or ""
                       for chunk in sse(reply) if chunk["choices"])
    assert text == whole[0]["message"]["content"]

    text = {"model": "tiny", "prompt": "count: 1 2 3", "temperature": 0, "max_tokens": 9,
            "logprobs": 3}
    assert (choices(post(router, "/v1/completions", text)) ==
            choices(post(alone, "/v1/completions", text)))
    with httpx.stream("POST", router.url + "/v1/completions", json={**text, "stream": True},
                      timeout=60) as reply:
        streamed = "".join(chunk["choices"][0]["text"] for chunk in sse(reply) if chunk["choices"])
    assert streamed == choices(post(alone, "/v1/completions", text))[0]["text"]

    native = {"text": "add: 12 + 30", "sampling_params": GREEDY}
    one, other = post(alone, "/generate", native), post(router, "/generate", native)
    assert one["output_ids"] == other["output_ids"] and one["text"] == other["text"]
    for key in ("finish_reason", "prompt_tokens", "completion_tokens"):
        assert one["meta_info"][key] == other["meta_info"][key]
    with httpx.stream("POST", router.url + "/generate", json={**native, "stream": True},
                      timeout=60) as reply:
        assert sse(reply)[-1]["output_ids"] == one["output_ids"]


def test_several_answers_and_batches(router, alone):
    """Arrays of rooms: n > 1, lists of prompts, lists of ids."""
    chat = {"model": "tiny", "messages": ask("Tell me something."), "temperature": 1, "seed": 7,
            "max_tokens": 16, "n": 3}
    assert (choices(post(router, "/v1/chat/completions", chat)) ==
            choices(post(alone, "/v1/chat/completions", chat)))
    text = {"model": "tiny", "prompt": ["one", "two and two", "three"], "temperature": 0,
            "max_tokens": 8}
    assert (choices(post(router, "/v1/completions", text)) ==
            choices(post(alone, "/v1/completions", text)))
    several = {**text, "n": 2, "temperature": 1, "seed": 3}
    assert (choices(post(router, "/v1/completions", several)) ==
            choices(post(alone, "/v1/completions", several)))
    ids = {"input_ids": [[5, 6, 7], list(range(100, 300))], "sampling_params": GREEDY}
    assert ([one["output_ids"] for one in post(router, "/generate", ids)] ==
            [one["output_ids"] for one in post(alone, "/generate", ids)])


def test_logprobs_are_merged(router, alone):
    body = {"text": "The first day", "sampling_params": GREEDY, "return_logprob": True,
            "top_logprobs_num": 2}
    one, other = (post(at, "/generate", body)["meta_info"] for at in (alone, router))
    for key in ("output_token_logprobs", "output_top_logprobs"):
        assert one[key] == other[key], key
    assert len(other["output_token_logprobs"]) == 12
    assert one["input_token_logprobs"] == other["input_token_logprobs"]
    chat = {"model": "tiny", "messages": ask("hello"), "temperature": 0, "max_tokens": 5,
            "logprobs": True, "top_logprobs": 3}
    assert (choices(post(router, "/v1/chat/completions", chat))[0]["logprobs"] ==
            choices(post(alone, "/v1/chat/completions", chat))[0]["logprobs"])


def test_stop_and_tools(router, alone):
    chat = {"model": "tiny", "messages": TASKS[0]["messages"], "temperature": 0, "max_tokens": 24}
    text = choices(post(alone, "/v1/chat/completions", chat))[0]["message"]["content"]
    for stop in (text[1:3], text[:1]):  # the second within the first token
        both = [choices(post(at, "/v1/chat/completions", {**chat, "stop": stop}))
                for at in (alone, router)]
        assert both[0] == both[1] and both[0][0]["finish_reason"] == "stop"
    first = post(alone, "/generate", {"text": "count: 1 2", "sampling_params": GREEDY})["output_ids"]
    stopped = {"text": "count: 1 2", "sampling_params": {**GREEDY, "stop_token_ids": first[:1]}}
    both = [post(at, "/generate", stopped) for at in (alone, router)]
    assert both[0]["text"] == both[1]["text"] == ""
    assert both[1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": first[0]}
    task = next(task for task in TASKS if task["task"] == "tool")
    tools = {"model": "tiny", "messages": task["messages"], "tools": task.get("tools"),
             "temperature": 0, "max_tokens": 60}
    both = [choices(post(at, "/v1/chat/completions", tools)) for at in (alone, router)]
    for answer in both:
        for call in answer[0]["message"].get("tool_calls") or []:
            call.pop("id")
    assert both[0] == both[1]


def test_errors_keep_their_status(router):
    for stream in (False, True):
        reply = router.post("/v1/chat/completions", {"model": "tiny", "messages": ask("hi"),
                                                     "max_tokens": 100000, "stream": stream})
        assert reply.status_code == 400 and "100000 in the completion" in reply.text, reply.text
    reply = router.post("/generate", {"text": "x", "sampling_params": {"top_p": 7}})
    assert reply.status_code == 400, reply.text


def requests_of(count, seed, lengths=(1, 5, 63, 64, 65, 130, 300), most_new_tokens=29):
    rng = random.Random(seed)
    for i in range(count):
        ids = [rng.randrange(2000) for _ in range(rng.choice(lengths))]
        sampling = {"max_new_tokens": rng.randrange(1, most_new_tokens + 1)}
        sampling.update({"temperature": 0} if i % 2 else
                        {"temperature": 1, "sampling_seed": i, "top_p": 0.9})
        yield {"input_ids": ids, "sampling_params": sampling}


@pytest.mark.parametrize("kind", ["sr", "smg"])
def test_200_prompts_have_one_servers_tokens(kind, pair, alone):
    router = pair.router(kind)
    bodies = list(requests_of(200, 1))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        got = list(pool.map(lambda body: post(router, "/generate", body)["output_ids"], bodies))
        want = list(pool.map(lambda body: post(alone, "/generate", body)["output_ids"], bodies))
    assert got == want
    pair.wait_idle()


@needs_smollm2
def test_50_prompts_of_smollm2_have_one_servers_tokens():
    """Through both routers."""
    bodies = list(requests_of(50, 4, lengths=(1, 7, 15, 33, 64), most_new_tokens=16))
    alone = Server(*ALIKE).wait_ready()
    try:
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            want = list(pool.map(lambda body: post(alone, "/generate", body)["output_ids"], bodies))
    finally:
        alone.kill()
    pair = Pair(make=Server)
    try:
        for kind in ("sr", "smg"):
            router = pair.router(kind)
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                got = list(pool.map(
                    lambda body: post(router, "/generate", body)["output_ids"], bodies))
            assert got == want, kind
            pair.wait_idle()
            router.kill()
    finally:
        pair.kill()


def test_a_small_decode_pool_retracts_and_asks_again(alone):
    """Output unchanged, however often pages run out."""
    pair = Pair(decode=("--max-total-tokens", "1024", "--num-reserved-decode-tokens", "0"))
    try:
        router = pair.router("smg", "--disable-worker-overload-protection")
        bodies = [{"input_ids": [7 + i] * 100, "sampling_params": {
            "temperature": 1, "sampling_seed": i, "max_new_tokens": 200, "ignore_eos": True}}
            for i in range(10)]
        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            got = list(pool.map(lambda body: post(router, "/generate", body)["output_ids"], bodies))
            want = list(pool.map(lambda body: post(alone, "/generate", body)["output_ids"], bodies))
        assert got == want
        assert metric(pair.decode, "sglang:num_prefill_retries_total") > 0
        assert metric(pair.decode, "tern:decode_local_recomputes_total") == 0
        pair.wait_idle()
    finally:
        pair.kill()


def local(*options, make=tiny):
    return make("--disaggregation-mode", "local", *options).wait_ready()


@pytest.mark.parametrize("decode_format", ["bf16", "fp8_e4m3", "fp8_tiled", "fp8_ds_mla"])
@pytest.mark.parametrize("at", ["sender", "receiver"])
def test_mixed_formats_equal_local(decode_format, at, alone):
    """Prefill in BF16, decode in each format, pages of different sizes: two workers say what `local`
    says; and with BF16 on both sides what one server says."""
    one = local("--kv-cache-dtype", decode_format)
    pair = Pair(options=(), prefill=("--kv-cache-dtype", "bf16", "--page-size", "32"),
                decode=("--kv-cache-dtype", decode_format, "--page-size", "128",
                        "--disaggregation-convert-at", at))
    try:
        router = pair.router("sr")
        bodies = list(requests_of(40, 2))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            got, want, single = (list(pool.map(
                lambda body: post(where, "/generate", body)["output_ids"], bodies))
                for where in (router, one, alone))
        assert got == want
        if decode_format == "bf16":
            assert got == single
        pair.wait_idle()
    finally:
        pair.kill()
        one.kill()


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    """The small model with weights of two other formats."""
    folder = tmp_path_factory.mktemp("quantized")
    for name in ("fp8", "int4"):
        subprocess.run([TERN, "quantize", "--model-path", str(TINY), "--output", str(folder / name),
                        "--format", name, "--recipe", "all-linear",
                        *(("--method", "rtn") if name == "int4" else ())],
                       check=True, capture_output=True)
    return folder / "fp8", folder / "int4"


@pytest.mark.parametrize("kind,decode_format", [("sr", "fp8_ds_mla"), ("smg", "fp8_tiled")])
def test_mixed_weights_and_rows_equal_local(kind, decode_format, quantized):
    """FP8 weights and BF16 rows in prefill, INT4 weights and FP8 rows in decode: two workers behind a
    router say what `local` says, log probabilities to the bit."""
    fp8, int4 = quantized
    one = local("--prefill-model-path", str(fp8), "--kv-cache-dtype", decode_format,
                make=lambda *options: tiny(*options, path=int4))
    pair = Pair(make=lambda *options, **kwargs: tiny(*options, path=fp8, **kwargs),
                make_decode=lambda *options, **kwargs: tiny(*options, path=int4, **kwargs), options=(),
                prefill=("--kv-cache-dtype", "bf16"), decode=("--kv-cache-dtype", decode_format))
    try:
        router = pair.router(kind)
        bodies = [{**body, "return_logprob": True} for body in requests_of(40, 5)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            got, want = (list(pool.map(lambda body: post(where, "/generate", body), bodies))
                         for where in (router, one))
        for key in ("output_token_logprobs", "input_token_logprobs"):
            assert [g["meta_info"][key] for g in got] == [w["meta_info"][key] for w in want], key
        assert [g["output_ids"] for g in got] == [w["output_ids"] for w in want]
        pair.wait_idle()
    finally:
        pair.kill()
        one.kill()


@pytest.mark.parametrize("make,count", [
    (tiny, 200), pytest.param(Server, 50, marks=needs_smollm2)], ids=["tiny", "smollm2"])
def test_local_equals_one_server(make, count, alone):
    """Both engines in one process."""
    options = ("--kv-cache-dtype", "bf16")
    one = local(*options, make=make)
    single = alone if make is tiny else make(*options).wait_ready()
    try:
        bodies = list(requests_of(count, 3))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            got, want = (list(pool.map(
                lambda body: post(where, "/generate", body)["output_ids"], bodies))
                for where in (one, single))
        assert got == want
        one.wait_idle(5)
        assert one.stats()["num_used_tokens"] == 0
        assert one.stop() == 0, one.log()
    finally:
        one.kill()
        if single is not alone:
            single.kill()


def test_metrics_have_sglangs_names(pair, router):
    before = metric(pair.decode, "sglang:kv_transfer_alloc_ms_count")
    post(router, "/generate", {"input_ids": [5, 6, 7], "sampling_params": GREEDY})
    assert metric(pair.decode, "sglang:kv_transfer_alloc_ms_count") == before + 1
    for worker, mode in ((pair.prefill, "prefill"), (pair.decode, "decode")):
        text = httpx.get(worker.url + "/metrics").text
        for name in ("num_prefill_bootstrap_queue_reqs", "num_prefill_inflight_queue_reqs",
                     "num_decode_prealloc_queue_reqs", "num_decode_transfer_queue_reqs",
                     "pending_prealloc_token_usage", "num_retracted_reqs", "kv_used_tokens",
                     "full_token_usage", "num_transfer_failed_reqs_total",
                     "num_bootstrap_failed_reqs_total", "num_prefill_retries_total",
                     "kv_transfer_speed_gb_s_sum", "kv_transfer_latency_ms_sum",
                     "kv_transfer_bootstrap_ms_sum", "kv_transfer_alloc_ms_sum",
                     "kv_transfer_total_mb_sum"):
            lines = [line for line in text.splitlines() if line.startswith(f"sglang:{name}{{")]
            assert lines and all(f'engine_type="{mode}"' in line for line in lines), (mode, name)


def test_rows_are_in_no_shared_memory(pair):
    """Nobody else on the machine could open them: the workers map no shared segment."""
    for worker in (pair.prefill, pair.decode):
        maps = open(f"/proc/{worker.process.pid}/maps").read()
        assert "/dev/shm" not in maps and "/SYSV" not in maps and "/memfd:" not in maps
        shared = [line for line in maps.splitlines() if line.split()[1][3] == "s"]
        assert all(line.split()[1][1] == "-" for line in shared), shared  # files, to be read alone


def resident_bytes(server):
    status = open(f"/proc/{server.process.pid}/status").read()
    return next(int(line.split()[1]) << 10 for line in status.splitlines()
                if line.startswith("RssAnon"))


@needs_smollm2
def test_local_holds_one_weight_set(tmp_path):
    """SmolLM2's weights are most of what a process holds: two engines of one file hold them once; and of
    two files, what is alike."""
    options = ("--kv-cache-dtype", "bf16", "--max-total-tokens", "1024", "--threads", "2",
               "--chunked-prefill-size", "32", "--max-running-requests", "2")
    one = Server(*options).wait_ready()
    try:
        weights = gb(one, "sglang:weight_memory_usage_gb")
        alone = resident_bytes(one)
        assert alone > 0.8 * weights
    finally:
        one.kill()
    apart = ("--disaggregation-mode", "local", "--prefill-max-total-tokens", "1024", *options)
    both = Server(*apart).wait_ready()
    try:
        assert gb(both, "sglang:weight_memory_usage_gb") == weights
        assert resident_bytes(both) < alone + 0.3 * weights, (alone, resident_bytes(both), weights)
    finally:
        both.kill()
    # Routed experts in INT4, all else as it was.
    quantized = tmp_path / "int4"
    subprocess.run([TERN, "quantize", "--model-path", str(TINY), "--output", str(quantized), "--format",
                    "int4", "--method", "rtn"], check=True,
                   capture_output=True)
    each = {}
    for path in (TINY, quantized):
        server = tiny(*options, path=path).wait_ready()
        each[path] = gb(server, "sglang:weight_memory_usage_gb")
        server.kill()
    mixed = tiny("--disaggregation-mode", "local", "--prefill-model-path", str(TINY),
                 path=quantized).wait_ready()
    try:
        shared = each[TINY] + each[quantized] - gb(mixed, "sglang:weight_memory_usage_gb")
        assert 0 < shared < each[quantized]
        assert httpx.post(mixed.url + "/generate", timeout=30, json={
            "text": "count: 1 2", "sampling_params": GREEDY}).status_code == 200
    finally:
        mixed.kill()


def gb(server, name):
    return round(metric(server, name) * (1 << 30))


def test_local_allocates_what_plan_prints():
    options = ("--kv-cache-dtype", "auto", "--disaggregation-mode", "local", "--max-total-tokens",
               "8192", "--prefill-max-total-tokens", "2048", "--threads", "1")
    printed = json.loads(subprocess.run(
        [TERN, "plan", str(TINY), *options, "--bandwidth", "10GB/s", "--flops", "100G", "--json"],
        check=True, capture_output=True, text=True).stdout)
    one = tiny(*options).wait_ready()
    try:
        text = httpx.get(one.url + "/metrics").text
        for role, tokens, kv in (
                ("prefill", printed["prefill_pool"]["tokens"], printed["prefill_pool"]["kv"]),
                ("decode", printed["kv"]["tokens"], printed["bytes_per_rank"]["kv"])):
            label = f'{{engine_type="{role}"}} '
            assert f"sglang:max_total_num_tokens{label}{tokens}" in text, role
            value = text.split(f"sglang:kv_cache_memory_usage_gb{label}")[1].split()[0]
            assert round(float(value) * (1 << 30)) == kv
        assert printed["prefill_pool"]["tokens"] == 2048 and printed["kv"]["tokens"] == 8192
        assert printed["kv_format"] == "fp8_tiled" and printed["prefill_pool"]["kv_format"] == "bf16"
        assert printed["prefill_pool"]["weights"] == 0
        assert printed["shared_weights"] == printed["bytes_per_rank"]["weights"]
        for line in printed["memory_summary"].splitlines()[:2]:
            role, arithmetic = line.split(" ", 1)
            assert f"memory ({role}): {arithmetic.rsplit(' of ', 1)[0]}" in one.log()
    finally:
        one.kill()


def test_a_rid_may_come_again_and_unknown_fields_are_ignored(pair):
    """What a router's retry looks like."""
    for room in (11, 12):
        body = {"text": "hello", "model": "unknown", "rid": "same", "routed_dp_rank": 0,
                "disagg_prefill_dp_rank": 0, "log_metrics": True, "sampling_params": GREEDY,
                **pair.rooms(room)}
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            prefill, decode = (pool.submit(post, worker, "/generate", body)
                               for worker in (pair.prefill, pair.decode))
        meta = prefill.result()["meta_info"]
        assert meta["finish_reason"] == {"type": "length", "length": 1}
        assert prefill.result()["output_ids"] == decode.result()["output_ids"][:1]
        assert len(decode.result()["output_ids"]) == 12


def test_bodies_that_a_worker_refuses(pair):
    ok = {"text": "x", "sampling_params": GREEDY}
    for worker in (pair.prefill, pair.decode):
        for fields, word in (({}, "bootstrap_host"),
                             ({"bootstrap_host": "127.0.0.1"}, "bootstrap_room"),
                             (pair.rooms(1, bootstrap_host=5), "bootstrap_host"),
                             (pair.rooms(1, bootstrap_host="8.8.8.8"), "8.8.8.8"),
                             (pair.rooms(-1), "bootstrap_room"),
                             (pair.rooms("1"), "bootstrap_room"),
                             (pair.rooms(1, bootstrap_port=70000), "bootstrap_port"),
                             (pair.rooms([1, 2]), "bootstrap_room")):
            reply = httpx.post(worker.url + "/generate", json={**ok, **fields}, timeout=10)
            assert reply.status_code == 400 and word in reply.text, (fields, reply.text)
    pair.wait_idle()


def test_pages_leave_while_the_prompt_is_computed(tmp_path):
    """The trace of the prefill worker: most pages of a long prompt go out between its chunks."""
    trace = tmp_path / "trace.txt"
    pair = Pair(prefill=("--chunked-prefill-size", "128", "--trace-file", str(trace)))
    try:
        router = pair.router("smg")
        post(router, "/generate", {"input_ids": [3 + i % 1900 for i in range(3200)],
                                   "sampling_params": {"temperature": 0, "max_new_tokens": 2}})
        pair.wait_idle()
        assert pair.prefill.stop() == 0
        stops = [line.split() for line in trace.read_text().splitlines()]
        pages = [int(time) for time, name in stops if name == "engine.pd_page"]
        last_chunk = max(int(time) for time, name in stops if name == "engine.forward")
        assert len(pages) == 50
        assert sum(time < last_chunk for time in pages) >= 45
    finally:
        pair.kill()
