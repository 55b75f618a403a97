"""Tool calls and reasoning: the trained model's own tasks through the openai client."""
import concurrent.futures
import json
import re

import openai
import pytest

from conftest import ROOT, Server, ask

TINY = ROOT / "tests/data/tiny"
# Its reference answers are transformers' in float32; in BF16 a near tie may fall the other way.
RIGHT_SHARE = 0.98


def tasks(kind):
    items = [json.loads(line) for line in (TINY / "tasks_dev.jsonl").read_text().splitlines()]
    return [item for item in items if item["task"] == kind]


@pytest.fixture(scope="module")
def tiny():
    running = Server(model=TINY / "model").wait_ready()
    yield running
    running.wait_idle(5)
    assert running.stop() == 0, running.log()


def complete(server, messages, **options):
    client = server.client(_strict_response_validation=True)
    return client.chat.completions.create(
        model="tiny", messages=messages, temperature=0, max_tokens=64, **options)


class Streamed:
    """A stream's chunks put together, and checked for their order."""

    def __init__(self, chunks):
        self.reasoning, self.content, self.calls, self.finish_reason = "", "", [], None
        stage = 0  # reasoning, content, calls, end
        for chunk in chunks:
            if not chunk.choices:
                continue
            choice = chunk.choices[0]
            delta = choice.delta
            assert self.finish_reason is None
            assert "reasoning_content" in delta.model_extra
            reasoning = delta.model_extra["reasoning_content"]
            assert delta.model_extra.get("reasoning") == reasoning
            if reasoning:
                assert stage == 0
                self.reasoning += reasoning
            if delta.content:
                assert stage <= 1
                stage = 1
                self.content += delta.content
            for call in delta.tool_calls or []:
                stage = 2
                assert call.type == "function"
                if call.id:
                    assert call.index == len(self.calls) and call.function.arguments == ""
                    self.calls.append({"id": call.id, "name": call.function.name, "arguments": ""})
                else:
                    assert call.function.name is None and call.index == len(self.calls) - 1
                    self.calls[-1]["arguments"] += call.function.arguments
            self.finish_reason = choice.finish_reason


def answer(server, item, stream):
    """(reasoning, content, [calls], finish_reason) of a task item."""
    options = {"tools": item["tools"]} if "tools" in item else {}
    if stream:
        got = Streamed(complete(server, item["messages"], stream=True, **options))
        return got.reasoning, got.content, got.calls, got.finish_reason
    choice = complete(server, item["messages"], **options).choices[0]
    message = choice.message
    assert message.model_extra["reasoning"] == message.model_extra["reasoning_content"]
    calls = [{"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
             for call in message.tool_calls or []]
    return message.model_extra["reasoning_content"] or "", message.content or "", calls, choice.finish_reason


def answers(server, items):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda pair: answer(server, pair[1], stream=pair[0] % 2 == 0),
                             enumerate(items)))


def test_tool_tasks(tiny):
    items = tasks("tool")
    right = 0
    for item, (reasoning, content, calls, finish_reason) in zip(items, answers(tiny, items)):
        if not calls:
            continue
        assert (reasoning, content, finish_reason) == ("", "", "tool_calls")
        assert calls[0]["id"] == f"functions.{calls[0]['name']}:0"
        got = {"name": calls[0]["name"], "arguments": json.loads(calls[0]["arguments"])}
        right += got == item["expect_tool"]
    assert len(items) == 200 and right >= RIGHT_SHARE * len(items), right


def test_think_tasks(tiny):
    items = tasks("think")
    right = 0
    for item, (reasoning, content, calls, finish_reason) in zip(items, answers(tiny, items)):
        assert "think>" not in reasoning + content and not calls and finish_reason == "stop"
        right += bool(reasoning) and content.strip() == item["expect"]
    assert len(items) == 200 and right >= RIGHT_SHARE * len(items), right


def test_whole_and_streamed_are_the_same(tiny):
    for item in tasks("tool")[:8] + tasks("think")[:8]:
        assert answer(tiny, item, stream=True) == answer(tiny, item, stream=False)


def test_the_openai_helper_puts_the_stream_together(tiny):
    item = tasks("tool")[0]
    with tiny.client().chat.completions.stream(
            model="tiny", messages=item["messages"], tools=item["tools"], temperature=0,
            max_tokens=64) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls[0].function.name == item["expect_tool"]["name"]
    assert json.loads(message.tool_calls[0].function.arguments) == item["expect_tool"]["arguments"]


def test_a_conversation_with_foreign_ids(tiny):
    item = tasks("tool")[0]
    call = {"id": "call_abc", "type": "function",
            "function": {"name": item["expect_tool"]["name"],
                         "arguments": json.dumps(item["expect_tool"]["arguments"])}}
    history = [*item["messages"], {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": "call_abc", "content": "fine"}, *item["messages"]]
    own = json.loads(json.dumps(history).replace("call_abc", f"functions.{call['function']['name']}:0"))
    foreign_answer, own_answer = (complete(tiny, messages, tools=item["tools"])
                                  for messages in (history, own))
    # The model sees the same prompt either way.
    assert foreign_answer.usage.prompt_tokens == own_answer.usage.prompt_tokens
    assert foreign_answer.choices[0].message == own_answer.choices[0].message
    calls = foreign_answer.choices[0].message.tool_calls
    if calls:
        assert re.fullmatch(r"functions\.\w+:1", calls[0].id)


def test_reasoning_in_usage_and_in_the_content(tiny):
    item = tasks("think")[0]
    split = complete(tiny, item["messages"])
    reasoning = split.choices[0].message.model_extra["reasoning_content"]
    content = split.choices[0].message.content
    counted = split.usage.completion_tokens_details.reasoning_tokens
    # <think> and </think> are a token each; every character of the digits' sum is at most one.
    assert 2 < counted <= len(reasoning) + 2 and counted < split.usage.completion_tokens
    together = complete(tiny, item["messages"], extra_body={"separate_reasoning": False})
    assert together.choices[0].message.content == f"<think>{reasoning}</think>{content}"
    late = list(complete(tiny, item["messages"], stream=True, extra_body={"stream_reasoning": False}))
    pieces = [chunk.choices[0].delta.model_extra["reasoning_content"] for chunk in late]
    assert [piece for piece in pieces if piece] == [reasoning]


def test_tool_choice(tiny):
    item = tasks("tool")[0]
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        with pytest.raises(openai.BadRequestError) as error:
            complete(tiny, item["messages"], tools=item["tools"], tool_choice=choice)
        assert "tool_choice" in error.value.body["message"]
    none = complete(tiny, item["messages"], tools=item["tools"], tool_choice="none")
    assert none.choices[0].message.tool_calls is None
    assert none.usage.prompt_tokens == complete(tiny, item["messages"]).usage.prompt_tokens


def test_parsers_are_chosen_by_flag(own_server):
    item = tasks("tool")[0]
    server = own_server("--tool-call-parser", "none", "--reasoning-parser", "none", model=TINY / "model")
    server.wait_ready()
    assert re.search(r"tool calls: none \(--tool-call-parser none\)", server.log())
    choice = complete(server, item["messages"], tools=item["tools"]).choices[0]
    assert choice.finish_reason == "stop" and choice.message.tool_calls is None
    assert item["expect_tool"]["name"] in choice.message.content  # the control tokens are not text
    assert "<|" not in choice.message.content


def test_unknown_parsers_are_refused(own_server):
    server = own_server("--tool-call-parser", "hermes", model=TINY / "model")
    assert server.wait_ended() == 2
    assert "--tool-call-parser" in server.log()
