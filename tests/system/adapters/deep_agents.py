"""Runs a Deep Agent with a scripted model on the published backend, and prints as JSON what it was told."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys

from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_withruntime import RuntimeProvider, RuntimeSandbox

CALLS = [
    ("write_file", {"file_path": "/workspace/w.py", "content": "print('é', 6*7)\n"}),
    ("execute", {"command": "python3 w.py"}),
    ("read_file", {"file_path": "/workspace/w.py"}),
    ("edit_file", {"file_path": "/workspace/w.py", "old_string": "6*7", "new_string": "7*8"}),
    ("execute", {"command": "python3 w.py; ls /none"}),
    ("ls", {"path": "/workspace"}),
    ("glob", {"pattern": "*.py", "path": "/workspace"}),
    ("grep", {"pattern": "print", "path": "/workspace"}),
]


class Scripted(GenericFakeChatModel):
    """A model that makes the calls it was given."""

    def bind_tools(self, tools: object, **options: object) -> Scripted:
        return self


def agent_on(backend: RuntimeSandbox) -> list[str]:
    """What the tools said to the model."""
    calls = [
        AIMessage(content="", tool_calls=[{"name": name, "args": args, "id": f"call-{number}"}])
        for number, (name, args) in enumerate(CALLS)
    ]
    model = Scripted(messages=iter([*calls, AIMessage(content="done")]))
    ran = create_deep_agent(model=model, backend=backend).invoke({"messages": [("user", "Go.")]})
    return [message.content for message in ran["messages"] if isinstance(message, ToolMessage)]


def files_of(backend: RuntimeSandbox, told: dict[str, object]) -> None:
    large = os.urandom(3 * 1024 * 1024 + 7)
    sent = {
        "small": ("/workspace/small", bytes(range(256))),
        "empty": ("/workspace/empty", b""),
        "odd name": ("/workspace/d/e f'\"é\n.txt", b"x"),
        "large": ("/workspace/large", large),
        "elsewhere": ("/tmp/out/large", large),
    }
    up = backend.upload_files(list(sent.values()))
    down = backend.download_files([path for path, _ in sent.values()])
    told["up and down"] = {
        name: up[at].error is None and down[at].content == content
        for at, (name, (_, content)) in enumerate(sent.items())
    }
    locked = "/workspace/locked"
    backend.execute(f"echo x > {locked} && chmod 000 {locked}")
    wrong = ["/etc/no", "relative", "/tmp", locked]
    told["errors up"] = [answer.error for answer in backend.upload_files([(path, b"x") for path in wrong])]
    wrong = ["/workspace/none", "/tmp/none", "/workspace/d", "/etc", locked]
    told["errors down"] = [answer.error for answer in backend.download_files(wrong)]
    told["left behind"] = backend.execute("ls -A /workspace/.deepagents-staging").output


def main() -> None:
    told: dict[str, object] = {"client": importlib.metadata.version("withruntime")}
    provider = RuntimeProvider()
    backend = provider.get_or_create(timeout=600, labels={"created_by": "deep-agents"})
    told["said"] = agent_on(backend)
    files_of(backend, told)
    long = backend.execute("seq 1 100000; seq 1 20000 >&2")
    told["long output"] = [len(long.output), long.exit_code, long.truncated]
    late = backend.execute("echo part; sleep 60", timeout=1)
    told["late"] = [late.output, late.exit_code]
    told["found again"] = provider.get_or_create(sandbox_id=backend.id).execute("echo same").output
    try:
        provider.get_or_create(sandbox_id="00000000-0000-4000-8000-000000000000")
    except KeyError as error:
        told["unknown"] = type(error).__name__
    provider.delete(sandbox_id=backend.id)
    told["deleted"] = provider.client.sandboxes.get(backend.id).state
    print(json.dumps(told))


sys.exit(main())
