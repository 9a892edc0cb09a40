"""Joins with a credential over HTTP: who counts once, what is refused, and what leaves a trace."""

import asyncio
import base64
import itertools
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kanon.client import Background, Client, Join, RefusedError, SetId
from kanon.client.anonymous import EnrolmentError, recovery_code
from kanon.client.asynchronous import AsyncClient
from kanon.client.background import STEP
from kanon.clock import AFTER, WEEK, end_of_week, week_of
from kanon.credentials import arc, p256
from kanon.gate.models import PRESENTATION
from kanon.gate.names import client_token, set_key
from kanon.gate.storage.disk.log import entry_of
from tests.integration.credentials.people import (
    PATH,
    SET,
    TYPE,
    account,
    body,
    client_of,
    count,
    credential,
    device,
    issuer,
    presented,
    text,
)
from tests.integration.gateway.relayed import Relay, inner, sent
from tests.integration.serving.machine import PERIOD, Machine
from tests.integration.serving.own_joins import sizes
from tests.paths import ROOT

JOINS, STEPS = 60, 4


def _join(at: Machine, content: Any, path: str = PATH) -> tuple[int, str]:
    answer = at.request("POST", path, content, key=False)
    return answer.status, answer.body.decode()


def test_many_joins_of_one_account_from_three_devices_count_one_through_a_relay(at: Machine, tmp_path: Path) -> None:
    """``make prove`` lets a thousand join."""
    assert joins_of_one_account(at, tmp_path, JOINS) == [(1, [1])] * STEPS


def joins_of_one_account(at: Machine, files: Path, joins: int) -> list[tuple[int, list[int]]]:
    """Of each of some steps the joins in the log, and once it is evaluated the members of each set."""
    me, code, found = account(at, "me"), recovery_code(), []
    with closing(Relay(at.server.url)) as relay:
        devices = [device(at, files / str(number)) for number in range(3)]
        for each in devices:
            each.enrol(at.server.url, auth=me, relay=relay.url, recovery=code)
        clients = [client_of(at, each, relay.url) for each in devices]
        turns = itertools.cycle(clients)
        for _ in range(STEPS):
            for client in itertools.islice(turns, joins // STEPS):
                client.join(TYPE, SetId("aGVsbG8"))
            logged = count(at)
            at.evaluate()
            found.append((logged, [*sizes(at.directory).values()]))
        for client in clients:
            client.close()
    assert set(relay.paths) == {"/v1/proxy/keys", "/v1/gateway"}
    return found


def test_accounts_count_as_many_as_they_are(at: Machine, tmp_path: Path) -> None:
    for number in range(20):
        one = device(at, tmp_path / str(number))
        one.enrol(at.server.url, auth=account(at, f"account {number}"))
        with client_of(at, one) as client:
            client.join(TYPE, SetId("aGVsbG8"))
            client.join(TYPE, SetId("aGVsbG8"))
    assert count(at) == 20


def test_a_crowd_of_accounts_makes_a_set_true(at: Machine) -> None:
    for _ in range(80):
        assert _join(at, presented(at, credential(at)))[0] == 200
    at.evaluate()
    with Client(at.server.url) as client:
        assert client.is_shared(TYPE, [SetId("aGVsbG8")])


def test_a_join_needs_a_presentation_and_no_key_and_other_types_take_none(at: Machine) -> None:
    held = credential(at)
    status, answer = _join(at, {"client": "me"})
    assert (status, "this type needs a credential: give a presentation, and no client" in answer) == (400, True)
    assert _join(at, {})[0] == 400
    assert _join(at, {**presented(at, held), "client": "me"})[0] == 400
    assert _join(at, {"presentation": None})[0] == 400
    other = PATH.replace(TYPE, "fledge")
    assert _join(at, presented(at, held), other)[0] == 401
    answer = at.request("POST", other, presented(at, held))
    assert answer.status == 400
    assert b"a field is unknown: give only client, shortClientIdentifier, value and name there" in answer.body
    assert count(at) == 0


def test_batches_are_refused_inside_and_outside_the_gateway(at: Machine) -> None:
    joins = {"joins": [{"type": TYPE, "set": "aGVsbG8", "client": "me"}]}
    direct = at.request("POST", "/v1:batchJoin", joins)
    signed = {"authorization": f"Bearer {at.key}", "content_type": "application/json", "kanon_step": _step(at)}
    message = b'{"joins": [{"type": "person", "set": "aGVsbG8", "client": "me"}]}'
    relayed = sent(at, inner("POST", "/v1:batchJoin", message, **signed))
    for content in (direct.body, relayed.content):
        assert b"this type needs a credential: join one set a request" in content
    with_one = {"joins": [{"type": TYPE, "set": "aGVsbG8", **presented(at, credential(at))}]}
    assert b"a field is unknown" in at.request("POST", "/v1:batchJoin", with_one).body
    assert count(at) == 0


def _step(at: Machine) -> str:
    return str(int(at.now // PERIOD))


def test_a_recorded_join_is_refused_after_its_step(at: Machine) -> None:
    at.now += 30
    recorded = presented(at, credential(at))
    assert [_join(at, recorded)[0] for _ in range(2)] == [200, 200]
    assert count(at) == 1
    at.now += PERIOD  # the steps of the machine are shorter than the 120 s
    assert (_join(at, recorded)[0], count(at)) == (200, 1)  # in the step of its receipt
    at.now += PERIOD
    status, answer = _join(at, recorded)
    assert (status, "name the current step" in answer) == (400, True)
    again = {"presentation": {**recorded["presentation"], "step": int(at.now // PERIOD)}}
    assert (_join(at, again)[0], count(at)) == (400, 0)


@pytest.mark.parametrize(
    "bound",
    [
        {"deployment": "another"},
        {"issuer_key": bytes(99)},
        {"epoch": 1},
        {"method": "PUT"},
        {"type_name": "fledge"},
        {"set_id": b"hellp"},
        {"step": 1},
    ],
    ids=lambda bound: next(iter(bound)),
)
def test_a_proof_for_something_else_is_refused_with_one_answer(at: Machine, bound: dict[str, Any]) -> None:
    held = credential(at)
    made = presented(at, held, **bound)["presentation"]["proof"]
    step, week = int(at.now // PERIOD), week_of(at.now)
    refused = _join(at, {"presentation": {"epoch": week, "step": step, "proof": made}})
    assert refused == _join(at, body(b"\x02" + bytes(259), step, week))
    assert (refused[0], count(at)) == (400, 0)
    assert _join(at, presented(at, held))[0] == 200


def test_a_proof_for_one_type_is_refused_in_another(at: Machine) -> None:
    held, other = credential(at), PATH.replace(TYPE, "people")
    assert _join(at, presented(at, held), other)[0] == 400
    assert _join(at, presented(at, held, type_name="people"), other)[0] == 200


def test_the_set_counts_as_its_bytes_however_the_path_writes_it(at: Machine) -> None:
    held = credential(at)
    for path in (PATH, PATH.replace("aGVsbG8", "aGVsbG%38"), PATH.replace("aGVsbG8", "aGVsbG9")):
        assert _join(at, presented(at, held), path)[0] == 200, path
    assert count(at) == 1


def test_a_credential_holds_for_its_week_and_a_day_and_for_clocks_that_differ(at: Machine) -> None:
    held, week = credential(at), week_of(at.now)
    end = end_of_week(week)
    for moment, status in ((end - 1, 200), (end, 200), (end + AFTER - 1, 200), (end + AFTER, 400)):
        at.now = moment
        assert _join(at, presented(at, held, week=week))[0] == status, moment - end
    for moment, status in ((end - 299, 200), (end - 301, 400)):  # a client whose clock is ahead
        at.now = moment
        assert _join(at, presented(at, credential(at, week + 1), week=week + 1))[0] == status


@pytest.mark.parametrize("ahead", [-29, 0, 29])
def test_clocks_may_differ_half_a_step(at: Machine, tmp_path: Path, ahead: int) -> None:
    one = device(at, tmp_path / "file")
    one.enrol(at.server.url, auth=account(at, "me"))
    at.now = at.now // 3600 * 3600 + 1  # the first second of a step
    with client_of(at, one) as client:
        client._calls.now = lambda: at.now + ahead
        client.join(TYPE, "a value")
    assert count(at) == 1


HOSTILE = {
    "no text": 1,
    "empty": "",
    "shorter": "A" * 346,
    "longer": "A" * 348,
    "oversized": "A" * 500_000,
    "other letters": "+" * 347,
    "zeros": "A" * 347,
    "identity": text(bytes(33) + b"\x02" * 227),
    "another prefix": text(b"\x04" + b"\x01" * 259),
    "x out of range": text(b"\x02" + b"\xff" * 32 + b"\x02" * 227),
    "scalar out of range": text(b"\x02" * 132 + b"\xff" * 128),
    "scalar zero": text(b"\x02" * 132 + bytes(128)),
}


@pytest.mark.parametrize("proof", HOSTILE.values(), ids=HOSTILE)
def test_a_malformed_presentation_costs_no_multiplication(
    at: Machine, monkeypatch: pytest.MonkeyPatch, proof: object
) -> None:
    issuer(at).verifier(week_of(at.now))  # the key itself is made once
    made = presented(at, credential(at))
    multiplied: list[object] = []
    own = p256.Point.__mul__
    monkeypatch.setattr(p256.Point, "__mul__", lambda *of: (multiplied.append(of), own(*of))[1])
    step, week = int(at.now // PERIOD), week_of(at.now)
    for given in (
        {"epoch": week, "step": step, "proof": proof},
        {"epoch": week, "step": step + 1, "proof": made["presentation"]["proof"]},
        {"epoch": week + 1, "step": step, "proof": made["presentation"]["proof"]},
        {"epoch": week, "step": step},
        {"epoch": "1", "step": step, "proof": proof},
        {"epoch": week, "step": -1, "proof": proof},
        [proof],
    ):
        status, answer = _join(at, {"presentation": given})
        assert status == 400
        assert not isinstance(proof, str) or not proof or proof not in answer
    assert multiplied == []
    assert _join(at, made)[0] == 200
    assert multiplied


def test_the_form_of_a_presentation_is_that_of_its_bytes() -> None:
    assert f"{{{len(text(bytes(arc.PRESENTATION_BYTES)))}}}" in PRESENTATION


def _traces(at: Machine, content: dict[str, Any]) -> tuple[Any, ...]:
    """All that a join leaves: the answer, the rows of its step, log lines, and what it adds to metrics."""
    before, start = _metrics(at), len(at.logs.getvalue())
    answer = at.request("POST", PATH, content, key=False)
    added = {name: value - before.get(name, 0.0) for name, value in _metrics(at).items() if value != before.get(name)}
    headers = sorted((name, value) for name, value in answer.headers if name != "Date")
    return answer.status, answer.body, headers, _rows(at), at.logs.getvalue()[start:], added


def _metrics(at: Machine) -> dict[str, float]:
    """All metrics but those of the process."""
    lines = at.request("GET", "/metrics").body.decode().splitlines()
    own = (line.rpartition(" ") for line in lines if not line.startswith(("process_", "python_", "#")))
    return {name: float(value) for name, _, value in own if not name.endswith("_created")}


def _rows(at: Machine) -> list[tuple[bytes, ...]]:
    """The joins in the log at the machine's step."""
    file = at.directory.path / "log" / f"{int(at.now // PERIOD)}.db"
    if not file.exists():
        return []
    with closing(sqlite3.connect(file)) as database:
        return database.execute("SELECT * FROM joins").fetchall()


def test_what_a_join_leaves_is_a_function_of_its_tag_alone(at: Machine, tmp_path: Path) -> None:
    """Two credentials of one m1, of two requests, each presented with its own random numbers, in steps of their own."""
    secrets = arc.Secrets.random()
    contents, left = [], []
    for _ in range(2):
        content = presented(at, credential(at, secrets=secrets))
        contents.append(content)
        left.append(_traces(at, content))
        at.now += PERIOD
    assert contents[0] != contents[1]
    assert left[0] == left[1]
    assert left[0][0] == 200
    assert left[0][4] == ""
    assert _traces(at, presented(at, credential(at))) != left[0]
    stored = b"".join(file.read_bytes() for file in sorted((tmp_path / "data").rglob("*")) if file.is_file())
    tag = presented_tag(contents[0])
    for secret in (*(_proof(content) for content in contents), tag, tag[1:]):
        for form in (secret, text(secret).encode(), secret.hex().encode()):
            assert form not in stored
            assert form not in at.logs.getvalue().encode()


def test_refused_joins_leave_no_row_no_log_line_and_nothing_of_the_proof(at: Machine) -> None:
    held = credential(at)
    left = [_traces(at, presented(at, held, set_id=other)) for other in (b"one", b"two")]
    assert left[0] == left[1]
    assert (left[0][0], left[0][3], left[0][4]) == (400, [], "")


def _proof(content: dict[str, Any]) -> bytes:
    return base64.urlsafe_b64decode(content["presentation"]["proof"] + "=")


def presented_tag(content: dict[str, Any]) -> bytes:
    return _proof(content)[99:132]


def test_the_row_of_a_join_has_the_token_of_its_tag(at: Machine) -> None:
    content = presented(at, credential(at))
    assert _join(at, content)[0] == 200
    joining = at.directory.joining
    name = set_key(joining.pepper, TYPE, SET)
    token = client_token(joining.client_key, name, "arc", presented_tag(content), 16)
    assert _rows(at) == [(entry_of(name, token, at.directory.segments.numbers[TYPE]),)]


def test_the_guide_runs_as_it_is_written(
    at: Machine, relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its addresses are those of the test, and it does not wait."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/anonymous.md").read_text(), re.DOTALL)
    at.now = time.time()
    me = account(at, "me")
    for name, here in (
        ("https://kanon.example", at.server.url),
        ("https://relay.example", relay.url),
        ('"a shared value")', '"a shared value", delay=0)'),
    ):
        assert name in block, name
        block = block.replace(name, here)
    monkeypatch.chdir(tmp_path)
    exec(block, {"key": me.token})
    assert count(at) == 1


def test_a_client_without_a_credential_is_told_to_enrol(at: Machine, tmp_path: Path) -> None:
    one = device(at, tmp_path / "file")
    with client_of(at, one) as client, pytest.raises(EnrolmentError, match="call enrol"):
        client.join(TYPE, "a value")
    one.enrol(at.server.url, auth=account(at, "me"))
    with client_of(at, one) as client:
        client.join(TYPE, "a value")
        at.now += WEEK + AFTER
        with pytest.raises(EnrolmentError, match="call enrol"):
            client.join(TYPE, "a value")


def test_joins_in_the_background_need_no_client(at: Machine, tmp_path: Path) -> None:
    one = device(at, tmp_path / "file")
    one.enrol(at.server.url, auth=account(at, "me"))
    with client_of(at, one) as client:
        with Background(client) as background:
            assert background._spread == STEP
        with Background(client, spread=0.01) as background:
            for value in ("one", "another"):
                background.join(TYPE, value)
            assert background.flush(30)
        assert not background.dropped
        with pytest.raises(ValueError, match="needs a client"):
            client.batch_join([Join("fledge", "a value", None)])
    assert count(at) == 2


def test_an_attempt_in_a_later_step_presents_that_step(at: Machine, tmp_path: Path) -> None:
    one = device(at, tmp_path / "file")
    one.enrol(at.server.url, auth=account(at, "me"))
    with client_of(at, one) as client:
        client._calls.random, client._sleep = lambda: 0.5, lambda _: setattr(at, "now", at.now + 2 * PERIOD)
        client.join(TYPE, "a value")
    assert count(at) == 1


def test_clients_refuse_what_would_name_or_link(at: Machine, tmp_path: Path) -> None:
    one = device(at, tmp_path / "file")
    with pytest.raises(ValueError, match="auth names the caller"):
        Client(at.server.url, auth=account(at, "me"), anonymous=one)
    with client_of(at, one) as client:
        with pytest.raises(ValueError, match="join no client"):
            client.join(TYPE, "a value", "me")
        with pytest.raises(ValueError, match="give a client"):
            client.join("fledge", "a value")
        with pytest.raises(ValueError, match="one set at a time"):
            client.join_many([Join(TYPE, "a value", "me")])
        with pytest.raises(RefusedError):
            client.call("POST", PATH, {"client": "me"})


def test_the_async_client_joins_with_a_credential_through_a_relay(at: Machine, relay: Relay, tmp_path: Path) -> None:
    one = device(at, tmp_path / "file")

    async def run() -> None:
        async with AsyncClient(at.server.url, anonymous=one, relay=relay.url) as client:
            client._calls.now = client._relaying.now = lambda: at.now  # type: ignore[union-attr]
            with pytest.raises(EnrolmentError, match="call enrol"):
                await client.join(TYPE, "a value", delay=0)
            one.enrol(at.server.url, auth=account(at, "me"), relay=relay.url)
            for _ in range(2):
                await client.join(TYPE, "a value", delay=0)
            with pytest.raises(ValueError, match="join no client"):
                await client.join(TYPE, "a value", "me")

    asyncio.run(run())
    with pytest.raises(ValueError, match="auth names the caller"):
        AsyncClient(at.server.url, auth=account(at, "another"), anonymous=one)
    assert set(relay.paths) == {"/v1/proxy/keys", "/v1/gateway"}
    assert count(at) == 1


def test_each_join_waits_for_a_time_of_its_own_and_names_the_step_of_its_end(at: Machine, tmp_path: Path) -> None:
    one = device(at, tmp_path / "file")
    one.enrol(at.server.url, auth=account(at, "me"))
    draws = iter([0.25, 0.99])
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        at.now += seconds

    with client_of(at, one) as client:
        client._sleep, client._calls.random = sleep, lambda: next(draws)
        client.join(TYPE, "a value")
        client.join(TYPE, "another value")
    assert waited == [0.25 * PERIOD, 0.99 * PERIOD]
