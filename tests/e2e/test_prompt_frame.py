"""What a tokenizer puts around prompts that no template has made, from its file to the ids that the model gets. The
expected ids are those of HuggingFace's tokenizers (tests/data/text/post_processor_cases.json)."""
import json
import shutil
import struct
import subprocess

import httpx
import pytest

from conftest import ROOT, TERN, Server, ask

CASES = {case["name"]: case for case in
         json.loads((ROOT / "tests/data/text/post_processor_cases.json").read_text())["good"]}
BASE = ROOT / "tests/data/tiny/model"


def model_with(folder, post_processor):
    shutil.copytree(BASE, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": post_processor}))
    return folder


def post(server, path, **body):
    reply = httpx.post(server.url + path, json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_every_endpoint_takes_llamas_bos(own_server, tmp_path):
    case, plain = CASES["llama3"], CASES["none"]
    server = own_server(model=model_with(tmp_path / "m", case["post_processor"])).wait_ready()
    for (text, ids), (_, without) in zip(case["cases"], plain["cases"]):
        assert ids == [ids[0]] + without
        assert post(server, "/tokenize", prompt=text)["tokens"] == ids
        assert post(server, "/tokenize", prompt=text, add_special_tokens=False)["tokens"] == without
        answer = post(server, "/v1/completions", prompt=text, max_tokens=2, return_token_ids=True, ignore_eos=True, echo=True)
        choice = answer["choices"][0]
        assert choice["prompt_token_ids"] == ids and len(choice["token_ids"]) == 2
        assert choice["text"].startswith(text) and answer["usage"]["prompt_tokens"] == len(ids)
        generated = post(server, "/generate", text=text, return_prompt_token_ids=True, sampling_params={"max_new_tokens": 1})
        assert generated["prompt_token_ids"] == ids
    chat = post(server, "/v1/chat/completions", messages=ask("a"), max_tokens=1, return_token_ids=True)["choices"][0]
    alone = own_server(model=BASE).wait_ready()
    same = post(alone, "/v1/chat/completions", messages=ask("a"), max_tokens=1, return_token_ids=True)["choices"][0]
    assert chat["prompt_token_ids"] == same["prompt_token_ids"]
    assert len(chat["response_token_ids"]) == 1


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf(path, **more):
    """A GGUF file of nothing but a byte-level tokenizer: the bytes' alphabet, a BOS and an EOS."""
    tokens = [chr(c) for c in range(33, 127)] + ["<s>", "</s>"]
    kinds = [1] * 94 + [3, 3]
    values = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.bos_token_id": 94,
              "tokenizer.ggml.eos_token_id": 95, **{f"tokenizer.ggml.{k}": v for k, v in more.items()}}
    data = b""
    for key, value in values.items():
        data += string(key)
        if isinstance(value, bool):
            data += struct.pack("<IB", 7, value)
        elif isinstance(value, int):
            data += struct.pack("<II", 4, value)
        else:
            data += struct.pack("<I", 8) + string(value)
    data += string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(tokens)) + b"".join(map(string, tokens))
    data += string("tokenizer.ggml.token_type") + struct.pack(f"<IIQ{len(kinds)}i", 9, 5, len(kinds), *kinds)
    data += string("tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, 0)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(values) + 3) + data)
    return path


def tokenize(path, *options):
    done = subprocess.run([TERN, "tokenize", "--tokenizer", str(path), *options], input='"!"\n', capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("keys, want", [
    (dict(pre="gpt-2"), [0]),
    (dict(pre="gpt-2", add_bos_token=True), [94, 0]),
    (dict(pre="gpt-2", add_bos_token=True, add_eos_token=True), [94, 0, 95]),
    (dict(pre="llama-bpe"), [94, 0]),  # llama.cpp's default for Llama 3
    (dict(pre="llama-bpe", add_bos_token=False), [0]),
])
def test_gguf_files_say_it_by_a_flag(keys, want, tmp_path):
    file = gguf(tmp_path / "t.gguf", **keys)
    assert tokenize(file, "--add-special-tokens") == want
    assert tokenize(file) == [0]


def test_what_cannot_be_done_is_refused_by_name(tmp_path):
    folder = model_with(tmp_path / "m", {"type": "Sequence", "processors": [{"type": "Pairs"}]})
    done = subprocess.run([TERN, "serve", "--model-path", str(folder), "--port", "0"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "post_processor.processors[0]: the type 'Pairs' is not supported" in done.stderr
