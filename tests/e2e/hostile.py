"""What hostile clients do, and what must be back afterwards. For test_hostile.py."""
import copy
import json
import pathlib
import random
import socket
import struct
import time
import urllib.parse

import httpx

VALUES = [None, True, False, 0, -1, 1, 2**31, 2**63, -2**63, 10**400, 1e308, 0.5, "", "x", "\u0000", "\ud800", "\U0001f600" * 9,
          "<|im_end|>", [], {}, [[]], [None], {"": {}}, "9" * 500, "a" * 5000, ["a"] * 300, [1] * 300, [[1], "a", 2], {"type": "x"}]

BODIES = {
    "/v1/chat/completions": {
        "model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                                   {"role": "assistant", "content": None, "tool_calls": [{"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
                                   {"role": "tool", "tool_call_id": "functions.f:0", "content": "1"}],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}],
        "max_tokens": 1, "temperature": 0.5, "top_p": 0.9, "n": 1, "logprobs": True, "top_logprobs": 2, "stop": ["x"], "stop_regex": "a+b",
        "stream": False, "stream_options": {"include_usage": True}, "logit_bias": {"5": 1}, "seed": 1, "reasoning_effort": "low", "chat_template_kwargs": {"a": 1}},
    "/v1/completions": {"prompt": [[5, 6, 7], [8]], "max_tokens": 1, "echo": True, "logprobs": 1, "stop_token_ids": [3], "n": 1, "stream": True},
    "/generate": {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 1, "stop": "q", "min_p": 0.1, "n": 1}, "return_logprob": True,
                  "logprob_start_len": 0, "top_logprobs_num": 1, "token_ids_logprob": [4], "rid": ["r1", "r2"], "stream": False},
    "/tokenize": {"prompt": ["a", "b"]}, "/detokenize": {"tokens": [[5], [6]], "skip_special_tokens": True},
    "/abort_request": {"rid": "nobody", "abort_all": False}, "/flush_cache": {}, "/v1/loads": {}, "/health": {}}


def spots(value, path=()):
    """Paths to every value inside."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += spots(item, path + (key,))
    return found


def mutate(rng, body):
    body = copy.deepcopy(body)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        places = spots(body)
        if not places:
            break
        *path, last = rng.choice(places)
        parent = body
        for key in path:
            parent = parent[key]
        kind = rng.random()
        if kind < 0.15:
            del parent[last]
        elif kind < 0.25 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[last]))
        elif kind < 0.4 and isinstance(parent[last], (dict, list)):
            parent[last] = [parent[last]]
        else:
            parent[last] = copy.deepcopy(rng.choice(VALUES))
    return body


def mutated_request(rng):
    """(path, bytes of a whole HTTP request)."""
    path = rng.choice(list(BODIES))
    kind = rng.random()
    data = json.dumps(mutate(rng, BODIES[path])).encode()
    if kind < 0.15 and data:
        raw = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        data = bytes(raw)
    elif kind < 0.2:
        data = data[:rng.randrange(len(data) + 1)]
    elif kind < 0.22:
        data = b"[" * rng.randrange(5000) + data
    method = b"GET" if path in ("/v1/loads", "/health") else b"POST"
    target, extra = path.encode(), b""
    if kind > 0.97:
        target += rng.choice([b"?%ff=%", b"?include=%00", b"/../x", b"%", b"\xff", b"?" + b"a" * 3000, b"?dp_rank=-1&format=\xc3"])
    elif kind > 0.95:
        method = rng.choice([b"GET", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"BREW"])
    elif kind > 0.92:
        extra = rng.choice([b"X-A: \xff\xfe\r\n", b"Authorization: Bearer \x80\r\n", b"Expect: 200-maybe\r\n", b"Content-Type: image/png\r\n",
                            b"X" * 200 + b": y\r\n", b"Accept: \r\n", b"Connection: close\r\n"])
    return path, b"%s %s HTTP/1.1\r\nHost: h\r\n%sContent-Length: %d\r\n\r\n%s" % (method, target, extra, len(data), data)


def connect(server, **options):
    url = urllib.parse.urlparse(server.url)
    sock = socket.socket()
    if "receive_buffer" in options:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options["receive_buffer"])
    sock.settimeout(60)
    sock.connect((url.hostname, url.port))
    return sock


def reset(sock):
    """Closes with a reset instead of a FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Connection:
    """A kept-alive connection that reads answers of both kinds."""

    def __init__(self, server):
        self.server, self.sock, self.held = server, None, b""

    def ask(self, data, head_only=False):
        """(status, headers, body); status 0 when the server closed without an answer."""
        for attempt in range(2):
            if self.sock is None:
                self.sock, self.held = connect(self.server), b""
                attempt = 1
            try:
                self.sock.sendall(data)
                return self.answer(head_only)
            except (ConnectionError, BrokenPipeError):
                self.sock.close()
                self.sock = None
                if attempt:
                    return 0, {}, b""
        raise AssertionError

    def more(self):
        chunk = self.sock.recv(1 << 16)
        if not chunk:
            raise ConnectionError
        self.held += chunk

    def until(self, mark):
        while mark not in self.held:
            self.more()
        part, self.held = self.held.split(mark, 1)
        return part

    def exactly(self, count):
        while len(self.held) < count:
            self.more()
        part, self.held = self.held[:count], self.held[count:]
        return part

    def answer(self, head_only):
        lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
        body = b""
        if head_only:
            pass
        elif headers.get("transfer-encoding") == "chunked":
            while size := int(self.until(b"\r\n"), 16):
                body += self.exactly(size + 2)[:-2]
            self.exactly(2)
        else:
            body = self.exactly(int(headers.get("content-length", 0)))
        if headers.get("connection") == "close":
            self.sock.close()
            self.sock = None
        return status, headers, body


class Footprint:
    """Pages, sockets and memory of a server, to be back after whatever happens."""

    def __init__(self, server):
        self.server = server
        self.files, self.memory = self.now()

    def now(self):
        folder = pathlib.Path(f"/proc/{self.server.process.pid}")
        files = len(list((folder / "fd").iterdir()))
        memory = int(next(line for line in (folder / "status").read_text().splitlines()
                          if line.startswith("VmRSS")).split()[1]) >> 10
        return files, memory

    def check_back(self, more_mib, timeout=20):
        self.server.wait_idle(timeout)
        load = httpx.get(self.server.url + "/v1/loads").json()["loads"][0]
        assert load["num_used_tokens"] == 0, load
        assert load["num_free_tokens"] + load["num_cached_tokens"] == load["max_total_num_tokens"], load
        deadline = time.monotonic() + timeout
        while self.now()[0] > self.files:
            assert time.monotonic() < deadline, (self.files, self.now())
            time.sleep(0.05)
        # Pages of the KV pool become resident when they are first used, and stay.
        pool_mib = load["memory"]["kv_cache_gb"] * 1024
        assert self.now()[1] <= self.memory + pool_mib + more_mib, (self.memory, pool_mib, self.now())
