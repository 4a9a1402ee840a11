"""Reads the operator's list of images and shapes that are to have spares: `1x1024x3072=2, tools:2x4096x4096=1`."""

from __future__ import annotations

import re

from runtimed.core.limits import (
    DISK_MAX_MIB,
    DISK_MIN_MIB,
    MEMORY_MAX_MIB,
    MEMORY_MIN_MIB,
    VCPU_MAX,
    VCPU_MIN,
)
from runtimed.core.specs import Shape, SpareOrder

COUNT_MAX = 64
_ITEM = re.compile(r"(?:(?P<image>.+):)?(?P<vcpu>\d+)x(?P<memory>\d+)x(?P<disk>\d+)=(?P<count>\d+)")


def read_spares(text: str) -> tuple[SpareOrder, ...]:
    """`[IMAGE:]VCPUxMEMORYxDISK=COUNT` by comma, memory and disk in MiB; no image is the default one.

    Raises:
        ValueError: names every item that is wrong, and how.
    """
    orders: list[SpareOrder] = []
    wrong: list[str] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        found = _ITEM.fullmatch(item)
        if found is None:
            wrong.append(f"{item!r} is not [IMAGE:]VCPUxMEMORYxDISK=COUNT, such as 1x1024x3072=2")
            continue
        vcpu, memory_mib, disk_mib, count = (int(found[name]) for name in ("vcpu", "memory", "disk", "count"))
        for what, value, low, high in (
            ("vCPU", vcpu, VCPU_MIN, VCPU_MAX),
            ("MiB memory", memory_mib, MEMORY_MIN_MIB, MEMORY_MAX_MIB),
            ("MiB disk", disk_mib, DISK_MIN_MIB, DISK_MAX_MIB),
            ("spares", count, 1, COUNT_MAX),
        ):
            if not low <= value <= high:
                wrong.append(f"{item!r}: {value} {what} is not within {low} to {high}")
        shape = Shape(vcpu=vcpu, memory_mib=memory_mib, disk_mib=disk_mib)
        image = (found["image"] or "").strip()
        if any((order.image, order.shape) == (image, shape) for order in orders):
            wrong.append(f"{item!r} is there twice")
        orders.append(SpareOrder(image=image, shape=shape, count=count))
    if wrong:
        raise ValueError("; ".join(wrong))
    return tuple(orders)
