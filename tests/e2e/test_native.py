"""SGLang's own endpoints."""
import json
import re

import httpx

from conftest import ROOT, Server


def generate(server, **body):
    reply = httpx.post(server.url + "/generate", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(server, **body):
    with httpx.stream("POST", server.url + "/generate", json={**body, "stream": True},
                      timeout=60) as reply:
        assert reply.status_code == 200
        lines = [line for line in reply.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


GREEDY = {"temperature": 0, "max_new_tokens": 8}


def test_text_ids_and_batches_agree(server):
    one = generate(server, text="One, two, three,", sampling_params=GREEDY)
    assert "four" in one["text"]
    meta = one["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert meta["completion_tokens"] == len(one["output_ids"]) == 8
    batch = generate(server, text=["One, two, three,", "The sea is"], sampling_params=GREEDY)
    assert batch[0]["text"] == one["text"]
    assert len(batch) == 2


def test_stream_is_cumulative_and_equals_whole(server):
    whole = generate(server, text="The sea is", sampling_params=GREEDY)
    parts = events(server, text="The sea is", sampling_params=GREEDY)
    assert parts[-1]["text"] == whole["text"]
    assert parts[-1]["output_ids"] == whole["output_ids"]
    for before, after in zip(parts, parts[1:]):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][:len(before["output_ids"])] == before["output_ids"]


def test_prefix_cache_is_reported(server):
    prompt = list(range(1000, 1200))
    httpx.post(server.url + "/flush_cache")
    first = generate(server, input_ids=prompt, sampling_params=GREEDY)
    second = generate(server, input_ids=prompt, sampling_params=GREEDY)
    assert first["meta_info"]["cached_tokens"] == 0
    assert second["meta_info"]["cached_tokens"] >= 128  # whole pages of 64
    assert second["output_ids"] == first["output_ids"]


def test_info_endpoints(server):
    assert httpx.get(server.url + "/health").status_code == 200
    assert httpx.get(server.url + "/health_generate", timeout=30).status_code == 200
    info = httpx.get(server.url + "/server_info").json()
    assert info["served_model_name"] == "smollm2" and info["max_total_num_tokens"] > 0
    assert info["kv_cache_dtype"] == "auto" and "api_key" not in info
    assert httpx.get(server.url + "/get_server_info").json()["port"] == info["port"]
    model = httpx.get(server.url + "/model_info").json()
    assert model["architectures"] == ["LlamaForCausalLM"] and model["is_generation"]
    metrics = httpx.get(server.url + "/metrics").text
    # SGLang's names, but for those of what tern does not do (docs/api.md).
    for name in ("num_running_reqs", "num_queue_reqs", "num_used_tokens", "token_usage", "full_token_usage",
                 "max_total_num_tokens", "kv_used_tokens", "kv_available_tokens", "kv_evictable_tokens",
                 "cache_hit_rate", "gen_throughput", "utilization", "page_size", "num_pages", "context_len",
                 "kv_cache_memory_usage_gb", "weight_memory_usage_gb", "prompt_tokens_total", "generation_tokens_total",
                 "cached_tokens_total", "num_requests_total", "num_aborted_requests_total",
                 "num_retracted_requests_total", "http_requests_total", "http_responses_total", "evicted_tokens_total",
                 "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket",
                 "e2e_request_latency_seconds_bucket", "request_time_per_output_token_seconds_bucket",
                 "queue_time_seconds_bucket", "prompt_tokens_histogram_bucket", "generation_tokens_histogram_bucket"):
        assert re.search(f"^sglang:{name}[{{ ]", metrics, re.M), name
    modes = dict(re.findall(r'^sglang:realtime_tokens_total{[^}]*mode="(\w+)"[^}]*} (\S+)', metrics, re.M))
    assert set(modes) == {"prefill_compute", "prefill_cache", "decode"}
    # Sampled tokens; those of requests that run and those behind a stop string are not in the total.
    assert float(modes["decode"]) >= float(re.search(r"^sglang:generation_tokens_total(?:{[^}]*})? (\S+)", metrics, re.M)[1])
    load = httpx.get(server.url + "/get_load").json()
    assert [set(rank) for rank in load] == [{"dp_rank", "num_reqs", "num_waiting_reqs", "num_tokens"}]
    assert info["startup_time"]["scheduler_e2e"] > 0
    assert httpx.post(server.url + "/flush_cache").status_code == 200
    assert httpx.post(server.url + "/abort_request", json={"rid": "nobody"}).status_code == 200


def test_long_cumulative_streams_reach_who_reads_them():
    """Every event of such a stream repeats the lists so far: over a thousand tokens that is more than any
    connection carries at the speed of the tiny model. Who is behind gets fewer events, never a cut stream."""
    tiny = Server(model=ROOT / "tests/data/tiny/model").wait_ready()
    tokens = 2000
    body = {"text": "Tell me", "stream": True, "return_logprob": True, "top_logprobs_num": 20,
            "sampling_params": {"temperature": 1, "sampling_seed": 1, "max_new_tokens": tokens,
                                "ignore_eos": True}}
    try:
        last, counts, received, done = "", [], 0, False
        with httpx.stream("POST", tiny.url + "/generate", json=body, timeout=60) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    counts.append(int(re.search(r'"completion_tokens":(\d+)', line)[1]))
                    received += len(line)
                    last = line
                elif line:
                    assert line == "data: [DONE]"
                    done = True
        assert done
        assert counts == sorted(counts) and counts[-1] == tokens and 1 < len(counts) <= tokens + 1
        meta = json.loads(last.removeprefix("data: "))["meta_info"]
        assert len(meta["output_top_logprobs"]) == len(meta["output_token_logprobs"]) == tokens
        assert {len(tops) for tops in meta["output_top_logprobs"]} == {20}
        print(f"{tokens} tokens in {len(counts)} events, {received >> 20} MiB; network thread "
              f"{tiny.network_seconds():.2f} s")
        whole = httpx.post(tiny.url + "/generate", json={**body, "stream": False}, timeout=60).json()
        assert whole["meta_info"]["output_top_logprobs"] == meta["output_top_logprobs"]
    finally:
        tiny.kill()
