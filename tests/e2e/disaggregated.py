"""A prefill and a decode worker of tern, and what the tests of hand-offs share."""
import time

import httpx

from routers import Router, free_port, tiny

PREFILL_OPTIONS = ("--disaggregation-mode", "prefill")
DECODE_OPTIONS = ("--disaggregation-mode", "decode")
# Both sides alike, so that answers are those of one server, bit for bit.
ALIKE = ("--kv-cache-dtype", "bf16")


class Pair:
    """A prefill and a decode worker, and a router in front of them if one is asked for."""

    def __init__(self, make=tiny, options=ALIKE, prefill=(), decode=(), bootstrap_port=None,
                 make_decode=None):
        self.make, self.make_decode, self.options = make, make_decode or make, options
        self.prefill_options, self.decode_options = prefill, decode
        self.bootstrap_port = bootstrap_port or free_port()
        self.routers = []
        self.prefill = self.new_prefill()
        self.decode = self.new_decode()
        self.prefill.wait_ready()
        self.decode.wait_ready()

    def new_prefill(self, *options, port=None, make=None):
        return (make or self.make)(*PREFILL_OPTIONS, "--disaggregation-bootstrap-port",
                                   str(self.bootstrap_port), *self.options, *self.prefill_options,
                                   *options, port=port or str(free_port()))

    def new_decode(self, *options, port=None):
        return self.make_decode(*DECODE_OPTIONS, *self.options, *self.decode_options, *options,
                                port=port or str(free_port()))

    def router(self, kind, *options):
        self.routers.append(Router(
            kind, "--pd-disaggregation", "--prefill", self.prefill.url, str(self.bootstrap_port),
            "--decode", self.decode.url, *options))
        return self.routers[-1].wait_ready(2)

    def rooms(self, number=1, **more):
        """The fields that a router adds to a request."""
        return {"bootstrap_host": "127.0.0.1", "bootstrap_port": self.bootstrap_port,
                "bootstrap_room": number, **more}

    def wait_idle(self, timeout=5):
        """Until neither side has anything left of any request."""
        deadline = time.monotonic() + timeout
        while True:
            left = {}
            for name, worker in (("prefill", self.prefill), ("decode", self.decode)):
                stats = worker.stats()
                loads = httpx.get(worker.url + "/v1/loads").json()["loads"][0]["disaggregation"]
                busy = {key: stats[key] for key in
                        ("num_running_reqs", "num_queue_reqs", "num_used_tokens") if stats[key]}
                busy.update({key: loads[key] for key in loads if "queue" in key and loads[key]})
                if busy:
                    left[name] = busy
            if not left:
                return
            assert time.monotonic() < deadline, left
            time.sleep(0.02)

    def kill(self):
        for one in (*self.routers, self.prefill, self.decode):
            one.kill()


def metric(worker, name):
    """The sum of a metric's samples."""
    total = 0.0
    for line in httpx.get(worker.url + "/metrics").text.splitlines():
        if line.startswith(name + "{") or line.startswith(name + " "):
            total += float(line.rsplit(" ", 1)[1])
    return total
