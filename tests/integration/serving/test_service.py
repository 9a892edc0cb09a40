"""The service of one machine answers like the stack, tells its health and its counts, and nothing else."""

import base64
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jwt
import pytest
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from typer.testing import CliRunner

from infra.openapi import GATE, description
from kanon.cli.main import app
from kanon.cli.serve_data import Credentials
from kanon.errors import ConfigurationError, UndecodableMembersError
from kanon.gate.joining import Joining
from kanon.gate.querying import Querying
from kanon.serving import evaluating
from kanon.serving.access import AuthMode
from kanon.serving.directory import Directory
from kanon.serving.http import NO_PAGES
from kanon.serving.service import Running
from tests.integration.serving.machine import PERIOD, START, Machine, machine


def encode_base64url(set_id: bytes) -> str:
    return base64.urlsafe_b64encode(set_id).decode().rstrip("=")


CROWD = 120  # more than M = 99: crosses with any noise
SET = encode_base64url(b"a shared value")
ALONE = encode_base64url(b"of one client")
PLACE = f"/v1/types/fledge/sets/{SET}"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path / "data") as made:
        yield made


def crowd(number: int = CROWD) -> dict[str, Any]:
    return {"joins": [{"type": "fledge", "set": SET, "client": f"client-{n}"} for n in range(number)]}


def status(served: Machine, place: str = PLACE) -> bool:
    answer = served.request("GET", place, key=False)
    assert answer.status == 200
    return bool(json.loads(answer.body)["kAnonymous"])


def test_a_set_turns_true_after_a_crowd_has_joined(served: Machine) -> None:
    joined = served.request("POST", "/v1:batchJoin", crowd())
    assert joined.status == 200
    assert json.loads(joined.body) == {"results": [{}] * CROWD}
    assert served.request("POST", f"/v1/types/fledge/sets/{ALONE}:join", {"client": "me"}).body == b"{}"
    assert not status(served)
    served.evaluate()
    assert status(served)
    assert not status(served, f"/v1/types/fledge/sets/{ALONE}")
    sets = [{"type": "fledge", "hashes": [ALONE, SET]}]
    for path, field in (("query", "setsForType"), ("batchQuery", "setsForType"), ("validateHashes", "sets")):
        answer = json.loads(served.request("POST", f"/v1:{path}", {field: sets}).body)
        assert answer["kAnonymousSets"] == [{"type": "fledge", "hashes": [SET]}]
        assert answer["step"] == START // PERIOD


def test_types_description_and_page_are_those_of_the_stack(served: Machine) -> None:
    types = json.loads(served.request("GET", "/v1/types", key=False).body)["types"]
    assert [one["type"] for one in types] == ["fledge"]
    assert json.loads(served.request("GET", "/v1/types/fledge", key=False).body) == types[0]
    assert json.loads(served.request("GET", "/openapi.json", key=False).body) == description(GATE)
    page = served.request("GET", "/docs", key=False)
    assert b"<!doctype html>" in page.body
    assert dict(page.headers)["Content-Security-Policy"].startswith("default-src 'none'")


def test_joins_need_a_key_and_queries_do_not(served: Machine) -> None:
    for path, body in ((f"{PLACE}:join", {"client": "me"}), ("/v1:batchJoin", crowd(1)), ("/v1:batchQuery", {})):
        refused = served.request("POST", path, body, key=False)
        assert refused.status == 401
        assert json.loads(refused.body)["error"]["status"] == "UNAUTHENTICATED"
        assert {name.lower(): value for name, value in refused.headers}["www-authenticate"] == "Bearer"
    assert served.request("GET", "/metrics", key=False).status == 401
    assert served.directory.log.steps() == []
    assert served.request("POST", "/v1:query", {"setsForType": []}, key=False).status == 200


def test_anybody_may_join_where_it_is_open(tmp_path: Path) -> None:
    credentials = Credentials(AuthMode.OPEN, AuthMode.KEY, None, None, None)
    with machine(tmp_path / "data", credentials=credentials) as served:
        assert served.request("POST", f"{PLACE}:join", {"client": "me"}, key=False).status == 200
        assert served.request("POST", "/v1:batchJoin", crowd(1), key=False).status == 401


def test_the_command_makes_and_revokes_keys_beside_the_running_service(served: Machine) -> None:
    arguments = ["operate", "api-key", "--data", str(served.directory.path)]
    made = CliRunner().invoke(app, [*arguments, "--name", "web"])
    assert made.exit_code == 0
    assert "Key web. It is shown only now" in made.stderr
    headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
    assert served.request("POST", f"{PLACE}:join", {"client": "me"}, headers).status == 200
    assert CliRunner().invoke(app, [*arguments, "--revoke", "web"]).stdout == "Key web is refused from now on.\n"
    assert served.request("POST", f"{PLACE}:join", {"client": "me"}, headers).status == 401
    again = CliRunner().invoke(app, [*arguments, "--revoke", "web"])
    assert again.exit_code == 2
    assert "there is no key web: there is key-1" in again.stderr


def test_a_token_of_the_issuer_is_enough_where_it_is_asked_for(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = {**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "1", "alg": "ES256"}
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [public]}))
    claims = {"iss": "https://issuer.test", "aud": "kanon", "exp": 4_000_000_000}
    token = {"Authorization": f"Bearer {jwt.encode(claims, key, 'ES256', {'kid': '1'})}"}
    credentials = Credentials(AuthMode.JWT, AuthMode.KEY, tmp_path / "jwks.json", "https://issuer.test", "kanon")
    with machine(tmp_path / "data", credentials=credentials) as served:
        assert served.request("POST", f"{PLACE}:join", {"client": "me"}).status == 401  # a key is no token
        assert served.request("POST", f"{PLACE}:join", {"client": "me"}, token).body == b"{}"
        assert served.request("POST", "/v1:batchJoin", crowd(1), token).status == 401
        assert served.request("POST", "/v1:batchJoin", crowd(1)).status == 200


def metrics(served: Machine) -> dict[str, float]:
    answer = served.request("GET", "/metrics")
    assert answer.status == 200
    lines = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
    return {name.removeprefix("kanon_"): float(value) for name, value in (line.split() for line in lines)}


def test_metrics_are_the_counts_of_cloudwatch_and_no_other(served: Machine) -> None:
    served.request("POST", "/v1:batchJoin", crowd())
    served.request("POST", "/v1:batchJoin", {"joins": [{"type": "fledge", "set": "?", "client": "x"}]})
    served.request("POST", f"{PLACE}:join", {"client": ""})
    served.request("POST", f"{PLACE}:join", {"client": "me"})
    served.request("GET", "/v1/types/absent/sets/aGVsbG8")
    status(served)
    served.request("GET", "/healthz")
    served.evaluate()
    found = metrics(served)
    assert found.pop("evaluation_seconds_total") > 0
    assert found == {
        "joins_accepted_total": CROWD + 1,
        "joins_refused_total": 0,
        "queries_answered_total": 1,
        "queries_refused_total": 0,
        "requests_rejected_total": 2,
        "steps_evaluated_total": 1,
        "evaluation_stopped_total": 0,
        "steps_behind": 0,
    }


def test_metrics_do_not_depend_on_which_sets_were_joined_or_crossed(tmp_path: Path) -> None:
    shown = []
    for name, joins in {
        "one set": crowd()["joins"],
        "many sets": [{"type": "fledge", "set": encode_base64url(b"%d" % n), "client": "me"} for n in range(CROWD)],
    }.items():
        with machine(tmp_path / name) as served:
            served.request("POST", "/v1:batchJoin", {"joins": joins})
            served.evaluate()
            shown.append({name: value for name, value in metrics(served).items() if "seconds" not in name})
            lines = [json.loads(line) for line in served.logs.getvalue().splitlines()]
            assert [set(line) & {"steps", "steps_behind", "late", "seconds"} for line in lines] == [
                {"steps", "steps_behind", "late", "seconds"}
            ]
    assert shown[0] == shown[1]


def test_joins_that_are_not_stored_are_refused_and_counted(served: Machine) -> None:
    served.directory.log.close_through(int(START // PERIOD))
    one = served.request("POST", f"{PLACE}:join", {"client": "me"})
    assert one.status == 503
    assert dict(one.headers)["Retry-After"] == "5"
    many = served.request("POST", "/v1:batchJoin", crowd(2))
    assert many.status == 200
    assert [entry["error"]["code"] for entry in json.loads(many.body)["results"]] == [503, 503]
    assert metrics(served)["joins_refused_total"] == 3


# ----------------------------------------------------------------------------------------- health


def health(served: Machine) -> tuple[int, str]:
    answer = served.request("GET", "/healthz", key=False)
    return answer.status, answer.body.decode().strip()


def test_a_service_is_healthy_while_every_step_is_evaluated_before_its_tick(served: Machine) -> None:
    assert health(served) == (200, "healthy")
    served.now = START + PERIOD + PERIOD // 2 - 1  # just before the tick of the first step
    assert health(served) == (200, "healthy")
    served.now = START + PERIOD + PERIOD // 2
    assert health(served) == (503, "evaluation is 1 step late")
    served.now += 5 * PERIOD
    assert health(served) == (503, "evaluation is 6 steps late")
    served.service.evaluating.turn(served.now)
    assert health(served) == (200, "healthy")


def test_a_service_whose_clock_was_ahead_says_until_when_joins_are_refused_and_what_to_do(served: Machine) -> None:
    served.service.evaluating.turn(START + 2 * PERIOD + 3)
    status, text = health(served)
    assert status == 503
    assert text.startswith("steps are closed up to 2027-01-15 08:02 UTC, which is later than now")
    assert "correct the clock, or wait" in text
    assert "backup" in text
    assert served.request("POST", f"{PLACE}:join", {"client": "me"}).status == 503
    for served.now in (START + PERIOD, START + PERIOD + 3, START + 2 * PERIOD - 1):
        assert health(served)[0] == 503
        assert served.request("POST", f"{PLACE}:join", {"client": "me"}).status == 503
    served.now = START + 2 * PERIOD
    assert health(served) == (200, "healthy")
    assert served.request("POST", f"{PLACE}:join", {"client": "me"}).status == 200


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (UndecodableMembersError("the part 1-1-ab.part is not the one that was written"), "is not the one"),
        (ValueError("a set, a client"), '"kind":"ValueError"'),
    ],
)
def test_evaluation_that_fails_is_unhealthy_logged_and_tried_again(
    served: Machine, monkeypatch: pytest.MonkeyPatch, error: Exception, logged: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Directory, "evaluate", fail)
        assert served.service.evaluating.turn(served.now) == evaluating.SECONDS_TO_RETRY
    code, text = health(served)
    assert code == 503
    assert text.endswith("the log of the service says why")
    assert "part" not in text
    assert "client" not in text + served.logs.getvalue()
    assert logged in served.logs.getvalue()
    assert metrics(served)["evaluation_stopped_total"] == 1
    served.evaluate()
    assert health(served) == (200, "healthy")


def test_the_next_turn_is_when_the_next_step_closes_and_soon_enough_if_the_clock_is_set(served: Machine) -> None:
    assert 0 < served.service.evaluating.turn(START + 1) <= evaluating.MOST_SECONDS_ASLEEP
    served.now = START + PERIOD  # the first step closes two seconds later
    assert served.service.evaluating.turn(served.now) == pytest.approx(2, abs=0.1)


def test_evaluation_goes_on_until_it_is_stopped(served: Machine) -> None:
    class Moving(threading.Event):
        """Waits by moving the clock; stops after three turns."""

        turns = 0

        def wait(self, timeout: float | None = None) -> bool:
            served.now += timeout or 0
            self.turns += 1
            return self.turns == 3

    moving = Moving()
    evaluating.start("evaluate", served.service.evaluating.turn, moving).join(20)
    assert moving.turns == 3
    assert served.now > START + PERIOD


def test_steps_that_were_missed_are_evaluated_at_the_next_start(tmp_path: Path) -> None:
    with machine(tmp_path / "data") as served:
        served.request("POST", "/v1:batchJoin", crowd())
    with machine(tmp_path / "data") as served:
        served.now = START + 10 * PERIOD
        assert health(served)[0] == 503
        served.evaluate()
        assert health(served)[0] == 200
        assert status(served)


# ---------------------------------------------------------------------------------------- threads


def all_at_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int) -> list[Any]:
    """Let a method wait until ``number`` threads have called it. Returns the objects that it is called on."""
    together, seen = threading.Barrier(number, timeout=20), []
    method = getattr(owner, name)

    def wait_for_all(self: Any, *arguments: Any) -> Any:
        seen.append(self)
        together.wait()
        return method(self, *arguments)

    monkeypatch.setattr(owner, name, wait_for_all)
    return seen


THREADS = 8


def test_requests_that_arrive_together_get_their_own_answers(served: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    all_at_once(monkeypatch, APIGatewayHttpResolver, "_resolve", THREADS)

    def send(n: int) -> list[int]:
        bad = [{"type": "fledge", "set": "?", "client": "c"}] * n
        body = {"joins": [*bad, {"type": "fledge", "set": SET, "client": f"c{n}"}]}
        results = json.loads(served.request("POST", "/v1:batchJoin", body).body)["results"]
        return [entry.get("error", {}).get("code", 200) for entry in results]

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(send, range(THREADS))) == [[400] * n + [200] for n in range(THREADS)]


def test_no_two_threads_share_cached_horizons(served: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them could drop what another one is about to read, or keep what it read before the tick."""
    used = all_at_once(monkeypatch, Querying, "query", THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(lambda _: status(served), range(THREADS))) == [False] * THREADS
    assert len({id(one) for one in used}) == len({id(one._horizons) for one in used}) == THREADS


def test_a_request_in_flight_is_answered_before_the_service_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine(tmp_path / "data") as served:
        entered, go_on = threading.Event(), threading.Event()
        join = Joining.join

        def slow(self: Joining, *arguments: Any) -> None:
            entered.set()
            go_on.wait(20)
            join(self, *arguments)

        monkeypatch.setattr(Joining, "join", slow)
        with ThreadPoolExecutor(2) as pool:
            answer = pool.submit(served.request, "POST", f"{PLACE}:join", {"client": "me"})
            assert entered.wait(20)
            stopping = pool.submit(served.server.close)
            go_on.set()
            assert answer.result(20).body == b"{}"
            stopping.result(20)
        with pytest.raises(OSError, match=r"."):
            served.socket()
        assert served.directory.log.count(int(START // PERIOD)) == 1


def test_a_service_that_stops_during_an_evaluation_leaves_it_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hang(*_: Any) -> None:
        entered.set()
        go_on.wait(20)
        raise ValueError("the directory is closed")

    with machine(tmp_path / "data") as served:
        monkeypatch.setattr(Directory, "evaluate", hang)
        monkeypatch.setattr("kanon.serving.service.SECONDS_TO_STOP", 0.01)
        monkeypatch.setattr("kanon.serving.service.Logger", lambda **_: served.service._logger)
        running = Running(served.directory, served.service._access, "127.0.0.1", 0, NO_PAGES)
        assert entered.wait(20)
        running.close()
        assert [json.loads(line)["message"] for line in served.logs.getvalue().splitlines()] == [
            "started",
            "stopped during work, which the next start repeats with the same result",
        ]
        go_on.set()
        running._threads[0].join(20)


def test_the_log_has_no_line_for_a_request_and_no_text_of_one(served: Machine) -> None:
    served.request("POST", "/v1:batchJoin", crowd())
    status(served)
    assert served.logs.getvalue() == ""
    served.evaluate()
    (line,) = served.logs.getvalue().splitlines()
    assert json.loads(line)["message"] == "evaluated"
    assert not re.search(f"{SET}|client|fledge", line)


def test_an_unforeseen_error_is_answered_and_logged_without_its_text(
    served: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError(f"client-1 joined {SET}")

    monkeypatch.setattr(Joining, "join", fail)
    inside = served.request("POST", f"{PLACE}:join", {"client": "client-1"})
    monkeypatch.setattr(type(served.service), "_routes", fail)
    outside = served.request("POST", f"{PLACE}:join", {"client": "client-1"})
    for answer in (inside, outside):
        assert answer.status == 500
        assert json.loads(answer.body)["error"]["message"] == "internal error; the operator has been notified"
    lines = [json.loads(line) for line in served.logs.getvalue().splitlines()]
    assert [line["kind"] for line in lines] == ["ValueError"] * 2
    assert not re.search(f"{SET}|client-1", served.logs.getvalue())


def test_the_same_directory_is_served_once(served: Machine) -> None:
    with pytest.raises(ConfigurationError, match="another process has"), machine(served.directory.path):
        pass
