"""What a network can do to the frames between a prefill and a decode worker: whatever becomes of one, the
victim ends with the right tokens or a clear error in time, pages are back, the next request is served.
All of it over loopback; and, where the machine allows them, with each worker in a network namespace of
its own and the frame-aware proxy between the two."""
import itertools
import json
import os
import random
import subprocess
import sys
import time

import httpx
import pytest

from disaggregated import ALIKE, Pair, metric
from frame_proxy import Cut, FrameProxy, pass_on
from routers import tiny
from test_disaggregation_faults import LONG_PROMPT, Legs, wait_until

INSIDE = os.environ.get("TERN_NETWORK_NAMESPACES") == "1"
ROOMS = itertools.count(5000)
TIMEOUT_S = 1.5  # of rooms that nothing comes for any more
VICTIM_S = 2.0
OPTIONS = (*ALIKE, "--disaggregation-heartbeat-interval", "0.6", "--disaggregation-waiting-timeout",
           str(TIMEOUT_S), "--disaggregation-bootstrap-timeout", str(TIMEOUT_S))
PROMPT = LONG_PROMPT[:400]  # seven pages


class Loopback:
    prefill_host = decode_host = near = "127.0.0.1"
    options = ()

    def make(self, _):
        return tiny

    def close(self):
        pass


class Namespaces:
    """This process is in a namespace between those of the two workers, which don't see each other."""
    prefill_host, decode_host, near = "10.77.1.2", "10.77.2.2", "10.77.2.1"
    options = ("--disaggregation-peers", "10.77.0.0/16")

    def __init__(self):
        self.holders = {}
        self.run("ip", "link", "set", "lo", "up")
        for name, net in (("prefill", 1), ("decode", 2)):
            holder = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
            self.holders[name] = holder
            own = os.readlink("/proc/self/ns/net")
            wait_until(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != own)
            self.run("ip", "link", "add", f"near{net}", "type", "veth", "peer", "name", f"far{net}")
            self.run("ip", "link", "set", f"far{net}", "netns", str(holder.pid))
            for inside, link, address in (((), f"near{net}", f"10.77.{net}.1/24"),
                                          (self.inside(name), f"far{net}", f"10.77.{net}.2/24")):
                self.run(*inside, "ip", "addr", "add", address, "dev", link)
                self.run(*inside, "ip", "link", "set", link, "up")
            self.run(*self.inside(name), "ip", "link", "set", "lo", "up")

    @staticmethod
    def run(*command):
        subprocess.run(command, check=True)

    def inside(self, name):
        return ("nsenter", "-t", str(self.holders[name].pid), "-n")

    def make(self, name):
        return lambda *options, **kwargs: tiny(*options, prefix=self.inside(name), **kwargs)

    def close(self):
        for holder in self.holders.values():
            holder.kill()
            holder.wait()


@pytest.fixture(scope="module")
def pair():
    net = Namespaces() if INSIDE else Loopback()
    two = Pair(options=(*OPTIONS, *net.options), make=net.make("prefill"), make_decode=net.make("decode"),
               prefill=("--host", net.prefill_host), decode=("--host", net.decode_host))
    two.proxy = FrameProxy((net.prefill_host, two.bootstrap_port), net.near)
    yield two
    two.proxy.close()
    two.wait_idle()
    assert two.decode.stop() == 0, two.decode.log()
    assert two.prefill.stop() == 0, two.prefill.log()
    net.close()


@pytest.fixture(scope="module")
def want(pair):
    """The tokens of a pair that nothing happens to are one server's: test_disaggregation.py."""
    return {length: tokens(ask(pair, length), pair) for length in (3, len(PROMPT))}


def ask(pair, length=len(PROMPT)):
    return Legs(pair, PROMPT[:length], 8, room=next(ROOMS), bootstrap_host=pair.proxy.host,
                bootstrap_port=pair.proxy.port)


def tokens(legs, pair):
    _, status, text = legs.wait("decode")
    assert status == 200, text
    assert legs.wait("prefill")[1] == 200
    return json.loads(text)["output_ids"]


def ends(legs, want, within=VICTIM_S + TIMEOUT_S):
    """Whether it was served. Both halves end in time, with the right tokens or a clear error."""
    since = time.monotonic()
    served = False
    for name in ("decode", "prefill"):
        at, status, text = legs.wait(name)
        assert at - since < within, f"{name}: {at - since:.2f} s"
        if status == 200 and name == "decode":
            assert json.loads(text)["output_ids"] == want[len(PROMPT)]
            served = True
        elif status != 200:
            assert status in (500, 502, 503, 504) and b"message" in text, (name, status, text)
    return served


def recovers(pair, want):
    pair.proxy.rule = pass_on
    deadline = time.monotonic() + 5
    while True:  # a link that was cut is made again, at the latest with the request after
        legs = ask(pair, 3)
        if legs.wait("decode")[1] == 200 and legs.wait("prefill")[1] == 200:
            break
        assert time.monotonic() < deadline, legs.ended
    assert json.loads(legs.ended["decode"][2])["output_ids"] == want[3]
    pair.wait_idle()


def of_page(number, what):
    """A rule: `what` becomes of the page frame with this number."""
    return lambda frame: what(frame) if (frame.type, frame.number) == ("PAGE", number) else pass_on(frame)


def rounds(pair, want, rule, count=3, within=VICTIM_S + TIMEOUT_S):
    """How many of `count` victims were served; each has a connection of its own."""
    served = 0
    for _ in range(count):
        pair.proxy.cut_all()
        pair.wait_idle()
        pair.proxy.rule = rule
        served += ends(ask(pair), want, within)
    recovers(pair, want)
    return served


def test_frames_twice(pair, want):
    """Sequence numbers tell: nothing changes."""
    for kind in ("REQUEST", "PAGE", "LAST", "ACK", "DONE"):
        twice = lambda frame: pass_on(frame) * (2 if frame.type == kind else 1)  # noqa: E731
        assert rounds(pair, want, twice, 2) == 2, kind


def test_pages_out_of_order(pair, want):
    rng = random.Random(1)
    shuffled = lambda frame: [(rng.uniform(0, 0.2) if frame.type == "PAGE" else 0.0,  # noqa: E731
                               frame.data)]
    assert rounds(pair, want, shuffled) == 3


def test_a_page_that_comes_after_last(pair, want):
    assert rounds(pair, want, of_page(2, lambda frame: [(0.5, frame.data)])) == 3
    # Too late: its room has ended, its page may be another request's by then.
    dropped = metric(pair.decode, "sglang:num_transfer_failed_reqs_total")
    pair.proxy.cut_all()
    pair.wait_idle()
    pair.proxy.rule = of_page(2, lambda frame: [(1.8, frame.data)])
    assert not ends(ask(pair), want)
    pair.proxy.rule = pass_on
    others = [ask(pair) for _ in range(4)]  # in the pages of the first, while its page arrives
    for one in others:
        assert tokens(one, pair) == want[len(PROMPT)]
    time.sleep(1.0)
    assert metric(pair.decode, "sglang:num_transfer_failed_reqs_total") == dropped + 1
    recovers(pair, want)


@pytest.mark.parametrize("part", ["header", "sums", "payload"])
def test_a_page_that_changed(part, pair, want):
    rng = random.Random(part)

    def changed(frame):
        low, high = {"header": (0, 64), "sums": (64, 96), "payload": (200, len(frame.data))}[part]
        return [(0.0, frame.flipped(rng.randrange(low, high)))]
    assert rounds(pair, want, of_page(3, changed), 6) == 0


@pytest.mark.parametrize("kind", ["REQUEST", "LAST", "ACK", "DONE", "HELLO", "WELCOME", "CONFIRM"])
def test_any_byte_of_another_frame(kind, pair, want):
    """A frame is passed on or its connection ends: none is ever taken for another."""
    rng = random.Random(kind)
    changed = lambda frame: ([(0.0, frame.flipped(rng.randrange(len(frame.data))))]  # noqa: E731
                             if (frame.type, frame.number) == (kind, 0) else pass_on(frame))
    rounds(pair, want, changed)


def test_a_frame_that_is_too_long(pair, want):
    """A length beyond what the handshake allowed, under a right check."""
    assert rounds(pair, want, of_page(1, lambda frame: [
        (0.0, frame.with_body_bytes((256 << 20) + 1))])) == 0
    hello = lambda frame: ([(0.0, frame.with_body_bytes((48 << 10) + 1))]  # noqa: E731
                           if frame.type == "HELLO" else pass_on(frame))
    assert rounds(pair, want, hello, 2) == 0


@pytest.mark.parametrize("kind", ["REQUEST", "PAGE", "LAST", "ACK", "DONE"])
def test_a_frame_that_is_lost(kind, pair, want):
    lost = lambda frame: [] if (frame.type, frame.number) == (kind, 0) else pass_on(frame)  # noqa: E731
    # Without DONE the sender says LAST again: neither half waits long for a lost end.
    alike = kind in ("LAST", "ACK", "DONE")
    served = rounds(pair, want, lost, 2, within=VICTIM_S if alike else VICTIM_S + TIMEOUT_S)
    assert served == (2 if alike else 0)


def test_cut_within_each_kind_of_frame(pair, want):
    for kind in ("HELLO", "WELCOME", "REQUEST", "PAGE", "LAST", "ACK", "DONE"):
        def cut(frame, kind=kind):
            if frame.type == kind:
                raise Cut(len(frame.data) // 2)
            return pass_on(frame)
        rounds(pair, want, cut, 1)


def test_delay_loss_and_cuts_together(pair, want):
    """A bad network under load: 20 ms each way, and now and then a page less or a connection."""
    rng = random.Random(7)

    def bad(frame):
        if frame.type == "PAGE" and rng.random() < 0.01:
            return []
        if frame.type == "PAGE" and rng.random() < 0.005:
            raise Cut(100)
        return [(0.02, frame.data)]
    pair.proxy.cut_all()
    pair.wait_idle()
    pair.proxy.rule = bad
    served = 0
    for _ in range(8):
        served += sum(ends(one, want, 8) for one in [ask(pair) for _ in range(5)])
    assert 10 <= served
    recovers(pair, want)


def test_over_a_slow_network_everything_is_served(pair, want):
    pair.proxy.cut_all()
    pair.wait_idle()
    pair.proxy.rule = lambda frame: [(0.04, frame.data)]
    for one in [ask(pair) for _ in range(6)]:
        assert tokens(one, pair) == want[len(PROMPT)]
    recovers(pair, want)


@pytest.mark.skipif(INSIDE, reason="this is the run in namespaces")
def test_between_network_namespaces():
    """All of the above once more."""
    probe = subprocess.run(["unshare", "-rn", "ip", "link", "add", "near1", "type", "veth", "peer",
                            "name", "far1"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip("no network namespaces here, over loopback alone: " + probe.stderr.strip())
    inner = subprocess.run(
        ["unshare", "-rn", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".",
         os.path.basename(__file__)], cwd=os.path.dirname(os.path.abspath(__file__)),
        env={**os.environ, "TERN_NETWORK_NAMESPACES": "1", "NO_PROXY": "*"}, capture_output=True, text=True)
    assert inner.returncode == 0, inner.stdout[-6000:] + inner.stderr[-2000:]
    print(inner.stdout.splitlines()[-1])
