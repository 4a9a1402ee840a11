"""Where a sandbox goes, and why not elsewhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtimed.core.specs import Capacity, Shape
from runtimed.scheduler.placement import HostView, place


def host(name: str = "a", *, memory_mib: int = 8192, used_mib: int = 0, vcpu: int = 8, promised: int = 0) -> HostView:
    capacity = Capacity(
        vcpu_total=vcpu,
        vcpu_used=0,
        memory_total_mib=memory_mib,
        memory_used_mib=used_mib,
        machines=0,
        machines_max=100,
    )
    return HostView(name=name, capacity=capacity, promised=[shape(1024)] * promised)


def shape(memory_mib: int = 4096, vcpu: int = 1) -> Shape:
    return Shape(vcpu=vcpu, memory_mib=memory_mib, disk_mib=4096)


def test_the_host_with_the_most_memory_left_is_taken() -> None:
    assert place(shape(), [host("a", used_mib=2048), host("b")]).host == "b"


def test_what_is_promised_and_not_yet_running_counts() -> None:
    placement = place(shape(), [host(promised=5)])

    assert placement.host is None
    assert placement.rejected == {"a": "3072 MiB of memory free, 4096 asked"}
    assert placement.never == {}


def test_what_no_host_could_ever_give_is_named_by_its_field() -> None:
    placement = place(shape(9000, vcpu=9), [host()])

    assert placement.never.keys() == {"memoryMiB", "vcpu"}


def test_a_full_host_says_how_many_it_may_hold() -> None:
    full = Capacity(vcpu_total=8, vcpu_used=0, memory_total_mib=8192, memory_used_mib=0, machines=3, machines_max=3)

    assert "3 sandboxes" in place(shape(), [HostView(name="a", capacity=full)]).rejected["a"]


@given(
    asks=st.lists(st.builds(shape, st.integers(128, 8192), st.integers(1, 4)), max_size=40),
)
def test_a_host_is_never_promised_more_than_it_has(asks: list[Shape]) -> None:
    taken: list[Shape] = []
    for ask in asks:
        view = HostView(name="a", capacity=host().capacity, promised=tuple(taken))
        if place(ask, [view]).host:
            taken.append(ask)

    assert sum(s.memory_mib for s in taken) <= 8192
    assert sum(s.vcpu for s in taken) <= 8
