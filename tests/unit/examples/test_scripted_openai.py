"""The scripted endpoint is a real OpenAI-style server to LlamaIndex, and its scripts say only what tools returned."""

from __future__ import annotations

import json

import httpx
import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.tools import FunctionTool
from llamaindex_agent import WORDS_PY, counting_script
from retrieval_and_compute import analyst_script, handbook_tool
from scripted_openai import Conversation, Reply, Say, Script, ScriptedOpenAI, ToolResult, UseTool, read_conversation

# What LlamaIndex's own tool wrapper asks of pydantic is not ours to change.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:inspect")


def answer_of(script: Script, *, called: list[tuple[str, str]]) -> Reply:
    """What a script says after these tool calls and results."""
    results = tuple(ToolResult(name=name, content=content) for name, content in called)
    return script(Conversation(question="?", tools=frozenset({"a tool"}), results=results))


async def test_an_agent_calls_its_tool_and_answers_with_the_result() -> None:
    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    def script(conversation: Conversation) -> Reply:
        result = conversation.last_result_of("double")
        return (
            UseTool(name="double", arguments={"number": 21}) if result is None else Say(text=f"It is {result.value()}")
        )

    with ScriptedOpenAI(script) as endpoint:
        agent = FunctionAgent(tools=[FunctionTool.from_defaults(fn=double)], llm=endpoint.llm(), streaming=False)
        answer = str(await agent.run("What is twice 21?"))

    assert answer == "It is 42"


def test_a_streaming_request_is_told_what_to_do() -> None:
    with ScriptedOpenAI(lambda _: Say(text="hello")) as endpoint, httpx.Client(trust_env=False) as client:
        request = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        reply = client.post(f"{endpoint.base_url}/chat/completions", json=request)

    assert reply.status_code == 400
    assert "streaming=False" in reply.json()["error"]["message"]


def test_an_unknown_path_is_refused() -> None:
    with ScriptedOpenAI(lambda _: Say(text="hello")) as endpoint, httpx.Client(trust_env=False) as client:
        assert client.post(f"{endpoint.base_url}/embeddings", json={}).status_code == 404


def test_the_written_program_has_139_bytes() -> None:
    assert answer_of(counting_script, called=[]) == UseTool(
        name="runtime_write_file", arguments={"path": "words.py", "content": WORDS_PY}
    )
    assert len(WORDS_PY.encode()) == 139


@pytest.mark.parametrize("count", [3, 46, 1234])
def test_the_counting_agent_repeats_the_sandboxs_figure(count: int) -> None:
    ran = {"exit_code": 0, "stdout": f"/etc/os-release has {count} words\n", "stderr": "", "timed_out": False}
    called = [("runtime_write_file", "Wrote 139 bytes to /workspace/words.py"), ("runtime_exec", repr(ran))]

    assert answer_of(counting_script, called=called) == Say(text=f"I counted: /etc/os-release has {count} words.")


def test_a_failed_run_is_never_answered_with_a_figure() -> None:
    ran = {"exit_code": 1, "stdout": "", "stderr": "no such file", "timed_out": False}
    called = [("runtime_write_file", "Wrote 139 bytes to /workspace/words.py"), ("runtime_exec", repr(ran))]

    assert "failed" in str(answer_of(counting_script, called=called))


def test_the_report_follows_what_the_handbook_says() -> None:
    rules = "Our first quarter is April, May and June. Net revenue is without the value added tax of 7 percent."
    reply = answer_of(analyst_script, called=[("handbook", rules)])

    assert isinstance(reply, UseTool)
    program = str(reply.arguments["content"])
    assert "isin([4, 5, 6])" in program
    assert "/ 1.07" in program


def test_without_the_rules_there_is_no_report() -> None:
    assert isinstance(answer_of(analyst_script, called=[("handbook", "Nothing is known.")]), Say)


async def test_the_query_engine_finds_the_two_pages_that_matter() -> None:
    with ScriptedOpenAI(analyst_script) as endpoint:
        found = await handbook_tool(endpoint.llm()).acall(
            "How is net revenue counted, and which months has the first quarter?"
        )

    assert "February, March and April" in found.content
    assert "19 percent" in found.content
    assert "warehouse" not in found.content


def test_results_before_the_last_question_are_history() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "old", "arguments": json.dumps({})}}
    messages = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "user", "content": [{"type": "text", "text": "second"}]},
    ]
    conversation = read_conversation({"messages": messages})

    assert (conversation.question, conversation.results) == ("second", ())
