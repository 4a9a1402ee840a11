"""What the rules allow and refuse, and what no rule can open."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimed.core.network import EgressRules, WrittenRules, canonical_name, read_host, read_rules
from runtimed.egress.policy import Policy
from runtimed.egress.ranges import Ground, read_ranges


def policy(*, internet=True, allow=None, deny=(), connect=(), ground=None) -> Policy:
    rules, wrong = read_rules(WrittenRules(internet=internet, allow=allow, deny=deny, connect=connect))
    assert wrong == []
    return Policy(rules, ground or Ground())


def allows(judge: Policy, host: str, port: int = 443) -> bool:
    return judge.judge(read_host(host), port).allowed


def test_no_list_allows_every_public_host() -> None:
    assert allows(policy(), "example.test") and allows(policy(), "1.1.1.1") and allows(policy(), "2606:4700::1111")


def test_nw_11_an_empty_list_allows_nothing_and_no_list_allows_all() -> None:
    assert not allows(policy(allow=[]), "example.test")
    assert not allows(policy(allow=[]), "1.1.1.1")
    assert allows(policy(allow=None), "example.test")


def test_no_internet_refuses_everything_and_says_so() -> None:
    verdict = policy(internet=False).judge("example.test", 443)

    assert (verdict.allowed, verdict.rule) == (False, "internet: false")


def test_no_internet_with_a_list_is_that_list_alone() -> None:
    rules, _ = read_rules(WrittenRules(internet=False, allow=["a.test"]))

    assert rules.as_json() == {"internet": True, "allow": ["a.test"]}


def test_a_wildcard_is_every_name_under_it_and_not_itself() -> None:
    judge = policy(allow=["*.example.test"])

    assert allows(judge, "a.example.test") and allows(judge, "a.b.EXAMPLE.test.")
    assert not allows(judge, "example.test") and not allows(judge, "badexample.test")


def test_deny_wins_over_allow_and_names_its_rule() -> None:
    judge = policy(allow=["*.a.test", "b.test"], deny=["x.a.test"])

    assert judge.judge("x.a.test", 443).rule == "deny: x.a.test"
    assert allows(judge, "y.a.test")


def test_connect_adds_one_port_of_a_host() -> None:
    judge = policy(allow=["a.test"], connect=["db.test:5432"])

    assert allows(judge, "db.test", 5432) and not allows(judge, "db.test", 443)


def test_nw_27_a_rule_with_a_port_is_for_that_port() -> None:
    judge = policy(allow=["a.test:8443", "[2606:4700::1]:443", "1.1.1.1:53000"])

    assert allows(judge, "a.test", 8443) and not allows(judge, "a.test", 443)
    assert allows(judge, "2606:4700::1", 443) and allows(judge, "1.1.1.1", 53000) and not allows(judge, "1.1.1.1", 80)


@pytest.mark.parametrize(
    ("rule", "inside", "outside"),
    [
        ("0.0.0.0/0", "1.1.1.1", "2606:4700::1111"),
        ("::/0", "2606:4700::1111", "1.1.1.1"),
        ("1.1.1.1/32", "1.1.1.1", "1.1.1.2"),
        ("1.1.1.1", "1.1.1.1", "1.1.1.0"),
        ("128.0.0.0/1", "200.1.1.1", "100.0.0.1"),
        ("2606:4700::/127", "2606:4700::1", "2606:4700::2"),
    ],
)
def test_nw_13_ranges_at_their_edges(rule: str, inside: str, outside: str) -> None:
    judge = policy(allow=[rule])

    assert allows(judge, inside) and not allows(judge, outside)


def test_nw_13_the_last_addresses_are_a_good_rule_and_stay_refused() -> None:
    for rule in ("240.0.0.0/4", "255.255.255.255/32", "255.255.255.0/24"):
        assert not allows(policy(allow=[rule]), "255.255.255.255")
        assert not allows(policy(deny=[rule]), "255.255.255.255")


def test_all_addresses_allow_names_whose_addresses_they_hold() -> None:
    judge = policy(allow=["0.0.0.0/0"])

    assert allows(judge, "example.test")
    assert judge.judge_address("example.test", ipaddress.ip_address("1.1.1.1"), 443).allowed
    assert not judge.judge_address("example.test", ipaddress.ip_address("2606:4700::1"), 443).allowed


def test_a_smaller_range_lets_no_name_through() -> None:
    assert not allows(policy(allow=["1.1.1.0/24"]), "one.test")


def test_denied_addresses_are_refused_to_allowed_names() -> None:
    judge = policy(allow=["a.test"], deny=["1.1.1.0/24"])

    assert allows(judge, "a.test")
    assert judge.judge_address("a.test", ipaddress.ip_address("1.1.1.9"), 443).rule == "deny: 1.1.1.0/24"


def test_denying_all_addresses_refuses_names_before_anybody_is_asked() -> None:
    assert not allows(policy(deny=["0.0.0.0/0", "::/0"]), "a.test")


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.255.255.255", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1"),
        *("169.254.169.254", "168.63.129.16", "192.0.0.192", "0.0.0.0", "0.1.2.3", "224.0.0.1", "240.0.0.1"),
        *("255.255.255.255", "192.0.2.1", "198.51.100.1", "203.0.113.1", "198.18.0.1", "198.19.255.255", "192.88.99.1"),
        *("::", "::1", "::ffff:1.1.1.1", "::ffff:127.0.0.1", "::1.1.1.1", "::ffff:0:1.1.1.1", "64:ff9b::1.1.1.1"),
        *("64:ff9b:1::1", "2002:7f00:1::", "2002:101:101::1", "2001::1", "2001:0:4136:e378::1", "2001:db8::1"),
        *("fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "100::1", "5f00::1", "3fff::1", "4000::1"),
        *("2001:2::1", "1::1"),
    ],
)
def test_what_is_never_public_is_refused_in_every_spelling(address: str) -> None:
    for judge in (policy(), policy(allow=[address]), policy(allow=["0.0.0.0/0", "::/0"])):
        assert not judge.judge(read_host(address), 443).allowed
        assert not judge.judge_address("a.test", ipaddress.ip_address(address), 443).allowed


@given(st.ip_addresses(v=4))
def test_every_mapped_spelling_of_an_ipv4_address_is_refused(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    spellings = [
        ipaddress.IPv6Address(0xFFFF << 32 | number),
        ipaddress.IPv6Address(number),
        ipaddress.IPv6Address(0x64FF9B << 96 | number),
        ipaddress.IPv6Address(0x2002 << 112 | number << 80),
        ipaddress.IPv6Address(0x20010000 << 96 | (number ^ 0xFFFFFFFF)),
    ]

    assert not any(policy().judge(spelling, 443).allowed for spelling in spellings)


@given(st.ip_addresses())
def test_what_python_calls_private_is_never_reached(address) -> None:
    public = address.is_global and not address.is_multicast

    assert public or not policy().judge(address, 443).allowed


def test_the_operator_opens_a_range_and_nothing_else() -> None:
    ground = Ground(open_ranges=read_ranges("10.1.0.0/16, 192.0.2.0/24"))

    assert allows(policy(ground=ground), "10.1.2.3") and not allows(policy(ground=ground), "10.2.0.1")


@pytest.mark.parametrize("port", [23, 25, 53, 111, 135, 139, 194, 445, 465, 587, 6667, 6697])
def test_some_ports_are_refused_whatever_the_rules_say(port: int) -> None:
    assert not allows(policy(), "a.test", port)
    assert not allows(policy(connect=[f"a.test:{port}"]), "a.test", port)
    assert allows(policy(ground=Ground(open_ports=frozenset({port}))), "a.test", port)


@pytest.mark.parametrize("name", ["localhost", "a.localhost", "metadata.google.internal"])
def test_names_of_the_host_and_of_metadata_are_refused(name: str) -> None:
    assert not allows(policy(), name)


@pytest.mark.parametrize(
    "rule",
    [
        *("", "*", "*.", "a..b", "-a.test", "a b", "https://a.test", "a.test/path", "a.test:0", "a.test:65536"),
        *(
            "1.2.3",
            "1.2.3.4/33",
            "0x7f.1",
            "127.1",
            "*.1.2.3.4",
            "a.*.test",
            "**.a.test",
            "[::1",
            "::1]:3",
            "a@b",
            "a:b",
        ),
        *("x" * 64 + ".test", ".".join(["a" * 60] * 5)),
    ],
)
def test_a_wrong_rule_is_named(rule: str) -> None:
    _, wrong = read_rules(WrittenRules(internet=True, allow=["fine.test", rule]), field_name="network")

    assert [issue["field"] for issue in wrong] == ["network.allow.1"]


def test_every_wrong_rule_is_named_at_once() -> None:
    _, wrong = read_rules(WrittenRules(internet=True, allow=["*"], deny=["a b"], connect=["a.test"]))

    assert [issue["field"] for issue in wrong] == ["allow.0", "deny.0", "connect.0"]


@pytest.mark.parametrize("text", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "1.2.3.4.", "1.2.3.0x4", ""])
def test_an_address_in_an_odd_spelling_is_no_host_at_all(text: str) -> None:
    with pytest.raises(ValueError):
        read_host(text)


def test_names_that_are_written_differently_are_one() -> None:
    assert canonical_name("B\u00fccher.Example.TEST.") == "xn--bcher-kva.example.test"


@given(st.text(max_size=40))
def test_reading_a_rule_never_fails_otherwise(text: str) -> None:
    rules, wrong = read_rules(WrittenRules(internet=True, allow=[text]))

    assert wrong or isinstance(rules, EgressRules)


def test_a_name_may_be_looked_up_when_some_port_of_it_may_be_reached() -> None:
    assert policy(allow=[], connect=["db.test:5432"]).judge_query("db.test").allowed
    assert policy(deny=["db.test:443"]).judge_query("db.test").allowed
    assert not policy(allow=["a.test"]).judge_query("b.test").allowed
