"""Answers OpenAI-style chat requests on loopback from a script, so that the examples run without a key or a network.

A script is a function from what the model was sent to what the model says. It sees only the messages of the request,
the tools' results among them, so a figure in its last answer can only be one that a tool really returned.
"""

from __future__ import annotations

import ast
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, TypeAlias

import httpx
from llama_index.llms.openai import OpenAI

BODY_MAX_BYTES = 4 << 20
"""A chat request of an example is some kilobytes; whoever sends more is not one of them."""


@dataclass(frozen=True, kw_only=True)
class Say:
    """The model answers in words."""

    text: str


@dataclass(frozen=True, kw_only=True)
class UseTool:
    """The model asks for one tool call."""

    name: str
    arguments: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    """What a tool that the model asked for has returned, as the text that the model is sent."""

    name: str
    content: str

    def value(self) -> object:
        """The Python value that the text stands for: agent frameworks send a tool's dict as its `repr`."""
        try:
            return ast.literal_eval(self.content)
        except (SyntaxError, ValueError):
            return None


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One request to the model, read."""

    question: str
    tools: frozenset[str]
    results: tuple[ToolResult, ...]

    def last_result_of(self, tool: str) -> ToolResult | None:
        return next((result for result in reversed(self.results) if result.name == tool), None)


Reply: TypeAlias = Say | UseTool
Script: TypeAlias = Callable[[Conversation], Reply]


def read_conversation(request: dict[str, Any]) -> Conversation:
    """The last question, the tools on offer and every tool result since then, in order."""
    question, names, results = "", dict[str, str](), list[ToolResult]()
    for message in request["messages"]:
        if message["role"] == "user":
            question, results = _text(message.get("content")), []
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool":
            results.append(ToolResult(name=names[message["tool_call_id"]], content=_text(message.get("content"))))
    tools = frozenset(tool["function"]["name"] for tool in request.get("tools") or ())
    return Conversation(question=question, tools=tools, results=tuple(results))


def completion(reply: Reply, *, number: int, model: str) -> dict[str, Any]:
    """The body of a `chat.completion` answer."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if isinstance(reply, Say):
        message["content"] = reply.text
    else:
        function = {"name": reply.name, "arguments": json.dumps(reply.arguments)}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    finish_reason = "stop" if isinstance(reply, Say) else "tool_calls"
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _text(content: str | list[dict[str, str]] | None) -> str:
    """A message's content is a string or a list of typed parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


class ScriptedOpenAI:
    """The endpoint. Leaving the `with` block ends its thread and closes its port."""

    MODEL = "gpt-4.1-mini"
    """The name of a model that LlamaIndex knows to call functions; nothing is sent to it."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="scripted-openai", daemon=True)
        self._lock = threading.Lock()
        self._answered = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def llm(self) -> OpenAI:
        """LlamaIndex's own OpenAI class, pointed at this endpoint past any proxy of the environment."""
        return OpenAI(
            model=self.MODEL,
            api_key="not-needed",
            api_base=self.base_url,
            max_retries=0,
            http_client=httpx.Client(trust_env=False),
            async_http_client=httpx.AsyncClient(trust_env=False),
        )

    def __enter__(self) -> ScriptedOpenAI:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body for one parsed request."""
        if request.get("stream"):
            return 400, _error("This endpoint answers whole messages: pass streaming=False to the agent.")
        with self._lock:
            self._answered += 1
            number = self._answered
        reply = self._script(read_conversation(request))
        return 200, completion(reply, number=number, model=str(request.get("model", self.MODEL)))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            """HTTP around `answer`; quiet, because the examples print their own audit trail."""

            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                if self.path != "/v1/chat/completions" or length > BODY_MAX_BYTES:
                    self.close_connection = True
                    return self._send(404, _error(f"There is no {self.path} here."))
                self._send(*endpoint.answer(json.loads(self.rfile.read(length))))

            def _send(self, status: int, body: dict[str, Any]) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                """Says nothing."""

        return Handler


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
