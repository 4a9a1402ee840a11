"""Keeps the chain of a machine's disks short: what forks and snapshots have left below it becomes its own again."""

from __future__ import annotations

import asyncio
import contextlib

from qemu.qmp import QMPError

from runtimed.core.errors import HostUnavailable
from runtimed.node.vmm.base import MachinePlan
from runtimed.node.vmm.qmp import monitor

LAYERS_MAX = 8
"""Each fork and each snapshot of a running machine leaves a layer; a chain of some hundred does not start any more."""
FLATTEN_S = 120.0
_JOB = "flatten"


async def flatten(plan: MachinePlan) -> None:
    """Copy a running machine's layers into its own disk, while it runs on; it lies above its template's disk then.

    Others may lie above the layers: these stay as they are.

    Raises:
        HostUnavailable, OSError, TimeoutError: the chain is as it was, or that long and of use all the same.
    """
    async with asyncio.timeout(FLATTEN_S), monitor(plan.own) as qmp:
        node = active_node(await qmp.execute("query-block"))
        await qmp.execute("block-stream", {"job-id": _JOB, "device": node, "base-node": "saved"})
        try:
            while await qmp.execute("query-block-jobs"):  # noqa: ASYNC110 - one look at an answer; there is no other job
                await asyncio.sleep(0.01)
        except BaseException:
            with contextlib.suppress(QMPError):
                await qmp.execute("block-job-cancel", {"device": _JOB})
            raise
        if _depth(await qmp.execute("query-block")) != 2:  # the template's and the image's
            raise HostUnavailable("the layers of the machine's disk could not be copied into it")
        for old in _names(await qmp.execute("query-named-block-nodes")):
            if old != node and old.startswith(("layer", "disk")):
                with contextlib.suppress(QMPError):
                    await qmp.execute("blockdev-del", {"node-name": old})


def active_node(blocks: object) -> str:
    """The block node that the guest writes to, from `query-block`."""
    return str(_disk(blocks)["node-name"])


def _depth(blocks: object) -> int:
    return int(str(_disk(blocks).get("backing_file_depth", -1)))


def _disk(blocks: object) -> dict[str, object]:
    for block in blocks if isinstance(blocks, list) else []:
        inserted = block.get("inserted") or {}
        if str(inserted.get("node-name", "")).startswith("disk"):
            return dict(inserted)
    raise HostUnavailable("QEMU does not know the machine's disk any more")


def _names(nodes: object) -> list[str]:
    known = nodes if isinstance(nodes, list) else []
    return [str(node.get("node-name", "")) for node in known if isinstance(node, dict)]
