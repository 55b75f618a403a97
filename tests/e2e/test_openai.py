"""The OpenAI API through the openai client."""
import concurrent.futures
import math

import httpx
import openai
import pytest

from conftest import ask

FRANCE = ask("What is the capital of France?")
# The chat prompt's length in tokens, from Hugging Face's tokenizer and template.
FRANCE_TOKENS = 37
SEA = ask("Write one sentence about the sea.")


def complete(client, messages, **options):
    options.setdefault("temperature", 0)
    options.setdefault("max_tokens", 48)
    return client.chat.completions.create(model="smollm2", messages=messages, **options)


def streamed_text(stream):
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_whole_answer_and_usage(server):
    answer = complete(server.client(), FRANCE)
    choice = answer.choices[0]
    assert "Paris" in choice.message.content
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.usage.prompt_tokens == FRANCE_TOKENS
    assert answer.usage.total_tokens == FRANCE_TOKENS + answer.usage.completion_tokens
    assert "<|im_end|>" not in choice.message.content


def test_stream_equals_whole(server):
    client = server.client()
    whole = complete(client, SEA)
    chunks = list(complete(client, SEA, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert streamed_text(chunks) == whole.choices[0].message.content
    assert len({chunk.id for chunk in chunks}) == 1


def test_max_tokens_ends_with_length(server):
    for name in ("max_tokens", "max_completion_tokens"):
        answer = server.client().chat.completions.create(
            model="smollm2", messages=SEA, temperature=0, **{name: 3})
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 3


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_across_tokens(server, stream):
    client = server.client()
    text = complete(client, SEA).choices[0].message.content
    # A stop string that begins and ends inside words, so inside tokens.
    middle = len(text) // 2
    start = text.index(" ", middle) - 2
    stop = text[start:start + 6]
    answer = complete(client, SEA, stop=["never in the text", stop], stream=stream)
    if stream:
        assert streamed_text(answer) == text[:text.index(stop)]
    else:
        assert answer.choices[0].message.content == text[:text.index(stop)]
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].matched_stop == stop
    # Tokens behind the stop string are not counted: as many count as make the text contain it.
    usage = complete(client, SEA, stop=stop).usage.completion_tokens
    assert stop in complete(client, SEA, max_tokens=usage).choices[0].message.content
    assert stop not in complete(client, SEA, max_tokens=usage - 1).choices[0].message.content


def test_logprobs(server):
    answer = complete(server.client(), FRANCE, logprobs=True, top_logprobs=5)
    content = answer.choices[0].logprobs.content
    assert "".join(item.token for item in content) == answer.choices[0].message.content
    for item in content:
        assert bytes(item.bytes).decode() == item.token
        assert len(item.top_logprobs) == 5
        # Greedy: the token is the likeliest; five of a distribution sum to at most one.
        assert item.top_logprobs[0].token == item.token
        assert item.top_logprobs[0].logprob == pytest.approx(item.logprob, abs=1e-5)
        assert sum(math.exp(top.logprob) for top in item.top_logprobs) <= 1 + 1e-4
    streamed = []
    for chunk in complete(server.client(), FRANCE, logprobs=True, top_logprobs=5, stream=True):
        if chunk.choices and chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert [item.token for item in streamed] == [item.token for item in content]
    assert [item.logprob for item in streamed] == [item.logprob for item in content]


def test_n_choices_and_seed(server):
    client = server.client()
    first = complete(client, SEA, n=2, temperature=1.0, seed=7, max_tokens=16)
    again = complete(client, SEA, n=2, temperature=1.0, seed=7, max_tokens=16)
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1]
    assert texts[0] != texts[1]
    assert texts == [choice.message.content for choice in again.choices]
    assert first.usage.prompt_tokens == complete(client, SEA).usage.prompt_tokens


def test_concurrent_requests_answer_as_alone(server):
    client = server.client()
    prompts = [ask(f"Say something about the number {i}.") for i in range(12)]
    alone = [complete(client, prompt, max_tokens=24).choices[0].message.content for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        together = list(pool.map(
            lambda prompt: complete(client, prompt, max_tokens=24).choices[0].message.content, prompts))
    assert together == alone


def test_text_parts_and_conversation(server):
    answer = complete(server.client(), [
        {"role": "system", "content": "You answer with one word."},
        {"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]},
        {"role": "assistant", "content": "Paris"},
        {"role": "user", "content": "Thank you."}])
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_completions(server):
    answer = server.client().completions.create(
        model="smollm2", prompt="One, two, three,", temperature=0, max_tokens=8, logprobs=2)
    assert "four" in answer.choices[0].text
    assert len(answer.choices[0].logprobs.tokens) == answer.usage.completion_tokens


def test_models(server):
    client = server.client()
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").owned_by == "sglang"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_bad_inputs_are_4xx_and_the_server_lives_on(server):
    client = server.client()
    for options in (dict(temperature=-1), dict(top_p=2), dict(n=0), dict(max_tokens=0),
                    dict(stop=[""]), dict(logprobs=True, top_logprobs=50),
                    dict(extra_body={"top_k": "many"}), dict(extra_body={"stop_token_ids": [-5]}),
                    dict(response_format={"type": "json_object"}), dict(max_tokens=100_000)):
        with pytest.raises(openai.BadRequestError) as error:
            complete(client, FRANCE, **options)
        assert error.value.body["message"], options
    with pytest.raises(openai.BadRequestError) as error:
        complete(client, [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:,"}}]}])
    assert "image_url" in str(error.value)
    # A prompt over the context states both numbers.
    with pytest.raises(openai.BadRequestError) as error:
        complete(client, ask("word " * 9000))
    assert "8192" in str(error.value) and "tokens" in str(error.value)
    # Streams too are refused with a status, not inside a 200.
    with pytest.raises(openai.BadRequestError):
        complete(client, FRANCE, stream=True, max_tokens=100_000)
    for body in (b"", b"{", b"[" * 200_000, b'{"messages": "\xff"}', b'{"messages": 1e999}'):
        reply = httpx.post(server.url + "/v1/chat/completions", content=body)
        assert reply.status_code == 400 and reply.json()["object"] == "error", body[:20]
    assert httpx.get(server.url + "/no/such/path").status_code == 404
    assert httpx.get(server.url + "/v1/chat/completions").status_code == 405
    assert "Paris" in complete(client, FRANCE).choices[0].message.content


def test_the_clients_types_accept_every_answer(server):
    """The client builds its types without looking; with strict validation it checks every field of them."""
    client = server.client(_strict_response_validation=True)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    for options in ({}, {"n": 2, "temperature": 1}, {"logprobs": True, "top_logprobs": 3}, {"max_tokens": 2},
                    {"stop": "a"}, {"tools": [tool]}, {"extra_body": {"separate_reasoning": False}}):
        options = {"max_tokens": 12, **options}
        assert complete(client, SEA, **options).choices
        for usage in ({}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}):
            chunks = list(complete(client, SEA, stream=True, stream_options=usage, **options))
            assert chunks[-1].choices or usage
    for options in ({}, {"logprobs": 2}, {"echo": True, "logprobs": 1}, {"prompt": ["a", "b"], "n": 2},
                    {"echo": True, "max_tokens": 0, "logprobs": 1}, {"prompt": [[5, 6], [7]]}, {"stop": "a"}):
        body = {"model": "smollm2", "temperature": 0, "prompt": "The sea is", "max_tokens": 8, **options}
        if "echo" not in body:
            assert client.completions.create(**body).choices
        reply = httpx.post(server.url + "/v1/completions", timeout=60, json={
            **body, "stream": True, "stream_options": {"include_usage": True}}).text
        events = [line.removeprefix("data: ") for line in reply.split("\n\n") if line]
        assert events.pop() == "[DONE]" and len(events) > 1
        events.append(httpx.post(server.url + "/v1/completions", json=body, timeout=60).text)
        for event in events:
            # OpenAI has these nulls too, though the client's types deny them: before a stream's end, and for
            # the first token of a prompt.
            for null, other in (('"finish_reason":null', '"finish_reason":"stop"'),
                                ('"token_logprobs":[null', '"token_logprobs":[0'),
                                ('"top_logprobs":[null', '"top_logprobs":[{}')):
                event = event.replace(null, other)
            openai.types.Completion.model_validate_json(event)
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").id == "smollm2"
