"""Pages of other origins: only those that were named may call, and they read every answer, refusals too."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.cors import Cors
from tests.integration.serving.machine import KEYS, Machine, machine

PAGE = "https://page.test"
PLACE = "/v1/types/fledge/sets/aGVsbG8"
ASKED = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path / "data", KEYS, Cors.of([PAGE])) as made:
        yield made


def _of(served: Machine, method: str, path: str, origin: str, body: object = None, **more: object) -> dict[str, str]:
    """Status and headers of the answer to a page."""
    key, headers = bool(more.pop("key", True)), {"Origin": origin, **more}
    answer = served.request(method, path, body, headers, key=key)  # type: ignore[arg-type]
    return {"status": str(answer.status), **{name.lower(): value for name, value in answer.headers}}


def test_a_page_may_ask_before_it_sends_a_key(served: Machine) -> None:
    found = _of(served, "OPTIONS", f"{PLACE}:join", PAGE, key=False, **ASKED)
    assert (found["status"], found["access-control-allow-origin"]) == ("204", PAGE)
    assert "authorization" in found["access-control-allow-headers"]
    assert found["access-control-max-age"] == "3600"


@pytest.mark.parametrize(
    ("path", "body", "key", "status"),
    [
        (f"{PLACE}:join", {"client": "me"}, True, "200"),
        (f"{PLACE}:join", {"client": "me"}, False, "401"),
        ("/v1:query", {"setsForType": []}, False, "200"),
        ("/v1:query", {}, False, "400"),
        ("/nowhere", {}, True, "404"),
        ("/v1:query", b"{" + b" " * (1 << 20), False, "413"),
    ],
)
def test_a_page_reads_every_answer(served: Machine, path: str, body: object, key: bool, status: str) -> None:
    found = _of(served, "POST", path, PAGE, body, key=key)
    assert (found["status"], found["access-control-allow-origin"]) == (status, PAGE)
    assert (found["access-control-expose-headers"], found["vary"]) == ("retry-after", "Origin")
    assert "access-control-allow-credentials" not in found


def test_a_page_reads_that_a_body_would_be_too_long(served: Machine) -> None:
    """The length alone is refused. A client that goes on sending may lose the answer, so this one does not."""
    found = _of(served, "POST", "/v1:query", PAGE, key=False, **{"Content-Length": str(1 << 22)})
    assert (found["status"], found["access-control-allow-origin"]) == ("413", PAGE)


def test_a_page_reads_an_unexpected_error_too(served: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.service, "_routes", lambda: 1 // 0)
    found = _of(served, "GET", "/v1/types", PAGE)
    assert (found["status"], found["access-control-allow-origin"]) == ("500", PAGE)


def test_a_page_of_another_origin_is_refused_and_stores_nothing(served: Machine) -> None:
    found = _of(served, "POST", f"{PLACE}:join", "https://other.test", {"client": "me"})
    assert (found["status"], "access-control-allow-origin" in found) == ("403", False)
    assert served.directory.log.steps() == []


def test_an_open_service_takes_joins_of_its_pages_without_asking(served: Machine) -> None:
    sent = {"Content-Type": "text/plain;charset=UTF-8"}
    assert _of(served, "POST", f"{PLACE}:join", PAGE, {"client": "me"}, **sent)["status"] == "200"
    assert _of(served, "POST", "/v1:query", PAGE, {"setsForType": []}, **sent)["status"] == "415"


@pytest.mark.parametrize("more", [[], ["--data", "data"]])
def test_the_command_refuses_what_is_no_origin(more: list[str]) -> None:
    result = CliRunner().invoke(app, ["serve", *more, "--cors-origin", "page.test"])
    assert result.exit_code == 2
    assert "--cors-origin" in result.stderr


def test_a_cache_keeps_json_and_csv_of_a_list_apart_for_pages_too(tmp_path: Path) -> None:
    types = {"terms": {"k": 50, "window": 24, "profile": "crossing", "listed": True}}
    with machine(tmp_path / "data", KEYS, Cors.of([PAGE]), types) as made:
        found = _of(made, "GET", "/v1/types/terms/released", PAGE)
    assert (found["status"], found["vary"]) == ("200", "Accept, Origin")
