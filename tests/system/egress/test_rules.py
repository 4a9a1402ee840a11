"""What the rules of a sandbox do to real programs in a real machine."""

from __future__ import annotations

import threading
import time

import pytest

from withruntime import InvalidRequestError, Sandbox

from .fixtures import EgressService
from .world import TestWorld, until

pytestmark = pytest.mark.system


def run(sandbox: Sandbox, command: str, **options) -> tuple[int, str]:
    done = sandbox.exec(command, **options)
    return done.exit_code, done.stdout + done.stderr


@pytest.mark.parametrize("url", ["http://allowed.test/a", "https://allowed.test/a"])
@pytest.mark.parametrize("how", ["curl -sS -m 20", "curl -sS -m 20 --noproxy '*'"])
def test_an_allowed_host_is_reached_with_and_without_a_proxy(
    fresh: Sandbox, world: TestWorld, url: str, how: str
) -> None:
    fresh.files.write("/tmp/roots.pem", world.roots.read_bytes())
    fresh.network.set(internet=True, allow=["allowed.test"])

    assert run(fresh, f"{how} --cacert /tmp/roots.pem {url}") == (0, "hello from allowed.test to GET /a\n")


def test_a_refusal_over_http_names_the_rule(fresh: Sandbox) -> None:
    fresh.network.set(internet=True, allow=["allowed.test"])
    by_proxy = run(fresh, "curl -s -m 20 http://other.test/")
    by_address = run(fresh, "curl -s -m 20 --noproxy '*' http://198.51.100.20/")

    assert by_proxy[1] == "Runtime: other.test:80 is refused: not in allow\n"
    assert by_address[1] == "Runtime: 198.51.100.20:80 is refused: not in allow\n"


def test_nw_09_a_refused_name_fails_fast_in_the_c_library(fresh: Sandbox) -> None:
    fresh.network.set(internet=True, allow=["allowed.test"])
    code, said = run(fresh, "time -p getent ahosts other.test")

    assert code == 2 and float(said.split("real ")[1].split()[0]) < 4


def test_every_command_process_terminal_and_login_shell_has_the_variables(fresh: Sandbox) -> None:
    names = "HTTP_PROXY HTTPS_PROXY NO_PROXY SSL_CERT_FILE REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS GIT_SSL_CAINFO"
    fresh.files.write("/tmp/show.sh", f"for n in {names}; do printenv $n || exit 9; done")
    show = "sh /tmp/show.sh"

    for command in (show, f"env -i bash -lc '{show}'", f"sudo -i {show}", f"script -qec '{show}' /dev/null"):
        code, said = run(fresh, command)
        assert code == 0 and said.count("127.0.0.1:10800") == 2, (command, said)


def test_nw_01_without_internet_nothing_leaves(fresh: Sandbox, world: TestWorld) -> None:
    fresh.network.off()
    for command in (
        "curl -sS -m 5 http://allowed.test/",
        "curl -sS -m 5 --noproxy '*' http://198.51.100.10/",
        "echo x | timeout 3 bash -c 'cat > /dev/udp/198.51.100.10/53'",
        "timeout 5 getent hosts allowed.test",
        "curl -sS -m 5 --noproxy '*' http://169.254.169.254/latest/meta-data/",
        "curl -sS -g -m 5 --noproxy '*' 'http://[2001:db8:1::10]/'",
        "sudo ping -c 1 -W 2 198.51.100.10",
    ):
        run(fresh, command)

    assert world.packets() == [] and world.questions() == []


def test_udp_is_refused_at_once(fresh: Sandbox, world: TestWorld) -> None:
    code, said = run(
        fresh, "python3 -c \"import socket;s=socket.socket(2,2);s.sendto(b'x'*4096,('198.51.100.10',9999))\""
    )

    assert code == 1 and "not permitted" in said.lower() and world.packets() == []


def test_nw_17_a_half_closed_connection_brings_ten_mebibytes_whole(fresh: Sandbox) -> None:
    script = (
        "import socket\ns=socket.create_connection(('allowed.test',80))\n"
        "s.sendall(b'GET /big HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n')\ns.shutdown(1)\nn=0\n"
        "while d:=s.recv(65536): n+=len(d)\nprint(n>10<<20)"
    )
    fresh.files.write("/tmp/half.py", script)

    assert run(fresh, "python3 /tmp/half.py", timeout_ms=60_000) == (0, "True\n")


def test_ipv6_only_hosts_are_reached_by_name(fresh: Sandbox, world: TestWorld) -> None:
    fresh.network.set(internet=True, allow=["six.test"])

    assert run(fresh, "curl -sS -m 20 --noproxy '*' http://six.test/")[1].startswith("hello from six.test")
    assert {p["to"] for p in world.packets()} == {"2001:db8:1::10"}


@pytest.mark.parametrize("name", ["metadata.test", "private.test", "loop.test", "mapped.test"])
def test_a_name_that_leads_to_a_refused_address_is_refused(fresh: Sandbox, name: str) -> None:
    assert "addresses are always refused" in run(fresh, f"curl -s -m 20 http://{name}/")[1]


def test_nw_07_an_address_learned_for_another_name_is_no_way_to_a_third(fresh: Sandbox, world: TestWorld) -> None:
    fresh.network.set(internet=True, allow=["allowed.test"])
    learned = run(fresh, "getent hosts allowed.test")[1].split()[0]
    world.forget()
    answer = run(fresh, f"curl -sS -m 20 --resolve other.test:80:{learned} --noproxy '*' http://other.test/")[1]

    assert "other.test" in answer and "refused" in answer
    assert sum(p["bytes"] for p in world.packets()) == 0


def test_a_change_closes_open_connections_at_once(fresh: Sandbox) -> None:
    script = (
        "import socket,sys,time\ns=socket.create_connection(('allowed.test',5432))\ns.sendall(b'a')\n"
        "assert s.recv(1)==b'a'\nprint('open',flush=True)\ntry:\n d=s.recv(1)\n print('ended',len(d))\n"
        "except ConnectionResetError: print('reset')\n"
    )
    fresh.files.write("/tmp/held.py", script)
    fresh.spawn("python3 /tmp/held.py > /tmp/held.out 2>&1")
    until("the connection being open", lambda: "open" in output(fresh), 20)
    fresh.network.set(internet=True, deny=["allowed.test"])

    until("the connection being reset", lambda: "reset" in output(fresh), 5)


def output(sandbox: Sandbox) -> str:
    return sandbox.files.read_text("/tmp/held.out") if sandbox.files.exists("/tmp/held.out") else ""


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ({"internet": True, "allow": ["a b"]}, "allow.0"),
        ({"internet": True, "deny": ["https://a.test"]}, "deny.0"),
        ({"internet": True, "connect": ["a.test"]}, "connect.0"),
        ({"internet": True, "allow": ["ok.test", "1.2.3.4/33", "*"]}, "allow.1"),
    ],
)
def test_a_wrong_rule_is_a_400_that_names_it(
    egress_service: EgressService, fresh: Sandbox, rules: dict, field: str
) -> None:
    with pytest.raises(InvalidRequestError) as live:
        fresh.network.set(**rules)
    with pytest.raises(InvalidRequestError) as created:
        egress_service.sandbox(network=rules)

    assert field in live.value.message and f"network.{field}" in created.value.message


def test_rules_given_at_create_hold_from_the_first_command_on(egress_service: EgressService, world: TestWorld) -> None:
    world.forget()
    with egress_service.sandbox(network={"internet": True, "allow": []}) as sandbox:
        assert "not in allow" in run(sandbox, "curl -s -m 20 http://allowed.test/")[1]
        assert sandbox.network.get()["allow"] == []

    assert world.packets() == [] and world.questions() == []


def test_nw_03_random_labels_under_a_wildcard_are_capped(fresh: Sandbox, world: TestWorld) -> None:
    fresh.network.set(internet=True, allow=["*.wild.test"])
    world.forget()
    script = (
        "import secrets,socket\nfor _ in range(80):\n"
        " try: socket.gethostbyname(secrets.token_hex(16)+'.wild.test')\n except OSError: pass"
    )
    fresh.files.write("/tmp/tunnel.py", script)
    run(fresh, "python3 /tmp/tunnel.py", timeout_ms=120_000)
    records = fresh.network.records(limit=1000)["data"]

    assert len({name for name in world.questions() if name.endswith(".wild.test")}) <= 31
    assert any("random-looking" in record["rule"] for record in records)


def test_every_verdict_is_a_record_with_its_rule_and_bytes(fresh: Sandbox) -> None:
    before = fresh.network.records(limit=1000)["nextAfter"]
    fresh.network.set(internet=True, allow=["allowed.test"])
    run(fresh, "curl -s -m 20 --noproxy '*' http://allowed.test/; curl -s -m 20 http://other.test/")
    until("the connection being over", lambda: any(r["what"] == "closed" for r in _records(fresh, before)), 10)
    found = _records(fresh, before)

    assert ("allowed.test", True, "allow: allowed.test") in {(r["host"], r["allowed"], r["rule"]) for r in found}
    assert ("other.test", False, "not in allow") in {(r["host"], r["allowed"], r["rule"]) for r in found}
    closed = next(r for r in found if r["what"] == "closed")
    assert closed["bytesOut"] > 50 and closed["bytesIn"] > 50


def _records(sandbox: Sandbox, after: int) -> list[dict]:
    return sandbox.network.records(after=after, limit=1000)["data"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("expired.test", "certificate"), ("silent.test", "did not answer"), ("dead.test", "DNS did not answer")],
)
def test_what_went_wrong_outside_is_said_within_a_bound(
    fresh: Sandbox, egress_service: EgressService, name: str, text: str
) -> None:
    scheme = "http"
    if name == "expired.test":
        scheme = "https"
        egress_service.client.secrets.set("EXPIRED", value="never-sent-anywhere", hosts=["expired.test"])
    began = time.monotonic()
    _, said = run(fresh, f"curl -sS -m 40 {scheme}://{name}/", timeout_ms=60_000)

    assert text in said and time.monotonic() - began < 40


def test_nw_25_a_hundred_connections_at_once_all_work(fresh: Sandbox) -> None:
    script = (
        "import socket\nopen_=[socket.create_connection(('allowed.test',5432)) for _ in range(100)]\n"
        "for i,s in enumerate(open_): s.sendall(b'%03d'%i)\n"
        "print(all(s.recv(3)==b'%03d'%i for i,s in enumerate(open_)))"
    )
    fresh.files.write("/tmp/many.py", script)

    assert run(fresh, "python3 /tmp/many.py", timeout_ms=60_000) == (0, "True\n")


def test_pip_installs_through_an_allow_list_of_its_index(fresh: Sandbox, world: TestWorld) -> None:
    fresh.files.write("/tmp/roots.pem", world.roots.read_bytes())
    fresh.network.set(internet=True, allow=["index.test"])
    # The variable wins over pip's own option; it names the file that a real index's certificate is checked with.
    install = "REQUESTS_CA_BUNDLE=/tmp/roots.pem pip install --index-url https://index.test/simple runtime-sample"
    code, said = run(
        fresh, f"{install} && python3 -c 'import runtime_sample; print(runtime_sample.ANSWER)'", timeout_ms=120_000
    )

    assert code == 0 and said.rstrip().endswith("42"), said
    assert run(fresh, "curl -s -m 20 http://other.test/")[1].endswith("not in allow\n")


def test_other_sandboxes_connections_are_not_closed(fresh: Sandbox, egress_service: EgressService) -> None:
    threads = [threading.Thread(target=fresh.network.set, kwargs={"internet": True}) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert fresh.network.get()["version"] >= 3
