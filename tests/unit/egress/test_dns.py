"""DNS questions are answered by the gateway, with addresses that stand for names."""

from __future__ import annotations

import ipaddress
import random
import string

import dns.message
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimed.egress import dns as answers
from runtimed.egress.names import ODD_LABELS_A_MINUTE, POOL, QUERIES_AT_ONCE, QueryLimit, StandIns, looks_random


def asked(name: str, kind: str = "A") -> answers.Question:
    return answers.read_query(dns.message.make_query(name, kind).to_wire())


def test_an_answer_is_the_address_that_stands_for_the_name() -> None:
    address = StandIns(b"salt").address("api.test")
    answer = dns.message.from_wire(answers.stands_for(asked("API.test"), address))

    assert [record.address for record in answer.answer[0]] == [str(address)] and address in POOL


@pytest.mark.parametrize("kind", ["AAAA", "HTTPS", "SVCB", "MX", "TXT", "ANY"])
def test_other_kinds_of_records_do_not_exist(kind: str) -> None:
    question = asked("api.test", kind)
    answer = dns.message.from_wire(answers.nothing(question))

    assert not question.wants_address and not answer.answer and answer.rcode() == dns.rcode.NOERROR


def test_a_refused_name_does_not_exist() -> None:
    assert dns.message.from_wire(answers.refused(asked("x.test"))).rcode() == dns.rcode.NXDOMAIN


def test_what_is_no_host_name_has_no_name() -> None:
    assert asked("a b.test").name is None and asked("1.2.3.4").name is None


@given(st.binary(max_size=120))
def test_any_bytes_are_a_question_or_refused(data: bytes) -> None:
    try:
        answers.read_query(data)
    except answers.BadQuery:
        pass


@given(st.lists(st.from_regex(r"[a-z]{1,8}\.test", fullmatch=True), min_size=1, max_size=200))
def test_each_name_has_an_address_of_its_own_that_finds_it(names: list[str]) -> None:
    known = StandIns(b"salt")
    found = {name: known.address(name) for name in names}

    assert len(set(found.values())) == len(found)
    assert all(known.name(address) == name for name, address in found.items())


def test_an_address_that_stands_for_nothing_has_no_name() -> None:
    assert StandIns(b"s").name(ipaddress.ip_address("198.18.0.9")) is None


def test_other_sandboxes_have_other_addresses() -> None:
    assert StandIns(b"one").address("api.test") != StandIns(b"two").address("api.test")


def test_nw_03_random_labels_under_a_wildcard_are_capped_and_ordinary_ones_are_not() -> None:
    limit, rng = QueryLimit(), random.Random(7)
    labels = ["".join(rng.choices(string.ascii_lowercase + string.digits, k=32)) for _ in range(200)]
    refused = [limit.why_not(f"{x}.cdn.test", wildcard="cdn.test", now_s=1 + i) for i, x in enumerate(labels[:100])]

    assert refused[:ODD_LABELS_A_MINUTE] == [None] * ODD_LABELS_A_MINUTE and any(refused)
    assert limit.why_not("www.cdn.test", wildcard="cdn.test", now_s=101) is None
    assert limit.why_not(f"{labels[0]}.cdn.test", wildcard="cdn.test", now_s=101) is None


def test_nw_03_questions_are_capped_a_second() -> None:
    limit = QueryLimit()
    refused = [limit.why_not("a.test", wildcard=None, now_s=1.0) for _ in range(QUERIES_AT_ONCE + 1)]

    assert refused[:-1] == [None] * QUERIES_AT_ONCE and refused[-1] is not None
    assert limit.why_not("a.test", wildcard=None, now_s=3.0) is None


def test_hosts_of_real_services_do_not_look_random() -> None:
    for label in ("files", "api-inference", "objects-origin", "raw", "production.cloudflare.docker"):
        assert not looks_random(label)
    assert looks_random("mzxw6ytboi2gk3tfnzxw6ytboi2gk3tf")
