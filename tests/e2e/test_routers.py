"""Regular workers behind the real routers: registration, policies, affinity, loads, errors, aborts."""
import contextlib
import json
import threading
import time

import httpx
import pytest

from conftest import ask
from routers import Router, tiny

GREEDY = {"temperature": 0, "max_new_tokens": 12}
LONG = {"text": "Remember:\nflame=75\n", "stream": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": 3000, "ignore_eos": True}}


@pytest.fixture(scope="module")
def workers():
    two = [tiny(), tiny()]
    for worker in two:
        worker.wait_ready()
    yield two
    for worker in two:
        worker.wait_idle(5)
        assert worker.stats()["num_used_tokens"] == 0
        assert worker.stop() == 0, worker.log()


def routed(kind, workers, *options):
    return Router(kind, "--worker-urls", *[worker.url for worker in workers],
                  *options).wait_ready(len(workers))


@pytest.fixture(scope="module", params=["sr", "smg"])
def router(request, workers):
    running = routed(request.param, workers)
    yield running
    running.kill()


def finished(worker):
    return worker.stats()["num_finished_reqs"]


def events(reply):
    lines = [line for line in reply.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]", lines[-1]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_answers_are_the_workers_own(router, workers):
    """Chat, completions and /generate, whole and as a stream: what the router hands on."""
    direct, through = workers[0].client(), router.client()
    messages = ask("Remember:\nflame=75\nbridge=73\ncloud=13\nbridge=?")
    for client in (direct, through):
        assert client.models.list().data[0].id == "tiny"
    chats = [client.chat.completions.create(model="tiny", messages=messages, temperature=0,
                                            max_tokens=16) for client in (direct, through)]
    assert chats[0].choices[0].message.content == chats[1].choices[0].message.content != ""
    counts = [(chat.usage.prompt_tokens, chat.usage.completion_tokens) for chat in chats]
    assert counts[0] == counts[1] and min(counts[0]) > 0  # which worker had some of it cached is chance
    stream = through.chat.completions.create(model="tiny", messages=messages, temperature=0,
                                             max_tokens=16, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == chats[0].choices[0].message.content

    prompts = ["count: 1 2 3", "add: 12 + 30"]
    both = [client.completions.create(model="tiny", prompt=prompts, temperature=0, max_tokens=8,
                                      logprobs=2, n=2) for client in (direct, through)]
    assert [choice.text for choice in both[0].choices] == [c.text for c in both[1].choices]
    assert both[0].choices[3].logprobs == both[1].choices[3].logprobs
    body = {"text": "count: 1 2 3", "sampling_params": GREEDY, "return_logprob": True}
    whole = [httpx.post(url + "/generate", json=body, timeout=60).json()
             for url in (workers[0].url, router.url)]
    assert whole[0]["output_ids"] == whole[1]["output_ids"]
    assert (whole[0]["meta_info"]["output_token_logprobs"] ==
            whole[1]["meta_info"]["output_token_logprobs"])
    with httpx.stream("POST", router.url + "/generate", json={**body, "stream": True},
                      timeout=60) as reply:
        assert reply.status_code == 200
        assert events(reply)[-1]["output_ids"] == whole[0]["output_ids"]


def test_errors_arrive_whole(router):
    """Streams too: their errors are chunked, or routers would cut them."""
    for stream in (False, True):
        reply = router.post("/v1/chat/completions",
                            {"model": "tiny", "messages": ask("hi"), "temperature": 0,
                             "max_tokens": 100000, "stream": stream})
        assert reply.status_code == 400, reply.text
        assert "100000 in the completion" in reply.text, reply.text
    assert router.post("/generate", {"text": "x", "sampling_params": {"top_p": 7}}).status_code == 400


def test_a_client_that_leaves_frees_the_worker(router, workers):
    aborted = sum(worker.stats()["num_aborted_reqs"] for worker in workers)
    with httpx.stream("POST", router.url + "/generate", json=LONG, timeout=60) as reply:
        lines = reply.iter_lines()
        next(line for line in lines if line)
    for worker in workers:
        assert worker.wait_idle(5) < 2
    assert sum(worker.stats()["num_aborted_reqs"] for worker in workers) == aborted + 1


def test_cache_aware_keeps_a_prefix_together(workers):
    """The default policy: prompts with a common beginning meet the worker that has its pages."""
    for kind in ("sr", "smg"):
        router = routed(kind, workers, "--policy", "cache_aware", "--cache-threshold", "0.3")
        try:
            for worker in workers:
                httpx.post(worker.url + "/flush_cache")
            prefix = f"{kind}: " + "every good boy deserves fudge and tea " * 40
            cached = []
            for i in range(5):
                reply = router.post("/generate", {"text": prefix + str(i), "sampling_params": GREEDY})
                cached.append(reply.json()["meta_info"]["cached_tokens"])
            assert cached[0] == 0 and all(tokens >= 128 for tokens in cached[1:]), (kind, cached)
        finally:
            router.kill()


@contextlib.contextmanager
def kept_busy(worker):
    client, over = httpx.Client(timeout=60), threading.Event()

    def ask():
        while not over.is_set():
            with client.stream("POST", worker.url + "/generate", json=LONG) as reply:
                for _ in reply.iter_lines():
                    if over.is_set():
                        break

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]  # never all between two
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
        client.close()


def served_by(workers, router, requests):
    before = [finished(worker) for worker in workers]
    for i in range(requests):
        reply = router.post("/generate", {"text": f"b{i}", "sampling_params": GREEDY})
        assert reply.is_success, reply.text
    return [finished(worker) - b for worker, b in zip(workers, before)]


def all_go_to_the_second(workers, router):
    """From when the router has seen the load of the first; a poll may find that one between two
    requests. Of 24 that went by chance, 20 or more do so once in 1,300 times."""
    deadline = time.monotonic() + 30
    while served_by(workers, router, 12)[1] < 12:
        assert time.monotonic() < deadline
    assert served_by(workers, router, 24)[1] >= 20


def test_power_of_two_takes_the_worker_with_less_to_do(workers):
    """sglang-router polls /get_load."""
    router = routed("sr", workers, "--policy", "power_of_two")
    try:
        with kept_busy(workers[0]):
            all_go_to_the_second(workers, router)
    finally:
        router.kill()


def test_power_of_two_of_smg_serves(workers):
    """It counts its own requests, so that which worker takes one of a single client is chance."""
    router = routed("smg", workers, "--policy", "power_of_two")
    try:
        assert sum(served_by(workers, router, 12)) == 12
    finally:
        router.kill()


def test_loads_of_a_busy_worker(workers):
    with httpx.stream("POST", workers[0].url + "/generate", json=LONG, timeout=60) as reply:
        lines = reply.iter_lines()  # a generator that is dropped closes the connection
        next(line for line in lines if line)
        deadline = time.monotonic() + 5
        while True:
            load = httpx.get(workers[0].url + "/v1/loads",
                             params={"include": "core,disagg,queues,memory"}).json()["loads"][0]
            if load["num_running_reqs"] == 1 and 0 < load["token_usage"] < 1:
                break
            assert time.monotonic() < deadline, load
    workers[0].wait_idle(5)


def test_smg_avoids_a_loaded_worker(workers):
    """smg polls /v1/loads; a worker over its limit of token usage gets no more requests."""
    router = routed("smg", workers, "--policy", "round_robin", "--load-monitor-interval", "1",
                    "--worker-overload-token-usage", "0.0001")
    try:
        with kept_busy(workers[0]):
            all_go_to_the_second(workers, router)
    finally:
        router.kill()


@pytest.mark.parametrize("kind,options,header", [
    ("sr", ["--policy", "manual"], "x-smg-routing-key"),
    ("smg", ["--policy", "manual"], "x-smg-routing-key"),
    ("smg", ["--policy", "round_robin", "--sticky-sessions", "--routing-key-headers",
             "x-session-affinity"], "x-session-affinity")])
def test_sessions_stick(kind, options, header, workers):
    router = routed(kind, workers, *options)
    try:
        used = set()
        for session in ("alice", "bob", "carol", "dave"):
            before = [finished(worker) for worker in workers]
            for i in range(4):
                reply = router.post("/generate", {"text": f"s{i}", "sampling_params": GREEDY},
                                    headers={header: session})
                assert reply.is_success, reply.text
            done = [finished(worker) - b for worker, b in zip(workers, before)]
            assert sorted(done) == [0, 4], (session, done)
            used.add(done.index(4))
    finally:
        router.kill()


@pytest.mark.parametrize("kind", ["sr", "smg"])
def test_a_worker_that_dies_is_left_out(kind, workers):
    """The router goes on with the one that lives."""
    third = tiny().wait_ready()
    router = routed(kind, [third, workers[0]], "--policy", "round_robin")
    try:
        third.kill()
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            replies = [router.post("/generate", {"text": f"d{i}", "sampling_params": GREEDY})
                       for i in range(4)]
            if all(reply.is_success for reply in replies):
                return
        raise AssertionError([reply.text for reply in replies])
    finally:
        router.kill()
        third.kill()
