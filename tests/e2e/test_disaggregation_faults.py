"""What can go wrong between a prefill and a decode worker: the victim gets a clear error in time, pages
are back on both sides, the next request is served."""
import concurrent.futures
import copy
import itertools
import json
import os
import random
import shutil
import signal
import socket
import threading
import time

import httpx
import pytest

from disaggregated import ALIKE, PREFILL_OPTIONS, Pair, metric
from routers import TINY, free_port, tiny

ROOMS = itertools.count(1000)
HEARTBEAT = ("--disaggregation-heartbeat-interval", "0.4")
# 3000 tokens in small chunks: slow enough to be hit in the middle.
SLOW = ("--chunked-prefill-size", "32", "--disable-radix-cache")
LONG_PROMPT = [(7 * i) % 2000 for i in range(3000)]
VICTIM_S = 2.0
# TERN_SOAK_ROUNDS: kill/restart rounds of the last test.
ROUNDS = int(os.environ.get("TERN_SOAK_ROUNDS", "3"))


@pytest.fixture
def make_pair():
    made = []

    def make(decode=(), decode_rows="bf16", **kwargs):
        made.append(Pair(options=HEARTBEAT, prefill=(*ALIKE, *kwargs.pop("prefill", ())),
                         decode=("--kv-cache-dtype", decode_rows, *decode), **kwargs))
        return made[-1]

    yield make
    for pair in made:
        pair.kill()


@pytest.fixture(scope="module")
def want():
    """What one server says to the requests below."""
    alone = tiny(*ALIKE).wait_ready()
    short = httpx.post(alone.url + "/generate", json=body([5, 6, 7], 8), timeout=60).json()
    alone.kill()
    return short["output_ids"]


def body(ids, new_tokens, stream=False):
    return {"input_ids": ids, "stream": stream,
            "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}}


class Legs:
    """A request at both workers, as a router sends it."""

    def __init__(self, pair, ids, new_tokens, room=None, delay=0.0, **more):
        self.pair, self.start = pair, None
        fields = pair.rooms(room or next(ROOMS), **more)
        request = {**body(ids, new_tokens), **fields}
        self.ended, self.threads = {}, []
        self.sockets = {}
        for name, worker in (("prefill", pair.prefill), ("decode", pair.decode)):
            thread = threading.Thread(target=self.run, args=(name, worker, request), daemon=True)
            thread.start()
            self.threads.append(thread)
            time.sleep(delay)

    def run(self, name, worker, request):
        url = httpx.URL(worker.url)
        data = json.dumps(request).encode()
        try:
            sock = socket.create_connection((url.host, url.port), timeout=60)
            self.sockets[name] = sock
            sock.sendall(b"POST /generate HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
                         b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
            reply = b""
            while piece := sock.recv(65536):
                reply += piece
            head, _, text = reply.partition(b"\r\n\r\n")
            self.ended[name] = (time.monotonic(), int(head.split()[1]) if head else 0, text)
        except OSError as error:
            self.ended[name] = (time.monotonic(), 0, str(error).encode())

    def leave(self):
        for sock in list(self.sockets.values()):
            try:
                sock.shutdown(socket.SHUT_RDWR)  # close() alone waits for the thread that reads
            except OSError:
                pass
            sock.close()

    def wait(self, name, timeout=30):
        deadline = time.monotonic() + timeout
        while name not in self.ended:
            assert time.monotonic() < deadline, f"{name} has not answered in {timeout} s"
            time.sleep(0.005)
        return self.ended[name]

    def fails(self, name, since, within, word=""):
        at, status, text = self.wait(name)
        assert status >= 400, (name, status, text[:300])
        assert word in text.decode(), text
        assert at - since < within, f"{name}: {at - since:.2f} s"


def is_served(pair, want):
    legs = Legs(pair, [5, 6, 7], 8)
    _, status, text = legs.wait("decode")
    assert status == 200, text
    assert json.loads(text)["output_ids"] == want
    assert legs.wait("prefill")[1] == 200


def eventually_served(pair, want, timeout=5):
    """A link that was cut is made again with the next request, at the latest with the one after."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return is_served(pair, want)
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def wait_until(condition, timeout=10):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def queue_of(worker, name):
    loads = httpx.get(worker.url + "/v1/loads").json()["loads"][0]["disaggregation"]
    return loads[name]


def transferring(pair, requests=1):
    return queue_of(pair.decode, "decode_transfer_queue_reqs") >= requests


def under_way(pair, requests):
    """Both workers have both halves of each, so that either would miss the other."""
    stats = pair.prefill.stats()
    return (stats["num_running_reqs"] + stats["num_queue_reqs"] >= requests
            and queue_of(pair.prefill, "prefill_bootstrap_queue_reqs") == 0
            and transferring(pair, requests))


def test_prefill_is_killed(make_pair, want):
    pair = make_pair(prefill=SLOW)
    is_served(pair, want)
    victims = [Legs(pair, LONG_PROMPT, 4) for _ in range(3)]
    wait_until(lambda: under_way(pair, 3))
    port = pair.prefill.url.rsplit(":", 1)[1]
    pair.prefill.process.kill()
    since = time.monotonic()
    for legs in victims:
        legs.fails("decode", since, VICTIM_S, "prefill worker")
    pair.prefill.process.wait()
    # One that comes now finds nobody.
    late = Legs(pair, [5, 6, 7], 8)
    late.fails("decode", time.monotonic(), VICTIM_S, "no connection")
    pair.prefill = pair.new_prefill(port=port).wait_ready()
    eventually_served(pair, want)
    pair.wait_idle()


def test_decode_is_killed(make_pair, want):
    pair = make_pair(prefill=SLOW)
    victims = [Legs(pair, LONG_PROMPT, 4) for _ in range(3)]
    wait_until(lambda: under_way(pair, 3))
    port = pair.decode.url.rsplit(":", 1)[1]
    pair.decode.process.kill()
    since = time.monotonic()
    for legs in victims:
        legs.fails("prefill", since, VICTIM_S, "decode worker")
    pair.decode.process.wait()
    pair.decode = pair.new_decode(port=port).wait_ready()
    eventually_served(pair, want)
    pair.wait_idle()


@pytest.mark.parametrize("kind", ["sr", "smg"])
def test_the_router_is_killed(kind, make_pair, want):
    pair = make_pair(prefill=SLOW)
    router = pair.router(kind)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(lambda: router.post("/generate", body(LONG_PROMPT, 4)))
                 for _ in range(3)]
        wait_until(lambda: under_way(pair, 3))
        router.process.kill()
        for one in asked:
            assert isinstance(one.exception(), httpx.TransportError)
    start = time.monotonic()
    pair.wait_idle()
    assert time.monotonic() - start < VICTIM_S
    is_served(pair, want)


@pytest.mark.parametrize("stopped,victim", [("prefill", "decode"), ("decode", "prefill")])
def test_a_worker_stops_and_goes_on(stopped, victim, make_pair, want):
    """SIGSTOP past the heartbeat's time-out, then SIGCONT: what was under way is stale by then."""
    pair = make_pair(prefill=SLOW)
    is_served(pair, want)
    victims = [Legs(pair, LONG_PROMPT, 4) for _ in range(2)]
    wait_until(lambda: under_way(pair, 2))
    process = getattr(pair, stopped).process
    process.send_signal(signal.SIGSTOP)
    since = time.monotonic()
    try:
        for legs in victims:
            legs.fails(victim, since, VICTIM_S)
    finally:
        process.send_signal(signal.SIGCONT)
    for legs in victims:
        legs.fails(stopped, time.monotonic(), VICTIM_S)
    pair.wait_idle()
    eventually_served(pair, want)
    pair.wait_idle()


def test_stale_bytes_of_a_stopped_prefill_land_nowhere(make_pair, want):
    """Over TCP: decode has pages for one long request at a time. While the prefill worker that was to
    fill them stands still, another fills them; when the first goes on, the second's answer is right."""
    pair = make_pair(prefill=SLOW, decode=("--max-total-tokens", "3520", "--kv-integrity", "sealed"))
    other = copy.copy(pair)
    other.bootstrap_port = free_port()
    other.prefill = tiny(*PREFILL_OPTIONS, "--disaggregation-bootstrap-port", str(other.bootstrap_port),
                         *ALIKE, *HEARTBEAT).wait_ready()
    alone = tiny(*ALIKE).wait_ready()
    second = LONG_PROMPT[::-1]

    def goes_on_while_the_second_decodes(second_want):
        victim = Legs(pair, LONG_PROMPT, 4)
        wait_until(lambda: transferring(pair) and pair.decode.stats()["num_used_tokens"] >= 2900)
        time.sleep(0.1)  # some pages are on their way
        pair.prefill.process.send_signal(signal.SIGSTOP)
        since = time.monotonic()
        try:
            victim.fails("decode", since, VICTIM_S)
            legs = Legs(other, second, 400)
            wait_until(lambda: "decode" in legs.ended
                       or (not transferring(pair) and pair.decode.stats()["num_running_reqs"] == 1))
        finally:
            pair.prefill.process.send_signal(signal.SIGCONT)
        victim.fails("prefill", time.monotonic(), VICTIM_S)
        in_time = "decode" not in legs.ended
        _, status, text = legs.wait("decode")
        assert status == 200, text
        assert json.loads(text)["output_ids"] == second_want
        pair.wait_idle()
        return in_time

    try:
        second_want = httpx.post(alone.url + "/generate", json=body(second, 400),
                                 timeout=60).json()["output_ids"]
        for _ in range(5):  # on a busy machine the second may be done before it was seen
            if goes_on_while_the_second_decodes(second_want):
                return
            eventually_served(pair, want)
            pair.wait_idle()
        raise AssertionError("the second was always done before the first went on")
    finally:
        other.prefill.kill()
        alone.kill()


def test_a_slow_decode_worker(make_pair, want):
    """It stands still most of the time, never as long as a time-out: everything is served."""
    pair = make_pair()
    over = threading.Event()

    def slow_down():
        while not over.is_set():
            pair.decode.process.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            pair.decode.process.send_signal(signal.SIGCONT)
            time.sleep(0.05)

    clean = json.loads(Legs(pair, LONG_PROMPT[:400], 20).wait("decode")[2])["output_ids"]
    slow = threading.Thread(target=slow_down, daemon=True)
    slow.start()
    try:
        for legs in [Legs(pair, LONG_PROMPT[:400], 20) for _ in range(6)]:
            _, status, text = legs.wait("decode", 60)
            assert status == 200, text
            assert json.loads(text)["output_ids"] == clean
            assert legs.wait("prefill")[1] == 200
    finally:
        over.set()
        slow.join()
    pair.wait_idle()
    is_served(pair, want)


@pytest.mark.parametrize("kind", ["sr", "smg"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dies", ["prefill", "decode"])
def test_a_worker_dies_behind_a_router(dies, stream, kind, make_pair):
    """The router's client hears of it, whole and in time."""
    pair = make_pair(prefill=SLOW)
    router = pair.router(kind, "--disable-retries")
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(lambda: router.post("/generate", body(LONG_PROMPT, 4, stream)))
                 for _ in range(3)]
        wait_until(lambda: under_way(pair, 3))
        getattr(pair, dies).process.kill()
        since = time.monotonic()
        for one in asked:
            reply = one.result()
            assert reply.status_code in (500, 502, 503) or stream and "error" in reply.text, reply.text
            assert time.monotonic() - since < VICTIM_S
            if dies == "prefill" and kind == "smg" and not stream:
                assert json.loads(reply.text)["error"]["message"]


@pytest.mark.parametrize("kind", ["sr", "smg"])
def test_a_router_retries_with_the_same_rid(kind, make_pair, want):
    """One of two decode workers is dead: the router sends such requests again, in a new room, under the
    rid that the prefill worker has seen."""
    pair = make_pair(prefill=("--disaggregation-bootstrap-timeout", "1"))  # sr waits for both answers
    dead = pair.new_decode().wait_ready()
    router = pair.router(kind, "--decode", dead.url, "--policy", "round_robin",
                         "--health-check-interval-secs", "60")
    dead.kill()
    for i in range(4):
        reply = router.post("/generate", {**body([5, 6, 7], 8), "rid": f"again-{i}"})
        assert reply.status_code == 200, reply.text
        assert reply.json()["output_ids"] == want
        assert reply.json()["meta_info"]["id"] == f"again-{i}"
    wait_until(lambda: metric(pair.prefill, "sglang:num_running_reqs") == 0)
    pair.wait_idle()


@pytest.mark.parametrize("kind", ["sr", "smg"])
def test_a_client_of_a_router_leaves(kind, make_pair, want):
    """The router closes its connections to both workers: that is an abort."""
    pair = make_pair(prefill=SLOW)
    router = pair.router(kind)
    url = httpx.URL(router.url)
    data = json.dumps(body(LONG_PROMPT, 4)).encode()
    with socket.create_connection((url.host, url.port), timeout=60) as sock:
        sock.sendall(b"POST /generate HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        wait_until(lambda: under_way(pair, 1))  # rows are being computed
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):  # no answer yet
            sock.recv(1)
    pair.wait_idle(VICTIM_S)
    with httpx.stream("POST", router.url + "/generate", json=body([5, 6, 7], 3000, stream=True),
                      timeout=60) as reply:  # while tokens come
        lines = reply.iter_lines()
        next(line for line in lines if line)
    pair.wait_idle(VICTIM_S)
    is_served(pair, want)


class Proxy:
    """Between decode and the bootstrap port: passes bytes on, and cuts or changes them."""

    def __init__(self, port):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.cut_after = self.flip_at = None  # bytes from prefill
        self.pairs = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            self.pairs.append((near, far))
            threading.Thread(target=self.pump, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self.pump, args=(far, near, True), daemon=True).start()

    def pump(self, source, sink, from_prefill):
        passed = 0
        try:
            while data := source.recv(16384):
                if from_prefill and self.flip_at is not None:
                    at = self.flip_at - passed
                    if 0 <= at < len(data):
                        data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
                        self.flip_at = None
                if from_prefill and self.cut_after is not None and passed + len(data) > self.cut_after:
                    sink.sendall(data[:self.cut_after - passed])
                    break
                sink.sendall(data)
                passed += len(data)
        except OSError:
            pass
        for sock in (source, sink):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut_all(self):
        for pair in self.pairs:
            for sock in pair:
                try:
                    sock.shutdown(socket.SHUT_RDWR)  # close() alone waits for the pump that reads
                except OSError:
                    pass
                sock.close()
        self.pairs.clear()

    def close(self):
        self.listener.close()


@pytest.mark.parametrize("fault", ["cut", "flip"])
def test_a_cut_or_changed_frame(fault, make_pair, want):
    """Whatever byte it is: the victim fails, or it is not touched; no wrong token ever."""
    pair = make_pair()
    proxy = Proxy(pair.bootstrap_port)
    prompt = LONG_PROMPT[:400]
    clean = Legs(pair, prompt, 8)
    answer = json.loads(clean.wait("decode")[2])["output_ids"]
    rng = random.Random(fault)
    failed = 0
    for _ in range(12):
        at = rng.randrange(100, 400_000)
        proxy.cut_after, proxy.flip_at = (at, None) if fault == "cut" else (None, at)
        legs = Legs(pair, prompt, 8, bootstrap_port=proxy.port)
        _, status, text = legs.wait("decode")
        if status == 200:
            assert json.loads(text)["output_ids"] == answer
        else:
            failed += 1
        legs.wait("prefill")
        proxy.cut_after = proxy.flip_at = None
        proxy.cut_all()  # the next one gets a new connection
        pair.wait_idle()
    assert failed >= 4
    eventually_served(pair, want)
    proxy.close()


@pytest.mark.parametrize("rows", ["bf16", "fp8_tiled"])
def test_retracted_after_prefill_is_gone(rows, make_pair):
    """The prompt is computed on the decode worker, counted and logged. Equal formats: nothing changes; else
    the answer goes on from the tokens that were sent."""
    new_tokens = 1500  # of two requests: more than decode holds
    pair = make_pair(decode=("--max-total-tokens", "2048", "--num-reserved-decode-tokens", "0"),
                     decode_rows=rows)
    requests = [body([7 + i] * 100, new_tokens, stream=True) for i in range(2)]
    counter = "tern:decode_local_recomputes_total"
    computed = []

    def ask(i):
        request = {**requests[i], **pair.rooms(next(ROOMS))}

        def compute():
            reply = httpx.post(pair.prefill.url + "/generate", json={**request, "stream": False}, timeout=60)
            computed.append(reply.status_code)
        other = threading.Thread(target=compute)
        other.start()
        said = []
        with httpx.stream("POST", pair.decode.url + "/generate", json=request, timeout=60) as reply:
            assert reply.status_code == 200
            for line in reply.iter_lines():
                if not line.startswith("data: {"):
                    continue
                ids = json.loads(line.removeprefix("data: "))["output_ids"]
                assert ids[:len(said)] == said  # what was sent stays
                said = ids
        other.join()
        return said

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, i) for i in range(2)]
        wait_until(lambda: computed == [200, 200])
        pair.prefill.process.kill()
        assert metric(pair.decode, counter) == 0
        got = [one.result() for one in asked]
    assert metric(pair.decode, counter) > 0
    assert "its prompt is computed here" in pair.decode.log()
    assert [len(ids) for ids in got] == [new_tokens] * 2
    if rows == "bf16":
        alone = tiny(*ALIKE).wait_ready()
        assert got == [httpx.post(alone.url + "/generate", json={**request, "stream": False},
                                  timeout=60).json()["output_ids"] for request in requests]
        alone.kill()


@pytest.mark.parametrize("kind", ["sr", "smg"])
def test_a_prompt_too_long_for_decode(kind, make_pair, want):
    """The decode worker refuses it; the prefill worker, which would wait for it, hears so."""
    pair = make_pair(decode=("--context-length", "256"))
    router = pair.router(kind, "--disable-retries")
    start = time.monotonic()
    reply = router.post("/generate", body(LONG_PROMPT[:600], 4))
    assert reply.status_code == 400, reply.text
    assert time.monotonic() - start < VICTIM_S
    pair.wait_idle()
    is_served(pair, want)


@pytest.mark.parametrize("kind", ["sr", "smg"])
def test_a_prompt_too_long_for_prefill(kind, make_pair, want):
    pair = make_pair(prefill=("--context-length", "256"))
    router = pair.router(kind, "--disable-retries")
    start = time.monotonic()
    reply = router.post("/generate", body(LONG_PROMPT[:600], 4))
    assert reply.status_code == 400, reply.text
    assert time.monotonic() - start < VICTIM_S
    pair.wait_idle()
    is_served(pair, want)


def test_decode_out_of_pages_waits(make_pair, want):
    """Requests wait for pages, in order; none fails."""
    pair = make_pair(decode=("--max-total-tokens", "1024"))
    legs = [Legs(pair, [i + 1] * 500, 20) for i in range(5)]
    for one in legs:
        assert one.wait("decode")[1] == 200 and one.wait("prefill")[1] == 200
    pair.wait_idle()
    is_served(pair, want)


def test_clients_leave_at_every_stage(make_pair, want):
    pair = make_pair(prefill=SLOW)
    for delay in (0, 0.002, 0.01, 0.03, 0.1, 0.3, 1.0):
        legs = [Legs(pair, LONG_PROMPT[:600], 200) for _ in range(3)]
        time.sleep(delay)
        for one in legs:
            one.leave()
        start = time.monotonic()
        pair.wait_idle()
        assert time.monotonic() - start < VICTIM_S
        is_served(pair, want)


@pytest.mark.parametrize("left_out", ["prefill", "decode"])
def test_one_leg_only_times_out(left_out, make_pair, want):
    pair = make_pair(prefill=("--disaggregation-bootstrap-timeout", "1"),
                     decode=("--disaggregation-waiting-timeout", "1"))
    worker = pair.decode if left_out == "prefill" else pair.prefill
    start = time.monotonic()
    reply = httpx.post(worker.url + "/generate", timeout=10,
                       json={**body([1, 2, 3], 4), **pair.rooms(next(ROOMS))})
    assert reply.status_code in (500, 503, 504), reply.text
    assert "in time" in reply.text or "timed out" in reply.text, reply.text
    assert 0.9 < time.monotonic() - start < 3
    pair.wait_idle()
    is_served(pair, want)


def test_prefill_comes_back_with_another_model(make_pair, want, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(TINY, other)
    config = json.loads((other / "config.json").read_text())
    config["rms_norm_eps"] = 2e-5
    (other / "config.json").write_text(json.dumps(config))
    pair = make_pair()
    is_served(pair, want)
    port = pair.prefill.url.rsplit(":", 1)[1]
    pair.prefill.kill()
    pair.prefill = pair.new_prefill(port=port, make=lambda *options, **kwargs: tiny(
        *options, path=other, **kwargs)).wait_ready()
    wait_until(lambda: metric(pair.decode, "sglang:num_running_reqs") == 0)
    for _ in range(2):
        legs = Legs(pair, [5, 6, 7], 8)
        since = time.monotonic()
        at, status, text = legs.wait("decode")
        assert status >= 400 and at - since < VICTIM_S, text
        legs.leave()
    assert b"model" in text, text
    pair.prefill.kill()
    pair.prefill = pair.new_prefill(port=port).wait_ready()
    eventually_served(pair, want)
    pair.wait_idle()


def test_two_rooms_with_one_number(make_pair, want):
    pair = make_pair()
    room = next(ROOMS)
    first = Legs(pair, LONG_PROMPT[:300], 30, room=room)
    second = Legs(pair, LONG_PROMPT[300:600], 30, room=room)
    ended = {(legs, name): legs.wait(name) for legs in (first, second)
             for name in ("prefill", "decode")}
    # At most one of them is served, and by its own prompt; the other hears why.
    assert sum(ended[legs, "decode"][1] == 200 for legs in (first, second)) <= 1
    for legs in (first, second):
        if ended[legs, "decode"][1] != 200:
            assert b"bootstrap_room" in ended[legs, "decode"][2] or b"different tokens" in (
                ended[legs, "decode"][2]), ended[legs, "decode"]
    pair.wait_idle()
    is_served(pair, want)


def test_secrets(make_pair, want, tmp_path):
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for path in (right, wrong):
        path.write_text(path.name * 8 + "\n")
        path.chmod(0o600)
    flag = "--disaggregation-secret-file"
    pair = make_pair(prefill=(flag, str(right)), decode=(flag, str(right)))
    is_served(pair, want)
    for options in ((flag, str(wrong)), ()):
        pair.decode.kill()
        pair.decode_options = (*ALIKE, *options)
        pair.decode = pair.new_decode().wait_ready()
        legs = Legs(pair, [5, 6, 7], 8)
        legs.fails("decode", time.monotonic(), VICTIM_S, "secret")
        legs.leave()
    pair.decode.kill()
    pair.decode_options = (*ALIKE, flag, str(right))
    pair.decode = pair.new_decode().wait_ready()
    eventually_served(pair, want)
    pair.wait_idle()


def test_kill_and_restart_rounds(make_pair, want):
    """Zero pages lost, zero wrong tokens. A half whose other one died before it said a word ends by its
    time-out."""
    pair = make_pair(prefill=("--disaggregation-bootstrap-timeout", "4"),
                     decode=("--disaggregation-waiting-timeout", "4"))
    rng = random.Random(1)
    prompts = [LONG_PROMPT[i:i + 200] for i in range(6)]
    expected = []
    for prompt in prompts:
        legs = Legs(pair, prompt, 30)
        expected.append(json.loads(legs.wait("decode")[2])["output_ids"])
        legs.wait("prefill")
    served = 0
    for round_number in range(ROUNDS):
        victim = "prefill" if round_number % 2 else "decode"
        legs = [Legs(pair, prompt, 30) for prompt in prompts]
        time.sleep(rng.uniform(0, 0.4))
        worker = getattr(pair, victim)
        port = worker.url.rsplit(":", 1)[1]
        worker.process.kill()
        worker.process.wait()
        for one, tokens in zip(legs, expected):
            _, status, text = one.wait("decode", 10)
            if status == 200:
                assert json.loads(text)["output_ids"] == tokens
                served += 1
            one.wait("prefill", 10)
        setattr(pair, victim, getattr(pair, "new_" + victim)(port=port).wait_ready())
        eventually_served(pair, want)
        pair.wait_idle()
    print(f"{ROUNDS} rounds, {served} of {6 * ROUNDS} requests were served all the same")
