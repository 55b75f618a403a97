"""Checkpoints that are wrong in one place: the real binary must end with one short sentence, exit code 1 and little memory.

usage: hostile_checkpoints.py TERN [SEED]

Every mutation of a reference checkpoint (tests/data/golden, tests/data/gguf) goes through `tern inspect` and `tern parity`. Whatever happens, no
crash, no hang and no more than a GiB. What must fail names the file, and the tensor where it is about one. Unit tests have the sentences.
"""
import json, math, os, pathlib, random, resource, shutil, struct, subprocess, sys, tempfile

TERN = os.path.abspath(sys.argv[1])
RANDOM = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 4)
DATA = pathlib.Path("tests/data").absolute()
ADDRESS_SPACE, MEMORY, SECONDS = 6 << 30, 1 << 30, 30
WIDTH = dict(F32=4, BF16=2, F16=2, F8_E4M3=1, I32=4, I64=8, U8=1)
FLOATS = ("F32", "BF16", "F16")
failures, runs = [], 0


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(*command):
    """Exit code (124 and 137: too slow), standard error, most resident bytes."""
    with tempfile.TemporaryFile() as err:
        process = subprocess.Popen(["timeout", "-k", "5", str(SECONDS), TERN, *map(str, command)], stdout=subprocess.DEVNULL, stderr=err,
                                   stdin=subprocess.DEVNULL, preexec_fn=limit)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        return process.returncode, err.read().decode("utf-8", "replace"), usage.ru_maxrss << 10


def check(what, path, golden, names=(), must_fail=False):
    global runs
    for command in (["inspect", path], ["parity", "--model", path, "--golden", golden, "--threads", "1"]):
        code, err, memory = run(*command)
        runs += 1
        problems = []
        if code not in (0, 1): problems.append(f"exit code {code}")
        if memory > MEMORY: problems.append(f"{memory >> 20} MiB")
        if code == 1:
            if len(err.splitlines()) != 1 or len(err) > 1500 or not err.startswith("tern "): problems.append("not one short sentence")
            if command[0] == "parity": problems += [f"does not name {name}" for name in names if name not in err]
        if must_fail and code == 0 and command[0] == "parity": problems.append("accepted")
        if problems: failures.append((what, command[0], problems, err[:300]))


class Folder:
    """A copy of a reference checkpoint, and its tensors as {name: (dtype, shape, bytes)}."""

    def __init__(self, name):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="tern_hostile_"))
        self.source = DATA / "golden" / name
        self.golden = self.source / "golden.safetensors"
        for file in self.source.iterdir():
            if file.name != "golden.safetensors": shutil.copy(file, self.path)
        self.config = json.loads((self.source / "config.json").read_text())
        if (self.path / "model.safetensors").exists():
            data = (self.source / "model.safetensors").read_bytes()
            end = 8 + struct.unpack("<Q", data[:8])[0]
            self.raw, self.header_end, self.header = data, end, json.loads(data[8:end])
            self.tensors = {k: (v["dtype"], v["shape"], data[end + v["data_offsets"][0]:end + v["data_offsets"][1]])
                            for k, v in self.header.items() if k != "__metadata__"}

    def write(self, tensors):
        header, blob = {}, b""
        for name, (dtype, shape, data) in tensors.items():
            header[name] = dict(dtype=dtype, shape=shape, data_offsets=[len(blob), len(blob) + len(data)])
            blob += data
        self.write_raw(json.dumps(header).encode(), blob)

    def write_raw(self, header, blob): self.write_file("model.safetensors", struct.pack("<Q", len(header)) + header + blob)
    def write_file(self, name, data): (self.path / name).write_bytes(data)
    def check(self, what, names=(), must_fail=False): check(f"{self.source.name}: {what}", self.path, self.golden, names, must_fail)
    def done(self): shutil.rmtree(self.path)


def tensors_of(name):
    """Each kind of tensor (the names but for their numbers) once: missing, of another shape or type, with scales that are no numbers."""
    folder = Folder(name)
    kinds = {}
    for tensor in folder.tensors: kinds.setdefault("".join(c for c in tensor if not c.isdigit()), []).append(tensor)
    for tensor in (RANDOM.choice(names) for names in kinds.values()):
        if tensor.startswith(("vision", "mm_")): continue
        dtype, shape, data = folder.tensors[tensor]
        change = lambda value: folder.write({**folder.tensors, tensor: value})
        folder.write({k: v for k, v in folder.tensors.items() if k != tensor})
        folder.check(f"without {tensor}", [str(folder.path), tensor.removeprefix("language_model.")], True)
        named = ["model.safetensors", tensor]
        row = len(data) // shape[0]
        for new, content in ((shape[::-1], data), (shape + [1], data), ([shape[0] + 1] + shape[1:], data + data[:row]), ([0] + shape[1:], b"")):
            if new != shape:
                change((dtype, new, content))
                folder.check(f"{tensor} of shape {new}", named, True)
        for other in WIDTH:
            if other == dtype or (other in FLOATS and dtype in FLOATS) or tensor.endswith("_shape"): continue
            change((other, shape, (data * 8)[:math.prod(shape) * WIDTH[other]]))
            folder.check(f"{tensor} of type {other}", named, True)
        if "scale" in tensor:
            for number in (math.nan, math.inf, -math.inf):
                bits = struct.pack("<f", number)[4 - WIDTH[dtype]:]
                at = RANDOM.randrange(len(data) // len(bits)) * len(bits)
                change((dtype, shape, data[:at] + bits + data[at + len(bits):]))
                folder.check(f"{tensor} with {number} at byte {at}", named, True)
    folder.done()


def bytes_of(name):
    """The container itself: cut, lengths that lie, text that is none, bytes that flip."""
    folder = Folder(name)
    raw, end = folder.raw, folder.header_end
    for size in [*range(0, 40), *range(40, end, end // 40), end - 1, end, end + 1, len(raw) - 1]:
        folder.write_file("model.safetensors", raw[:size])
        folder.check(f"cut to {size} bytes", ["model.safetensors"], True)
    for length in (0, 1, end - 9, end - 7, len(raw), 10**8, 10**8 + 1, 2**32, 2**63, 2**64 - 1):
        folder.write_file("model.safetensors", struct.pack("<Q", length) + raw[8:])
        folder.check(f"header length {length}", ["model.safetensors"], True)
    header, blob = raw[8:end], raw[end:]
    first = next(k for k in folder.header if k != "__metadata__")
    entry = json.dumps({first: folder.header[first]})[1:-1].encode()
    for text in (b"", b"null", b"[" * 10**5, b'{"a":' * 10**5, header.rstrip()[:-1] + b"," + entry + b"}", header.rstrip()[:-1]):
        folder.write_raw(text, blob)
        folder.check(f"header {text[:20]}", ["model.safetensors"], True)
    for key, values in dict(data_offsets=([], [0], [5, 0], [-1, 4], [0, 2**63], [2**64 - 1, 2**64 - 1], None), dtype=(None, "F64", "A" * 10**5, "\x1b[2J"),
                            shape=(None, [-1], [2**62, 4], [1.5], [1] * 99, ["x"])).items():
        for value in values:
            folder.write_raw(json.dumps({**folder.header, first: {**folder.header[first], key: value}}).encode(), blob)
            folder.check(f"{first}.{key} = {str(value)[:40]}", ["model.safetensors"], True)
    for i in range(300):
        data = bytearray(raw)
        for _ in range(RANDOM.choice((1, 1, 3, 20))): data[RANDOM.randrange(end if i % 4 else len(raw))] = RANDOM.randrange(256)
        folder.write_file("model.safetensors", bytes(data))
        folder.check(f"flips {i}", [str(folder.path)])
    folder.done()


def fields(config, path=()):
    for key, value in config.items():
        yield path + (key,)
        if isinstance(value, dict): yield from fields(value, path + (key,))


def configs_of(name):
    """Every field of config.json, set to what no config should say."""
    folder = Folder(name)
    wrong = ["null", "true", '"x"', "-1", "0", "1.5", "1e308", "1e400", "1e-320", "2147483647", "2147483648", "9223372036854775808", "[]", "{}", "[null]",
             "[" * 100 + "]" * 100, "NaN", '"' + "A" * 10**5 + '"', '"\\u001b[2J\\n"']
    for path in fields(folder.config):
        for value in wrong:
            config = json.loads(json.dumps(folder.config))
            inner = config
            for key in path[:-1]: inner = inner[key]
            inner[path[-1]] = "@"
            folder.write_file("config.json", json.dumps(config).replace('"@"', value).encode())
            folder.check(f"{'.'.join(path)} = {value[:40]}")
    folder.done()


def indices():
    folder = Folder("glm5-dsa-fp8-sharded-mtp")
    index = json.loads((folder.source / "model.safetensors.index.json").read_text())
    tensor, shard = next(iter(index["weight_map"].items()))
    other = next(s for s in index["weight_map"].values() if s != shard)
    for value in ("../" + folder.path.name + "/" + shard, "/etc/passwd", "..", "", "golden.safetensors", other, None, 1, "a\0b", "A" * 10**5):
        folder.write_file("model.safetensors.index.json", json.dumps(dict(weight_map={**index["weight_map"], tensor: value})).encode())
        folder.check(f"index: {tensor} in {str(value)[:40]!r}", ["model.safetensors.index.json"], True)
    folder.write_file("model.safetensors.index.json", json.dumps(index).encode())
    for what, act in (("gone", os.remove), ("a folder", os.mkdir), ("a pipe", lambda p: (os.rmdir(p), os.mkfifo(p)))):
        act(folder.path / shard)
        folder.check(f"shard is {what}", [shard], True)
    os.remove(folder.path / shard)
    with open(folder.path / shard, "wb") as file: file.truncate(1 << 40)
    folder.check("shard of a TiB", [shard], True)
    folder.done()


def ggufs():
    raw = (DATA / "gguf/deepseek2.gguf").read_bytes()
    golden = DATA / "gguf/deepseek2.golden.safetensors"
    end = 4800  # of metadata and tensor names
    path = pathlib.Path(tempfile.mkdtemp(prefix="tern_hostile_")) / "m.gguf"
    for size in [*range(0, 40), *range(40, len(raw), len(raw) // 100)]:
        path.write_bytes(raw[:size])
        check(f"GGUF cut to {size} bytes", path, golden, ["m.gguf"], True)
    for i in range(600):
        data = bytearray(raw)
        for _ in range(RANDOM.choice((1, 1, 3, 20))): data[RANDOM.randrange(end if i % 4 else len(raw))] = RANDOM.randrange(256)
        path.write_bytes(data)
        check(f"GGUF flips {i}", path, golden)
    shutil.rmtree(path.parent)


for name in ("kimi-k25-int4", "glm5-dsa-fp8", "odd-g64-int4-asym", "glm4-moe"): tensors_of(name)
bytes_of("kimi-k2-int4")
for name in ("kimi-k25-int4", "glm52-dsa-shared", "glm5-dsa-fp8"): configs_of(name)
indices()
ggufs()
for failure in failures[:40]: print(*failure)
print(f"{runs} runs, {len(failures)} failures")
sys.exit(1 if failures or runs < 5000 else 0)
