"""What `tern serve` costs when nobody asks it anything: the start, and a core's time while idle.

usage: serve_cost.py TERN
Time is the process's own CPU time, so that other work on the machine does not show. SmolLM2 where its
file is, else the tiny model.
"""
import os, pathlib, signal, socket, subprocess, sys, time, urllib.error, urllib.request

TERN = sys.argv[1]
SMOLLM2 = pathlib.Path(".cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
MODEL = SMOLLM2 if SMOLLM2.exists() else pathlib.Path("tests/data/tiny/model")
START_CPU_S = 3.0  # 1.5 s of two cores
IDLE_S, IDLE_SHARE = 10, 0.01


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_ready(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
command = [TERN, "serve", "--model-path", str(MODEL), "--port", str(port), "--log-level", "warning",
           "--max-total-tokens", "8192"]
for attempt in ("cold", "warm"):  # the second one finds the file in memory
    began = time.monotonic()
    server = subprocess.Popen(command)
    try:
        while not is_ready(port):
            assert server.poll() is None, f"serve ended with {server.returncode}"
            assert time.monotonic() - began < 90, "not ready after 90 s"
            time.sleep(0.01)
        ready_s, start_cpu_s = time.monotonic() - began, cpu_s(server.pid)
        print(f"{MODEL.name}, {attempt}: ready after {ready_s:.2f} s, {start_cpu_s:.2f} s of CPU")
        if attempt == "cold":
            continue
        assert start_cpu_s < START_CPU_S, start_cpu_s
        time.sleep(0.5)
        before = cpu_s(server.pid)
        time.sleep(IDLE_S)
        idle = (cpu_s(server.pid) - before) / IDLE_S
        print(f"idle: {idle:.2%} of a core")
        assert idle < IDLE_SHARE, idle
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
print("ok")
