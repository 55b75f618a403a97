"""Log probabilities of prompts, against what PyTorch computed and against the model's own answers."""
import json
import math

import httpx
import pytest

from conftest import ROOT, Server

TINY = ROOT / "tests/data/tiny"


@pytest.fixture(scope="module")
def tiny():
    server = Server(model=TINY / "model").wait_ready()
    yield server
    server.kill()


def post(server, path, **body):
    reply = httpx.post(server.url + path, json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_perplexity_is_that_of_pytorch(tiny):
    """As lm-eval asks: token ids, echo, logprobs. reference.json has PyTorch's figure, and how it is counted."""
    reference = json.loads((TINY / "reference.json").read_text())["perplexity"]
    assert reference["window"] == "[BOS] + 511 tokens, all 511 counted, windows disjoint"
    ids = post(tiny, "/tokenize", prompt=(TINY / "perplexity_dev.txt").read_text())["tokens"][:reference["tokens"]]
    (bos,) = post(tiny, "/tokenize", prompt="[BOS]")["tokens"]
    windows = [[bos] + ids[at:at + 511] for at in range(0, len(ids), 511)]
    total = count = 0
    for at in range(0, len(windows), 8):
        answer = post(tiny, "/v1/completions", prompt=windows[at:at + 8], echo=True, logprobs=1, max_tokens=0, temperature=0)
        for window, choice in zip(windows[at:], answer["choices"]):
            values = choice["logprobs"]["token_logprobs"]
            assert len(values) == len(window) and values[0] is None
            total += sum(values[1:])
            count += len(window) - 1
    assert count == reference["tokens"]
    # tern computes in BF16, PyTorch's figure is of float32: docs/accuracy.md has 52.842 for tern.
    assert math.exp(-total / count) == pytest.approx(reference["value"], rel=1e-3)


def test_a_prompts_logprobs_are_those_of_the_answer_it_was(server):
    """What is generated greedily and given back as a prompt has the same log probabilities."""
    answer = post(server, "/generate", text="The sea is", return_logprob=True, top_logprobs_num=3,
                  sampling_params={"temperature": 0, "max_new_tokens": 12, "ignore_eos": True})
    prompt = post(server, "/tokenize", prompt="The sea is")["tokens"]
    again = post(server, "/generate", input_ids=prompt + answer["output_ids"], return_logprob=True, top_logprobs_num=3,
                 logprob_start_len=len(prompt) - 1, sampling_params={"max_new_tokens": 0})
    meta, output = again["meta_info"], answer["meta_info"]
    assert meta["input_token_logprobs"][0] == [None, prompt[-1], None]
    assert [item[:2] for item in meta["input_token_logprobs"][1:]] == [item[:2] for item in output["output_token_logprobs"]]
    assert meta["input_top_logprobs"][1:] == output["output_top_logprobs"]


def test_prefix_reuse_and_stop_tokens(server):
    prompt = list(range(1000, 1200))
    first = post(server, "/v1/completions", prompt=[prompt], echo=True, logprobs=1, max_tokens=1, temperature=0)
    second = post(server, "/v1/completions", prompt=[prompt], echo=True, logprobs=1, max_tokens=1, temperature=0)
    assert first["choices"][0]["logprobs"] == second["choices"][0]["logprobs"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    # The end of the answer has a log probability too: lm-eval drops the last one, whatever it is.
    chat = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    answer = post(server, "/v1/completions", prompt=chat, logprobs=0, max_tokens=40, temperature=0)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["logprobs"]["tokens"][-1] == "<|im_end|>"
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["completion_tokens"]
