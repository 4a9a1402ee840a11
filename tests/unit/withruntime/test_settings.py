"""Where the key comes from."""

import hashlib
import json
from pathlib import Path

import pytest

from withruntime import Runtime
from withruntime._errors import AuthenticationError
from withruntime._settings import AUTH_ORIGIN, remote_endpoint

ORIGIN = "https://api.example.org"
KEY = f"rtcloud_{'a' * 36}_{'B' * 43}"


def saved_login(config: Path, key: str = KEY, **more: object) -> dict[str, str]:
    name = hashlib.sha256(f"{AUTH_ORIGIN}\n{ORIGIN}".encode()).hexdigest()
    path = config / "runtime-cloud" / f"{name}.json"
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_text(json.dumps({"apiOrigin": ORIGIN, "key": key, **more}))
    path.chmod(0o600)
    return {"XDG_CONFIG_HOME": str(config), "RUNTIME_STATE_DIR": str(config / "no-state")}


def test_the_argument_wins_over_the_environment_and_that_over_the_saved_login(tmp_path: Path):
    env = saved_login(tmp_path)

    assert remote_endpoint(ORIGIN, "arg", {**env, "RUNTIME_API_KEY": "env"}).api_key == "arg"
    assert remote_endpoint(ORIGIN, None, {**env, "RUNTIME_API_KEY": "env"}).api_key == "env"
    assert remote_endpoint(ORIGIN, None, env).api_key == KEY


@pytest.mark.parametrize("more", [{"key": "rtcloud_short"}, {"apiOrigin": "https://elsewhere.example"}])
def test_a_saved_login_of_another_shape_or_service_is_not_used(tmp_path: Path, more: dict):
    with pytest.raises(AuthenticationError) as refused:
        remote_endpoint(ORIGIN, None, saved_login(tmp_path, **more))

    assert refused.value.code == "missing_api_key"
    assert "RUNTIME_API_KEY" in (refused.value.hint or "")


def test_a_saved_login_that_others_can_read_is_not_used(tmp_path: Path):
    env = saved_login(tmp_path)
    next((tmp_path / "runtime-cloud").iterdir()).chmod(0o644)
    with pytest.raises(AuthenticationError):
        remote_endpoint(ORIGIN, None, env)


def test_a_key_with_white_space_is_refused_before_it_breaks_a_header():
    with pytest.raises(AuthenticationError, match="white space"):
        remote_endpoint(ORIGIN, "a\nb", {})


def test_a_client_without_a_key_says_so_on_first_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RUNTIME_API_KEY")
    client = Runtime()
    with pytest.raises(AuthenticationError):
        client.me()


def test_proxies_are_asked_for_other_machines_and_never_for_this_one():
    assert not remote_endpoint(ORIGIN, "k", {}).loopback
    assert all(
        remote_endpoint(url, "k", {}).loopback
        for url in ("http://localhost:1", "http://127.0.0.1", "https://[::1]:8", "https://localhost")
    )


@pytest.mark.parametrize("key", ["rtcloud_\u00fc", "rtcloud_\x00", "rtcloud_\ud800"])
def test_a_key_with_a_character_that_no_key_has_is_told_so(key: str) -> None:
    with pytest.raises(AuthenticationError, match="holds a character that no key has") as refused:
        remote_endpoint("https://runtime.example.org", key, {})

    assert "RUNTIME_API_KEY" in str(refused.value.hint)
