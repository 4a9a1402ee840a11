"""Asks a LlamaIndex agent for a figure that needs both a look into documents and a computation in a microVM.

    python examples/retrieval_and_compute.py [--chart net_revenue.png]
    OPENAI_API_KEY=... python examples/retrieval_and_compute.py --model gpt-4.1-mini

What counts as revenue, and when a quarter begins, stands in the handbook, behind a query engine. The sales are a file
in the sandbox, where pandas computes the figure and matplotlib draws the chart, which is then read back.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import zlib
from pathlib import Path
from string import Template

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.tools import FunctionTool, QueryEngineTool
from llama_index.llms.openai import OpenAI
from llamaindex_agent import add_model_option, ask, exit_code_of, introduce, language_model
from scripted_openai import Conversation, Reply, Say, UseTool

from withruntime import NotFoundError, Sandbox
from withruntime.tools import sandbox_tools

HERE = Path(__file__).parent
CHART = "/workspace/net_revenue.png"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

QUESTION = (
    "What was our net revenue in the first quarter of 2026? The handbook says what counts as net revenue and which "
    f"months a quarter has. Compute it with pandas from /workspace/sales.csv, and draw it with matplotlib to {CHART}."
)

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)

REPORT_PY = Template("""\
import matplotlib

matplotlib.use("Agg")
import pandas as pd

sales = pd.read_csv("sales.csv", parse_dates=["date"])
quarter = sales[sales["date"].dt.month.isin($months)]
sign = quarter["kind"].map({"sale": 1, "return": -1})
net = sign * quarter["units"] * quarter["gross_price"] / $tax_factor
by_month = net.groupby(quarter["date"].dt.strftime("%Y-%m")).sum()
by_month.plot.bar(title="Net revenue", rot=0).figure.savefig("$chart")
print(f"{by_month.sum():.2f}")
""")


class WordOverlap(BaseEmbedding):
    """Places a text by the words in it, so that retrieval needs no model; a real one goes in its place."""

    dimensions: int = 4096

    def _embed(self, text: str) -> list[float]:
        vector = [0.0] * self.dimensions
        for word in set(re.findall(r"[a-z]{4,}", text.lower())):
            vector[zlib.crc32(word.removesuffix("s").encode()) % self.dimensions] = 1.0
        return vector

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._embed(text)

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embed(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._embed(query)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_option(parser)
    parser.add_argument("--chart", type=Path, help="where to keep the chart (default: a new temporary folder)")
    options = parser.parse_args()
    with (
        language_model(options.model, script=analyst_script) as llm,
        Sandbox.create(timeout_seconds=900, on_lease_end="stop") as sbx,
    ):
        introduce(sbx)
        sbx.files.write("/workspace/sales.csv", (HERE / "sales.csv").read_bytes())
        agent = FunctionAgent(
            tools=[handbook_tool(llm), *(FunctionTool.from_defaults(fn=function) for function in sandbox_tools(sbx))],
            llm=llm,
            system_prompt="Look definitions up in the handbook and compute figures in the sandbox. Never guess either.",
            streaming=False,
        )
        asyncio.run(ask(agent, QUESTION))
        chart = read_chart(sbx)
    kept = options.chart or Path(tempfile.mkdtemp(prefix="runtime-example-")) / "net_revenue.png"
    kept.write_bytes(chart)
    print(f"chart: {kept} ({len(chart)} bytes, PNG)")
    return 0


def read_chart(sbx: Sandbox) -> bytes:
    """The chart that the agent was asked for; a model may have failed to draw it."""
    try:
        chart = sbx.files.read(CHART)
    except NotFoundError:
        sys.exit(f"The agent has made no {CHART}; the calls above show why.")
    if not chart.startswith(PNG_SIGNATURE):
        sys.exit(f"{CHART} is not a PNG: it begins with {chart[:8]!r}")
    return chart


def handbook_tool(llm: OpenAI) -> QueryEngineTool:
    """Retrieval over the handbook's pages; the model writes its answer from the two nearest."""
    pages = [
        Document(text=path.read_text(), metadata={"page": path.stem})
        for path in sorted((HERE / "handbook").glob("*.txt"))
    ]
    index = VectorStoreIndex.from_documents(pages, embed_model=WordOverlap())
    return QueryEngineTool.from_defaults(
        query_engine=index.as_query_engine(llm=llm, similarity_top_k=2),
        name="handbook",
        description="Answers questions about the company's own rules and definitions.",
    )


def analyst_script(conversation: Conversation) -> Reply:
    """Stands in for a language model: looks the rules up, writes a report from them, runs it, repeats its figure."""
    if not conversation.tools:
        return Say(text=_quoted_context(conversation.question))
    rules = conversation.last_result_of("handbook")
    written = conversation.last_result_of("runtime_write_file")
    ran = conversation.last_result_of("runtime_exec")
    if rules is None:
        return UseTool(
            name="handbook", arguments={"input": "How is net revenue counted, and which months has the first quarter?"}
        )
    months, tax_percent = _months_of_first_quarter(rules.content), _tax_percent(rules.content)
    if not months or tax_percent is None:
        return Say(text=f"The handbook does not say what I need: {rules.content}")
    if written is None:
        program = REPORT_PY.substitute(months=months, tax_factor=1 + tax_percent / 100, chart=CHART)
        return UseTool(name="runtime_write_file", arguments={"path": "report.py", "content": program})
    if ran is None:
        return UseTool(name="runtime_exec", arguments={"command": "python3 report.py", "timeout_seconds": 240})
    result = ran.value()
    if not isinstance(result, dict) or result["exit_code"] != 0:
        return Say(text=f"The report failed: {ran.content}")
    span = f"{MONTHS[months[0] - 1]} to {MONTHS[months[-1] - 1]}"
    figure = result["stdout"].strip()
    return Say(text=f"Net revenue of the first quarter ({span}, without {tax_percent} percent tax) was {figure} euros.")


def _quoted_context(prompt: str) -> str:
    """The passages between the two rules of LlamaIndex's prompt, without their metadata lines."""
    passages = prompt.split("---------------------")[1]
    return " ".join(line for line in passages.splitlines() if line and not line.startswith("page: "))


def _months_of_first_quarter(rules: str) -> list[int]:
    sentence = re.search(r"first quarter is ([^.]*)\.", rules)
    return [number for number, name in enumerate(MONTHS, start=1) if sentence and name in sentence[1]]


def _tax_percent(rules: str) -> int | None:
    found = re.search(r"tax of (\d+) percent", rules)
    return int(found[1]) if found else None


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
