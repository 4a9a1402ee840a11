"""Asks a LlamaIndex agent to write a program into a microVM, run it there and answer with what it printed.

    python examples/llamaindex_agent.py                          a scripted model on loopback: no key, no network
    OPENAI_API_KEY=... python examples/llamaindex_agent.py --model gpt-4.1-mini

The agent has four tools, all bound to one sandbox. Each call is printed as it returns: the audit trail.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping

from llama_index.core.agent.workflow import FunctionAgent, ToolCallResult
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAI
from scripted_openai import Conversation, Reply, Say, Script, ScriptedOpenAI, UseTool

import withruntime
from withruntime import Sandbox
from withruntime.tools import sandbox_tools

QUESTION = (
    "How many words does this sandbox's own /etc/os-release have? "
    "Write a Python program words.py that counts them, and run it."
)

WORDS_PY = """\
from pathlib import Path

release = Path("/etc/os-release")
words = release.read_text().split()
print(f"{release} has {len(words)} words")
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_option(parser)
    options = parser.parse_args()
    with (
        language_model(options.model, script=counting_script) as llm,
        Sandbox.create(timeout_seconds=900, on_lease_end="stop") as sbx,
    ):
        introduce(sbx)
        agent = FunctionAgent(
            tools=[FunctionTool.from_defaults(fn=function) for function in sandbox_tools(sbx)],
            llm=llm,
            system_prompt="You answer by running code in a sandbox. Never guess a figure that you can compute.",
            streaming=False,
        )
        asyncio.run(ask(agent, QUESTION))
    return 0


def counting_script(conversation: Conversation) -> Reply:
    """Stands in for a language model: writes the program, runs it, repeats what it printed."""
    written = conversation.last_result_of("runtime_write_file")
    ran = conversation.last_result_of("runtime_exec")
    if written is None:
        return UseTool(name="runtime_write_file", arguments={"path": "words.py", "content": WORDS_PY})
    if not written.content.startswith("Wrote "):
        return Say(text=f"I could not write the program: {written.content}")
    if ran is None:
        return UseTool(name="runtime_exec", arguments={"command": "python3 words.py"})
    result = ran.value()
    if not isinstance(result, dict) or result["exit_code"] != 0:
        return Say(text=f"The program failed: {ran.content}")
    return Say(text=f"I counted: {result['stdout'].strip()}.")


async def ask(agent: FunctionAgent, question: str) -> str:
    """Run the agent to its answer, printing the question, every tool call with its result, and the answer."""
    print(f"question: {question}\n")
    run = agent.run(question)
    number = 0
    async for event in run.stream_events():
        if isinstance(event, ToolCallResult):
            number += 1
            print(f"[{number}] {event.tool_name}({_arguments(event.tool_kwargs)})")
            print(f"    -> {_shortened(event.tool_output.content)}", flush=True)
    answer = str(await run)
    print(f"\nanswer: {answer}", flush=True)
    return answer


def exit_code_of(main: Callable[[], int]) -> int:
    """Run a program; a service that cannot be used is told in its own words, which name the way out."""
    try:
        return main()
    except withruntime.RuntimeError as error:
        print(error, file=sys.stderr)
        return 1


def introduce(sbx: Sandbox) -> None:
    """Say which kernel the agent's code will meet: not the host's."""
    guest = sbx.exec(["uname", "-r"]).stdout.strip()
    print(f"sandbox {sbx.id}: Linux {guest} (this host runs Linux {os.uname().release})")


def add_model_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="an OpenAI model to ask, with OPENAI_API_KEY set; without it a script answers")


@contextlib.contextmanager
def language_model(name: str | None, *, script: Script) -> Iterator[OpenAI]:
    """The model that was named, or the script behind the same class of LlamaIndex."""
    if name is None:
        with ScriptedOpenAI(script) as endpoint:
            yield endpoint.llm()
        return
    if not os.environ.get("OPENAI_API_KEY"):
        sys.exit("--model asks a real model: set OPENAI_API_KEY, or leave --model out to use the scripted one.")
    yield OpenAI(model=name)


def _arguments(arguments: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={_shortened(repr(value))}" for name, value in arguments.items())


def _shortened(text: str, *, most_chars: int = 160) -> str:
    return text if len(text) <= most_chars else f"{text[:most_chars]}... ({len(text)} characters)"


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
