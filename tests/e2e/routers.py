"""Starts the real routers, sglang-router (`sr`) and smg, in front of tern's workers."""
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import time

import httpx
import openai

from conftest import ROOT, Server

TINY = ROOT / "tests/data/tiny/model"
COMMANDS = {"sr": [sys.executable, "-m", "sglang_router.launch_router"],
            "smg": [sys.executable, "-m", "smg.launch_router"]}
# smg would fetch a tokenizer by the model's name.
OPTIONS = {"sr": [], "smg": ["--disable-tokenizer-autoload"]}


given_ports = set()


def free_port():
    """Below the ports that outgoing connections get: a server that comes back finds its own free."""
    low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(low // 2, low)
        if port in given_ports:
            continue
        given_ports.add(port)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


def tiny(*options, path=TINY, **kwargs):
    """A worker with the small model that was trained for these tests."""
    return Server("--max-total-tokens", "32768", *options, model=path, name="tiny", **kwargs)


class Router:
    def __init__(self, kind, *options):
        self.kind = kind
        self.log_file = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [*COMMANDS[kind], "--host", "127.0.0.1", "--port", str(self.port),
             "--prometheus-port", str(free_port()), "--worker-startup-check-interval", "1",
             "--health-check-interval-secs", "1", "--log-level", "warn", *OPTIONS[kind], *options],
            stdout=self.log_file, stderr=self.log_file)

    def log(self):
        return pathlib.Path(self.log_file.name).read_text()

    def wait_ready(self, workers, timeout=60):
        """Until it knows so many healthy workers."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                known = httpx.get(self.url + "/workers").json()["workers"]
                if sum(worker["is_healthy"] for worker in known) >= workers:
                    return self
            except (httpx.TransportError, KeyError):
                pass
            assert self.process.poll() is None, self.log()
            time.sleep(0.05)
        raise AssertionError("not ready: " + self.log())

    def client(self):
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=60)

    def post(self, path, body, **kwargs):
        return httpx.post(self.url + path, json=body, timeout=60, **kwargs)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
