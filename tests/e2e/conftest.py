"""Starts `tern serve` on a free port with SmolLM2 and gives tests its URL."""
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

import httpx
import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TERN = os.environ.get("TERN_BINARY", str(ROOT / "build/release/tern"))
MODEL = ROOT / ".cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

needs_smollm2 = pytest.mark.skipif(
    not MODEL.exists() and "TERN_TEST_REQUIRE_SMOLLM2" not in os.environ,
    reason="scripts/fetch_smollm2.sh has not fetched the model")


def seconds_of(task):
    fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    def __init__(self, *options, model=MODEL, name="smollm2", port="0", prefix=()):
        self.log_file = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen(
            [*prefix, TERN, "serve", "--model-path", str(model), "--served-model-name", name,
             "--port", port, *options],
            stdout=subprocess.PIPE, stderr=self.log_file, text=True)
        self.url = None

    def log(self):
        return pathlib.Path(self.log_file.name).read_text()

    def wait_ready(self, timeout=60):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = re.search(r"listening on (http://\S+)", self.log())
            if found:
                self.url = found.group(1)
                return self
            assert self.process.poll() is None, self.log()
            time.sleep(0.02)
        raise AssertionError("not ready: " + self.log())

    def client(self, **options):
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, **options)

    def stats(self):
        return httpx.get(self.url + "/server_info").json()["internal_states"][0]

    def cpu_seconds(self):
        """User and system time of the process so far."""
        return seconds_of(pathlib.Path(f"/proc/{self.process.pid}"))

    def network_seconds(self):
        """User and system time of the network thread so far."""
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            if (task / "comm").read_text() == "tern-net\n":
                return seconds_of(task)
        raise AssertionError("no thread is called tern-net")

    def wait_idle(self, timeout):
        """Seconds until no request runs or waits."""
        start = time.monotonic()
        while time.monotonic() - start < timeout:
            stats = self.stats()
            if stats["num_running_reqs"] == 0 and stats["num_queue_reqs"] == 0:
                return time.monotonic() - start
            time.sleep(0.005)
        raise AssertionError(f"still busy after {timeout} s: {self.stats()}")

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.wait_ended()

    def wait_ended(self, timeout=40):
        code = self.process.wait(timeout)
        assert self.process.stdout.read() == "", "serve prints nothing on standard output"
        return code

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="session")
def server():
    assert MODEL.exists(), "scripts/fetch_smollm2.sh fetches the model"
    running = Server().wait_ready()
    yield running
    # Nothing that the tests did has left anything behind.
    running.wait_idle(5)
    stats = running.stats()
    assert stats["num_used_tokens"] == 0, stats
    assert running.stop() == 0, running.log()


@pytest.fixture
def own_server():
    """Makes servers of a test's own; they are gone after it."""
    made = []

    def make(*options, **kwargs):
        made.append(Server(*options, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.kill()


def ask(text):
    return [{"role": "user", "content": text}]
