"""Messages: what a template gets of them, and which are refused before it sees them."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.stub_writer import StubWriter

from ramet.errors import InvalidRequest
from ramet.server.openai.request import ChatRequest
from ramet.text.conversation import Conversation
from tests.text.test_tokenizer_spm import PLAIN

CONVERSATION = StubWriter().conversation
CALL = {"id": "t1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "CET"}'}}


def prompt(messages: Any, conversation: Conversation = CONVERSATION, **fields: Any) -> str:
    (ids,) = ChatRequest.parse({"messages": messages, **fields}).prompts(conversation)
    return PLAIN.decode(ids)


def test_contents() -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "the"}]
    told = prompt([{"role": "system", "content": "ab"}, {"role": "user", "content": parts}])
    assert told == (
        "<bos><start_of_turn>system\nab<end_of_turn>\n<start_of_turn>user\nab\nthe<end_of_turn>\n<start_of_turn>model\n"
    )


def test_no_content_is_not_the_word_none() -> None:
    for silent in ({"content": None}, {}, {"content": ""}, {"content": []}):
        told = prompt([{"role": "user", "content": "ab"}, {"role": "assistant", **silent}])
        assert told.endswith("<start_of_turn>assistant\n<end_of_turn>\n<start_of_turn>model\n")
        assert "None" not in told


def test_developers_are_the_system_where_a_template_knows_none() -> None:
    messages = [{"role": "developer", "content": "ab"}]
    assert "<start_of_turn>system\nab" in prompt(messages)
    knows = Conversation(
        PLAIN, "{% for m in messages %}{{ m.role }}{% if m.role == 'developer' %}!{% endif %}{% endfor %}"
    )
    assert prompt(messages, knows) == "developer!"


def test_a_tool_call_has_its_arguments_as_an_object() -> None:
    shows = Conversation(PLAIN, "{% for m in messages %}{{ m.tool_calls[0].function.arguments.zone }}{% endfor %}")
    for arguments in (CALL["function"]["arguments"], {"zone": "CET"}):  # type: ignore[index]
        call = CALL | {"function": {"name": "clock", "arguments": arguments}}
        assert prompt([{"role": "assistant", "content": None, "tool_calls": [call]}], shows) == "CET"


def test_what_else_a_message_holds_is_the_template_s() -> None:
    shows = Conversation(PLAIN, "{{ messages[0].reasoning_content }}{{ messages[0].name is defined }}")
    assert prompt([{"role": "user", "content": "", "reasoning_content": "the", "name": None}], shows) == "theFalse"


def test_options_reach_the_template() -> None:
    messages = [{"role": "user", "content": "ab"}]
    assert prompt(messages, chat_template_kwargs={"enable_thinking": True}).endswith("model\nthink")
    with pytest.raises(InvalidRequest) as caught:
        prompt(messages, chat_template_kwargs={"enable_thinkin": True})
    assert caught.value.field == "chat_template_kwargs.enable_thinkin"


@pytest.mark.parametrize(
    ("messages", "place", "message"),
    [
        ([], "messages", "at least one message"),
        ("ab", "messages", "should be an array"),
        ([3], "messages.0", "should be an object"),
        ([{"content": "ab"}], "messages.0.role", "should be one of system"),
        ([{"role": "function", "content": "ab"}], "messages.0.role", "should be one of system"),
        ([{"role": "user<bos>", "content": "ab"}], "messages.0.role", "should be one of system"),
        ([{"role": ["user"], "content": "ab"}], "messages.0.role", "should be one of system"),
        ([{"role": "user"}], "messages.0.content", "should be text"),
        ([{"role": "user", "content": None}], "messages.0.content", "should be text"),
        ([{"role": "user", "content": 3}], "messages.0.content", "should be text"),
        ([{"role": "user", "content": ["ab"]}], "messages.0.content.0", "should be text"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text", "should be text"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages.0.content.0",
            "part of the type 'image_url': pictures",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": ""}, {"type": "input_audio", "input_audio": {}}]}],
            "messages.0.content.1",
            "'input_audio' are not supported",
        ),
        (
            [{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}],
            "messages.0.content.0",
            "not supported",
        ),
        ([{"role": "assistant", "tool_calls": {}}], "messages.0.tool_calls", "array of objects"),
        ([{"role": "assistant", "tool_calls": [{"id": "x"}]}], "messages.0.tool_calls.0.function", "with a name"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}]}],
            "messages.0.tool_calls.0.function.arguments",
            "its JSON",
        ),
    ],
)
def test_wrong_messages(messages: Any, place: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        prompt(messages)
    assert caught.value.field == place


def test_a_template_s_refusal_is_told_in_its_own_words() -> None:
    history = [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "t1", "content": "14:05"},
    ]
    with pytest.raises(InvalidRequest, match="no tools, please") as caught:
        prompt(history)
    assert caught.value.field == "messages"
