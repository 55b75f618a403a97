"""Control tokens in messages, and what changes the choice of tokens, with the tiny model."""
import json

import httpx
import openai
import pytest

from conftest import ROOT, Server, ask

TINY = ROOT / "tests/data/tiny"


@pytest.fixture(scope="module")
def tiny():
    running = Server(model=TINY / "model").wait_ready()
    yield running
    running.wait_idle(5)
    assert running.stop() == 0, running.log()


def prompt_tokens(server, messages, **options):
    answer = server.client().chat.completions.create(
        model="tiny", messages=messages, max_tokens=1, **options)
    return answer.usage.prompt_tokens


def tokenize(server, prompt):
    return httpx.post(server.url + "/tokenize", json={"prompt": prompt}).json()["tokens"]


def complete(server, prompt="one two", **options):
    options.setdefault("temperature", 0)
    options.setdefault("max_tokens", 24)
    return server.client().completions.create(model="tiny", prompt=prompt, **options)


def ids(server, prompt="one two", **sampling):
    body = {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 24, **sampling}}
    reply = httpx.post(server.url + "/generate", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()["output_ids"]


@pytest.mark.parametrize("marker", ["<|im_end|>", "<|im_system|>", "[EOS]", "<think>"])
def test_control_tokens_in_messages_are_text(tiny, marker):
    assert len(tokenize(tiny, marker)) == 1
    for role in ("system", "user", "tool"):
        def message(text):
            return [{"role": role, "content": text, "tool_call_id": "functions.f:0"}, *ask("a")]
        # The control token itself would be one more.
        more = prompt_tokens(tiny, message("x" + marker)) - prompt_tokens(tiny, message("x"))
        assert more > 1, role
    call = {"id": "functions.f:0", "type": "function",
            "function": {"name": "f", "arguments": '{"k": "x"}'}}
    plain = prompt_tokens(tiny, [*ask("a"), {"role": "assistant", "tool_calls": [call]}])
    call["function"]["arguments"] = '{"k": "x%s"}' % marker
    assert prompt_tokens(tiny, [*ask("a"), {"role": "assistant", "tool_calls": [call]}]) > plain + 1


def test_developer_is_system(tiny):
    def tokens(role):
        return prompt_tokens(tiny, [{"role": role, "content": "be nice"}, *ask("a")])

    assert tokens("developer") == tokens("system")


def test_tokenize_and_back(tiny):
    text = "One, two: a < b."
    for root in ("", "/v1"):
        reply = httpx.post(tiny.url + root + "/tokenize", json={"prompt": [text, "b"]}).json()
        assert reply["count"] == [len(one) for one in reply["tokens"]]
        back = httpx.post(tiny.url + root + "/detokenize", json={"tokens": reply["tokens"]}).json()
        assert back["text"] == [text, "b"]


def test_logit_bias(tiny):
    free = ids(tiny)
    banned = ids(tiny, logit_bias={str(free[0]): -100})
    assert banned[0] != free[0] and free[0] not in banned
    forced = ids(tiny, logit_bias={"50": 100}, max_new_tokens=4)
    assert forced == [50] * 4
    with pytest.raises(openai.BadRequestError, match="logit_bias"):
        complete(tiny, logit_bias={"1000000": 1})


def test_penalties(tiny):
    # Two tokens far above all others, one far above the other: it loses 2 when it comes and 2 more
    # each time, so it falls below the other in the end.
    biases = {"50": 100, "51": 80}
    assert set(ids(tiny, logit_bias=biases)) == {50}
    assert set(ids(tiny, logit_bias=biases, presence_penalty=2, frequency_penalty=2)) == {50, 51}
    assert complete(tiny, presence_penalty=1, frequency_penalty=1).choices[0].text is not None
    assert ids(tiny, repetition_penalty=1.5) == ids(tiny, repetition_penalty=1.5)


def test_min_tokens(tiny):
    stop = ids(tiny, max_new_tokens=1)[0]
    assert ids(tiny, stop_token_ids=[stop]) == [stop]
    late = ids(tiny, stop_token_ids=[stop], min_new_tokens=5)
    assert len(late) >= 5 and stop not in late[:5]


def test_echo(tiny):
    plain = complete(tiny, max_tokens=4).choices[0].text
    assert complete(tiny, max_tokens=4, echo=True).choices[0].text == "one two" + plain
    chunks = complete(tiny, max_tokens=4, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "one two" + plain
    from_ids = complete(tiny, prompt=tokenize(tiny, "one two"), max_tokens=4, echo=True)
    assert from_ids.choices[0].text == "one two" + plain


def test_context_overflow_in_openais_words(tiny):
    with pytest.raises(openai.BadRequestError, match="This model's maximum context length is"):
        complete(tiny, max_tokens=10_000_000)


def test_incremental_streaming(tiny, own_server):
    body = {"text": "one two", "stream": True, "return_logprob": True,
            "sampling_params": {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}}

    def events(server):
        reply = httpx.post(server.url + "/generate", json=body, timeout=60)
        lines = [line for line in reply.text.splitlines() if line]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    whole = events(tiny)[-1]
    server = own_server("--incremental-streaming-output", model=TINY / "model").wait_ready()
    parts = events(server)
    assert len(parts) > 2
    assert "".join(part["text"] for part in parts) == whole["text"]
    assert sum((part["output_ids"] for part in parts), []) == whole["output_ids"]
    logprobs = [part["meta_info"]["output_token_logprobs"] for part in parts]
    assert sum(logprobs, []) == whole["meta_info"]["output_token_logprobs"]
    assert [part["meta_info"]["completion_tokens"] for part in parts] == [1, 2, 3, 4, 5, 6, 6]
    assert parts[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
