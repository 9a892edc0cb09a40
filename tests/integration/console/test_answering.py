"""The console answers its own page on this machine and nobody else, and shows what the commands print."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.console.answering import COMMANDS, TOKEN, Console, ConsoleResponse, arguments

HOST = "127.0.0.1:8000"
CALLER = {"host": HOST, "origin": f"http://{HOST}", TOKEN: "secret", "content-type": "application/json"}


def answered(console: Console, method: str, path: str, headers: dict[str, str], body: str = "") -> ConsoleResponse:
    """The reply to a request that is for the console."""
    reply = console.answer(method, path, headers, body)
    assert reply is not None
    return reply


def called(command: str, given: Any = None, method: str = "POST", **headers: str | None) -> ConsoleResponse:
    sent = {name: value for name, value in {**CALLER, **headers}.items() if value is not None}
    body = given if isinstance(given, str) else json.dumps(given)
    return answered(Console("secret"), method, f"/console/run/{command}", sent, body)


@pytest.mark.parametrize("host", [HOST, "localhost:1", "[::1]:8000", "LOCALHOST"])
@pytest.mark.parametrize("path", ["/", "/console/page.js", "/console/page.css"])
def test_the_page_is_served_under_names_of_loopback(host: str, path: str) -> None:
    shown = answered(Console(), "GET", path, {"host": host})
    assert shown.status == 200
    assert "default-src 'none'" in shown.headers["Content-Security-Policy"]
    assert "unsafe" not in shown.headers["Content-Security-Policy"]


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org", "", "[", "0.0.0.0:8000", "10.0.0.1"])
def test_there_is_no_console_under_another_name(host: str) -> None:
    for path in ("/", "/console/page.js", "/console/clock", "/console/run/plan", "/console/run/clock"):
        assert (
            Console("secret").answer("POST" if "run" in path else "GET", path, {**CALLER, "host": host}, "{}") is None
        )


def test_other_paths_are_left_to_the_service() -> None:
    for path in ("/v1/types", "/console", "/console/page.html", "/console/../page.js", "//"):
        assert Console().answer("GET", path, {"host": HOST}, "") is None
    assert Console().answer("POST", "/", {"host": HOST}, "") is None


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (403, {"origin": "https://example.org"}),
        (403, {"origin": "http://127.0.0.1:8001"}),
        (403, {"origin": "null"}),
        (403, {TOKEN: "guess"}),
        (403, {TOKEN: "é"}),
        (403, {TOKEN: None}),
        (415, {"content-type": "text/plain"}),
        (415, {"content-type": None}),
    ],
)
def test_a_call_of_another_page_is_refused_before_anything_runs(
    status: int, headers: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kanon.console.answering.subprocess.run", lambda *_, **__: 1 // 0)
    for command in ("plan", "clock"):
        reply = called(command, {"k": "50"}, **headers)
        assert reply.status == status
        assert json.loads(reply.body)["problem"]
    with pytest.raises(ZeroDivisionError):
        called("plan", {"k": "50"})


def test_the_clock_of_a_rehearsal_is_moved_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[float] = []
    monkeypatch.setattr("kanon.clock.now", lambda: sum(moved))
    console = Console("secret", moved.append)
    reply = answered(console, "POST", "/console/run/clock", CALLER, '{"to": 60.5}')
    assert json.loads(reply.body) == {"now": 60.5, "moves": True}
    assert console.answer("GET", "/console/clock", {"host": HOST}, "") == reply


def test_the_clock_of_a_service_for_real_use_is_only_shown() -> None:
    shown = answered(Console("secret"), "GET", "/console/clock", {"host": HOST})
    assert json.loads(shown.body)["moves"] is False
    reply = called("clock", {"to": 1e12})
    assert reply.status == 400
    assert "start kanon serve without --data" in json.loads(reply.body)["problem"]


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "{}", '{"to": "1"}', '{"to": true}', '{"to": null}', '{"to": 1, "by": 1}', "[" * 100_000]
)
def test_a_move_of_another_form_is_refused(body: str) -> None:
    console = Console("secret", lambda _: 1 // 0)  # type: ignore[arg-type,return-value]
    assert answered(console, "POST", "/console/run/clock", CALLER, body).status == 400


def test_only_post_runs_a_command() -> None:
    assert called("plan", {}, "GET").status == 405


@pytest.mark.parametrize(
    ("command", "given", "said"),
    [
        ("operate", {}, "it runs plan, cost, simulate"),
        ("plan", {"plot": "/etc/x"}, "unknown option 'plot': kanon plan takes delta, epsilon, k,"),
        ("simulate", {"html": "x", "log": ""}, "unknown option 'html'"),
        ("simulate", {"k": "50"}, "log is missing"),
        ("plan", {"k": 50}, "JSON object of texts"),
        ("plan", [], "JSON object of texts"),
        ("plan", "{", ""),
        ("plan", "[" * 100_000, "recursion"),
        ("plan", {"k": "5\0"}, "options are ASCII texts"),
        ("plan", {"k": "é"}, "options are ASCII texts"),
        ("simulate", {"log": "\ud800"}, "surrogates not allowed"),
        ("plan", {"k": "many"}, "'--k': Input should be a valid integer"),
        ("plan", {"k": "0"}, "k"),
        ("plan", {"epsilon": "--plot=/tmp/x"}, "must be a decimal"),
    ],
)
def test_what_cannot_be_run_is_refused_with_what_to_change(command: str, given: Any, said: str) -> None:
    reply = called(command, given)
    assert reply.status == 400
    assert said in json.loads(reply.body)["problem"]


def test_a_value_cannot_become_another_option() -> None:
    assert arguments("plan", {"k": "5 --plot x", "epsilon": "3"}) == ["--epsilon=3", "--k=5 --plot x"]


def test_no_command_that_the_page_runs_writes_a_file() -> None:
    assert not {"plot", "paper", "force", "html", "prices", "measured", "types"} & set().union(*COMMANDS.values())


@pytest.mark.parametrize("command", ["plan", "cost"])
def test_the_page_shows_what_the_command_prints(command: str) -> None:
    given = {"plan": {"k": "30", "window": "24"}, "cost": {"joins": "5", "queries": "1"}}[command]
    shown = json.loads(called(command, given).body)
    assert shown.pop("warnings") == []
    printed = CliRunner().invoke(app, [command, "--json", *(f"--{name}={value}" for name, value in given.items())])
    assert shown == json.loads(printed.stdout)


def test_a_log_stays_in_a_folder_that_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []

    def ran(words: list[str], folder: str) -> ConsoleResponse:
        folders.append(folder)
        assert words[:3] == ["simulate", "--json", "log.csv"]
        return ConsoleResponse(200, {}, "{}")

    monkeypatch.setattr("kanon.console.answering._ran", ran)
    called("simulate", {"log": "time,set,client\n", "k": "50"})
    assert not Path(folders[0]).exists()


def test_tokens_are_new_at_each_start_and_never_sent_by_a_browser() -> None:
    assert Console().token != Console().token
    assert Console("abc").address("http://127.0.0.1:1") == "http://127.0.0.1:1/#abc"
