"""Hostile clients: what they get is documented, and pages, sockets and memory are back afterwards.

Here in short; TERN_SOAK=1 (ctest -L soak) goes on for longer and waits for every time-out.
"""
import asyncio
import concurrent.futures
import json
import os
import random
import resource
import threading
import time
import urllib.parse

import httpx
import pytest

from conftest import ROOT
from hostile import Connection, Footprint, connect, mutated_request, reset

SOAK = os.environ.get("TERN_SOAK") == "1"
TINY = ROOT / "tests/data/tiny/model"
TOKENS = 400 if SOAK else 120
LONG = json.dumps({"input_ids": [5, 6, 7], "stream": True,
                   "sampling_params": {"max_new_tokens": TOKENS, "ignore_eos": True}}).encode()


def post(path, body, extra=b""):
    return b"POST %s HTTP/1.1\r\nHost: h\r\n%sContent-Length: %d\r\n\r\n%s" % (path, extra, len(body), body)


@pytest.fixture(scope="module")
def tiny():
    from conftest import Server
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    server = Server("--max-running-requests", "256", "--max-queued-requests", "512", "--max-total-tokens", "131072",
                    "--context-length", "512", model=TINY).wait_ready()
    for _ in range(50):  # what grows once has grown
        httpx.post(server.url + "/generate", content=LONG.replace(b"%d" % TOKENS, b"4"), timeout=60)
    yield server
    assert server.stop() == 0, server.log()


def test_mutated_requests_give_documented_statuses(tiny):
    document = httpx.get(tiny.url + "/openapi.json").json()
    allowed = {path: {int(s) for method in item.values() for s in method["responses"]} | {404, 405}
               for path, item in document["paths"].items()}
    before = Footprint(tiny)
    count, workers = (100_000 if SOAK else 10_000), 4
    seen = {}

    def work(seed):
        rng = random.Random(seed)
        connection = Connection(tiny)
        for _ in range(count // workers):
            path, data = mutated_request(rng)
            status, headers, body = connection.ask(data, head_only=data.startswith(b"HEAD"))
            seen[status] = seen.get(status, 0) + 1
            assert status in allowed[path], (status, data[:2000], body[:500])
            assert status != 500, (data[:2000], body[:500])
            if status != 200 and headers.get("content-type") == "application/json" and body:
                error = json.loads(body)
                assert error.get("message") or error.get("error"), body
            elif "json" in headers.get("content-type", "") and body:
                json.loads(body)

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work, seed) for seed in range(workers)]:
            done.result()
    print("statuses", dict(sorted(seen.items())))
    assert seen[200] > count / 20 and seen[400] > count / 5
    before.check_back(64)


def test_clients_that_leave_at_every_stage(tiny):
    before = Footprint(tiny)
    whole = post(b"/generate", LONG)
    rng = random.Random(3)
    cuts = [0, 1, 10, whole.index(b"\r\n\r\n"), whole.index(b"\r\n\r\n") + 4, len(whole) - 1, len(whole)]
    for round_number in range(40 if SOAK else 8):
        for cut in cuts + [rng.randrange(len(whole)) for _ in range(4)]:
            for read in (0, 1, 200, 5000):
                sock = connect(tiny)
                sock.sendall(whole[:cut])
                if cut == len(whole) and read:
                    sock.recv(read)
                reset(sock) if rng.random() < 0.5 else sock.close()
                if cut < len(whole):
                    break
    before.check_back(32)


def test_slow_and_endless_heads_and_bodies(tiny):
    before = Footprint(tiny)
    slow = [connect(tiny) for _ in range(300)]
    for i, sock in enumerate(slow):
        sock.sendall([b"P", b"POST /generate HTTP/1.1\r\nHost: h\r\nX-", post(b"/generate", LONG)[:-5]][i % 3])
    for _ in range(5):
        for sock in slow[1::3]:
            sock.sendall(b"a")
        start = time.monotonic()
        assert httpx.get(tiny.url + "/health").status_code == 200
        assert time.monotonic() - start < 1
    if SOAK:  # a byte now and then is no progress: heads have 15 s, each 64 KiB of a body 30 s
        deadline = time.monotonic() + 40
        open_ones = set(slow)
        while open_ones and time.monotonic() < deadline:
            for sock in list(open_ones):
                try:
                    sock.sendall(b"a")
                except OSError:
                    open_ones.discard(sock)
            time.sleep(1)
        assert not open_ones
    for sock in slow:
        sock.close()
    # Heads without end.
    for head in (b"X: " + b"y" * 2_000_000, b"".join(b"X-%d: y\r\n" % i for i in range(100_000))):
        sock = connect(tiny)
        try:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: h\r\n" + head)
        except OSError:
            pass
        try:
            assert sock.recv(4096).startswith(b"HTTP/1.1 431")
        except ConnectionError:
            pass  # a reset may overtake the answer to one who does not listen
        sock.close()
    # Bodies of 100 MB: announced ones are refused unread, chunked ones where they pass the limit.
    for head, piece, count in ((b"Content-Length: 104857600", b"", 0),
                               (b"Transfer-Encoding: chunked", b"100000\r\n" + b"x" * (1 << 20) + b"\r\n", 100)):
        sock = connect(tiny)
        sock.sendall(b"POST /generate HTTP/1.1\r\nHost: h\r\n%s\r\n\r\n" % head)
        try:
            for _ in range(count):
                sock.sendall(piece)
        except OSError:
            pass
        try:
            assert sock.recv(4096).startswith(b"HTTP/1.1 413")
        except ConnectionError:
            pass
        sock.close()
    before.check_back(64)


def test_a_closed_socket_cancels_within_a_step(tiny):
    """A step here takes some milliseconds; what 64 clients left is no longer computed soon after."""
    sockets = [connect(tiny) for _ in range(64)]
    for sock in sockets:
        sock.sendall(post(b"/generate", LONG))
    while tiny.stats()["num_running_reqs"] < 64:
        time.sleep(0.002)
    for sock in sockets:
        sock.close()
    closed = time.monotonic()
    tiny.wait_idle(5)
    took = time.monotonic() - closed
    print(f"64 streams cancelled after {took * 1000:.0f} ms")
    assert took < 0.5


async def stream(host, port, gaps, count=None, read=True, options=None):
    """Reads a stream; appends the seconds between its pieces. Returns its bytes."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 24)
    writer.write(post(b"/generate", options or LONG))
    await writer.drain()
    total, last = b"", None
    while read:
        chunk = await reader.read(1 << 20)
        if not chunk:
            break
        now = time.monotonic()
        if last is not None:
            gaps.append(now - last)
        last = now
        total = total[-64:] + chunk
        if b"data: [DONE]" in total:
            break
    if not read:
        await asyncio.sleep(count)
    writer.close()
    return total


def address(server):
    url = urllib.parse.urlparse(server.url)
    return url.hostname, url.port


def test_idle_connections_and_many_streams(tiny):
    """2000 idle connections and 256 streams; requests on idle ones are still answered."""
    before = Footprint(tiny)
    threads = len(os.listdir(f"/proc/{tiny.process.pid}/task"))
    ping = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"

    async def run():
        idle = [await asyncio.open_connection(*address(tiny)) for _ in range(2000)]
        for reader, writer in idle:
            writer.write(ping)
        for reader, writer in idle:
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        gaps = []
        start = time.monotonic()
        streams = [asyncio.create_task(stream(*address(tiny), gaps)) for _ in range(256)]
        await asyncio.sleep(1)
        asked = time.monotonic()
        for reader, writer in idle[::100]:
            writer.write(ping)
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        answered = (time.monotonic() - asked) / 20
        assert len(os.listdir(f"/proc/{tiny.process.pid}/task")) == threads
        for done in await asyncio.gather(*streams):
            assert b"data: [DONE]" in done
        took = time.monotonic() - start
        for _, writer in idle:
            writer.close()
        return took, answered, sorted(gaps)[len(gaps) * 99 // 100]

    took, answered, p99 = asyncio.run(run())
    print(f"256 streams of {TOKENS} tokens in {took:.1f} s, p99 gap {p99 * 1000:.0f} ms, "
          f"a request on an idle connection {answered * 1000:.1f} ms")
    assert answered < 1
    before.check_back(96)


def test_http_text_and_events_cost_little(tiny):
    """Under 5 % of a core at 1000 tokens a second to 64 clients: 50 us a token, tokenizing included."""
    tokens = 300 if SOAK else 100
    body = json.dumps({"messages": [{"role": "user", "content": "Tell me about the sea. " * 4}], "stream": True,
                       "max_tokens": tokens, "ignore_eos": True, "temperature": 1, "seed": 1}).encode()
    request = post(b"/v1/chat/completions", body)

    async def one():
        reader, writer = await asyncio.open_connection(*address(tiny), limit=1 << 24)
        writer.write(request)
        text = b""
        while b"data: [DONE]" not in text[-64:]:
            chunk = await reader.read(1 << 20)
            assert chunk, text[-500:]
            text += chunk
        writer.close()
        return text.count(b"data: ")

    async def run():
        return sum(await asyncio.gather(*[one() for _ in range(64)]))

    before, start = tiny.network_seconds(), time.monotonic()
    events = asyncio.run(run())
    used, took = tiny.network_seconds() - before, time.monotonic() - start
    per_token = used / (64 * tokens) * 1e6
    print(f"{64 * tokens / took:.0f} tokens/s to 64 clients, {events} events, network thread "
          f"{per_token:.1f} us a token: {per_token / 10:.2f} % of a core at 1000 tokens/s")
    assert per_token < 50


def test_a_slow_reader_holds_nobody_back(tiny):
    """p99 of the gaps of 8 streams beside 8 large ones (cumulative, with log probabilities): once those are read, once
    they are not."""
    large = LONG.replace(b'"stream"', b'"return_logprob": true, "top_logprobs_num": 5, "stream"')

    async def both(read):
        gaps = []
        others = [asyncio.create_task(stream(*address(tiny), [], read=read, count=60, options=large)) for _ in range(8)]
        await asyncio.sleep(0.2)
        await asyncio.gather(*[stream(*address(tiny), gaps) for _ in range(8)])
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        gaps.sort()
        return gaps[len(gaps) * 99 // 100]

    # Two of three rounds: what else runs on the machine comes and goes, what a server does to its clients stays.
    rounds = []
    for _ in range(3):
        p99 = {}
        for read in (True, False):
            p99[read] = asyncio.run(both(read))
            tiny.wait_idle(30)
        rounds.append(p99)
    said = [f"{p99[True] * 1000:.0f} and {p99[False] * 1000:.0f}" for p99 in rounds]
    print(f"p99 gap beside 8 readers and beside 8 who do not read, ms: {', '.join(said)}")
    assert sum(p99[False] < 3 * p99[True] + 0.1 for p99 in rounds) >= 2, said
