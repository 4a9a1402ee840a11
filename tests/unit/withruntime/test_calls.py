"""What is sent, as values."""

from typing import Any

import pytest

from withruntime import _calls, _file_calls
from withruntime._settings import check_origin


def test_an_id_is_one_part_of_a_path_whatever_is_in_it():
    assert _calls.get_sandbox("a/../b?c#d e").path == "/v1/sandboxes/a%2F..%2Fb%3Fc%23d%20e"


def test_an_empty_id_is_not_the_list():
    with pytest.raises(ValueError, match="must not be empty"):
        _calls.delete_sandbox("")


def test_a_query_leaves_out_what_is_none_and_repeats_what_is_a_list():
    path = _calls.with_query("/x", {"a": None, "b": [1, 2], "c": True, "d": "a b&c"})

    assert path == "/x?b=1&b=2&c=true&d=a+b%26c"


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("memory_mib", "memoryMiB"),
        ("cpu_floor_millis", "cpuFloorMillis"),
        ("name", "name"),
        ("on_timeout", "onTimeout"),
    ],
)
def test_names_on_the_wire_keep_the_spelling_of_units(name: str, wire: str):
    assert _calls.camel(name) == wire


@pytest.mark.parametrize("key", ["", "-a", "a b", "a" * 129, "é", "a\n"])
def test_a_key_that_the_service_would_refuse_is_refused_here(key: str):
    with pytest.raises(ValueError, match="idempotency key"):
        _calls.checked_key(key)


def test_every_change_has_a_key_and_no_read_has_one():
    spec = _calls.CommandSpec(command="x")
    changes = [
        _calls.create_sandbox({}, key=None, wait=True, room_wait_s=0),
        _calls.delete_sandbox("a"),
        _calls.change_sandbox("a", "stop"),
        _calls.exec_buffered("a", spec, key=None),
        _calls.exec_streamed("a", spec, key=None),
        _calls.spawn("a", _calls.SpawnSpec(command=spec)),
    ]

    assert all(call.idempotency_key for call in changes)
    assert _calls.get_sandbox("a").idempotency_key is None
    assert "Idempotency-Key" not in _calls.follow_output("a", "p", 0).headers()


def test_a_command_with_nothing_asked_for_says_only_the_command():
    assert _calls.CommandSpec(command="x").body() == {"command": "x"}
    assert _calls.CommandSpec(command="x", env={}, stdin="").body() == {"command": "x", "env": {}, "stdin": ""}


def test_rules_without_a_list_and_with_an_empty_one_are_not_the_same():
    assert _calls.NetworkRules(internet=True).body() == {"internet": True}
    assert _calls.NetworkRules(internet=True, allow=[]).body() == {"internet": True, "allow": []}


@pytest.mark.parametrize(
    "url", ["https://api.example.org", "http://localhost:8080/", "http://127.0.0.1", "http://[::1]:1"]
)
def test_an_address_that_is_safe_to_send_a_key_to(url: str):
    assert check_origin(url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org",
        "http://0.0.0.0",
        "http://x.localhost",
        "https://example.org/prefix",
        "https://u:p@example.org",
        "https://example.org?x=1",
        "ftp://localhost",
        "localhost:8080",
        "https://runtime.internal",
    ],
)
def test_an_address_that_is_not(url: str):
    with pytest.raises(ValueError):
        check_origin(url)


@pytest.mark.parametrize("text", [".", "..", "", "a\ud800"])
def test_what_cannot_be_an_id_is_refused_before_anything_is_sent(text: str) -> None:
    with pytest.raises(ValueError, match="id"):
        _calls.get_sandbox(text)


def test_an_id_that_is_no_text_is_told_so() -> None:
    with pytest.raises(TypeError, match="an id is text, not int"):
        _calls.get_sandbox(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "kind", "told"),
    [
        ({"env": {"A": b"1"}}, TypeError, "env cannot be sent"),
        ({"labels": {1, 2}}, TypeError, "labels cannot be sent"),
        ({"timeout_seconds": float("nan")}, ValueError, "timeoutSeconds cannot be sent"),
    ],
)
def test_a_field_that_json_cannot_hold_is_named(fields: dict[str, Any], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        _calls.create_sandbox(fields, key=None, wait=False, room_wait_s=0)


def test_half_a_character_in_a_query_is_told_by_its_name() -> None:
    with pytest.raises(ValueError, match="path is not UTF-8 text"):
        _file_calls.read("sbx", "/workspace/\ud800")


def test_a_command_that_is_neither_text_nor_words_is_told_so() -> None:
    with pytest.raises(TypeError, match="a command is text for a shell or a list of words, not int"):
        _calls.CommandSpec(command=5).body()  # type: ignore[arg-type]
