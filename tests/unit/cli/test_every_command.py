"""Rules for all commands, also new ones: an example in the help, JSON in one case, no traceback."""

import ast
import json
import os
import re
import shlex
import socket
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kanon
from kanon import cli
from kanon.cli.errors import CommandError
from kanon.cli.screen import show_json
from kanon.client import NoAnswerError
from tests.paths import ROOT
from tests.unit.cli.commands import commands, run

COMMANDS = commands()
EXAMPLE = re.compile(r"^Example: (.+)$", re.MULTILINE)
FILE = re.compile(r"[\w/.-]+\.[a-z]+")
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "10"))
SOURCES = sorted(Path(str(cli.__file__)).parent.glob("*.py"))


def example(name: str) -> list[str]:
    """The words of the example in the help of a command, after the command's own."""
    found = EXAMPLE.search(COMMANDS[name].help or "")
    assert found, f"{name}: add a line `Example: {name} ...` to its docstring"
    words = shlex.split(found[1])
    own = name.split()
    assert words[: len(own)] == own, f"the example of {name} is one of another command"
    return words[len(own) :]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_text_has_an_example_that_the_command_accepts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = example(name)
    monkeypatch.chdir(tmp_path)
    for word in filter(FILE.fullmatch, words):
        Path(word).parent.mkdir(parents=True, exist_ok=True)
        Path(word).touch()
    COMMANDS[name].make_context(name, words)  # parses, and does not run


def test_the_test_finds_an_example_with_an_unknown_option() -> None:
    with pytest.raises(Exception, match="No such option"):
        COMMANDS["kanon demo"].make_context("kanon demo", ["--logs", "x"])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_every_command_prints_json_with_one_function(path: Path) -> None:
    tree = ast.parse(path.read_text())
    own = any(isinstance(n, ast.Constant) and n.value == "--json" for n in ast.walk(tree))
    assert not own or path.name == "options.py", "declare --json with kanon.cli.options.Json"
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    assert own or "Json" not in names or "show_json" in names, "print JSON with kanon.cli.screen.show_json"
    indented = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call)
        and ast.unparse(n.func) == "json.dumps"
        and any(k.arg == "indent" for k in n.keywords)
    ]
    assert path.name == "screen.py" or not indented, "print JSON with kanon.cli.screen.show_json"


def test_json_has_camel_case_names_and_leaves_data_alone(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"keys_released": 1, "inner_part": [{"a_b": None}], "errors": {"NUM_REPORTS": 2}, "5%": 3}
    show_json({**value, "exact_delta_at_0.5": 4, "types": {"type": {"client_bits": 16}}})
    assert json.loads(capsys.readouterr().out) == {
        "keysReleased": 1,
        "innerPart": [{"aB": None}],
        "errors": {"NUM_REPORTS": 2},
        "5%": 3,
        "exactDeltaAt0.5": 4,
        "types": {"type": {"client_bits": 16}},
    }


def test_the_printed_version_equals_the_version_of_the_package() -> None:
    assert run("--version") == (0, f"kanon {kanon.__version__}\n")


def test_every_command_is_in_one_panel_of_the_help() -> None:
    panels = ["Use the gate", "Decide parameters", "Publish once", "Run a service"]
    _, shown = run("--help")
    found = re.split("|".join(panels), shown)
    assert len(found) == 1 + len(panels)
    listed = [set(re.findall(r"^\W*([a-z-]+)  ", part, re.MULTILINE)) for part in found[1:]]
    assert all(listed)
    names = [name for panel in listed for name in panel]
    assert sorted(names) == sorted({name.split()[1] for name in COMMANDS})


def test_options_of_one_name_all_take_a_value_or_are_all_flags() -> None:
    options = {(p.opts[0], p.is_flag) for c in COMMANDS.values() for p in c.params if p.param_type_name == "option"}
    assert len(options) > 100
    assert [name for name, number in Counter(name for name, _ in options).items() if number > 1] == []


def test_completion_is_offered() -> None:
    assert "--install-completion" in run("--help")[1]


ONE_TYPE = '{"k": 20, "window": 24, "profile": "sharp-2"}'
REFUSED = [
    (["serve", "--port", "-5"], ["--port", "greater than or equal to 0"]),
    (["serve", "--port", "99999"], ["--port", "less than or equal to 65535"]),
    (["serve", "--period", "0"], ["--period", "greater than or equal to 1"]),
    (["serve", "--period", "1"], ["--period", "must be at least 2 without --data"]),
    (["serve", "--host", "0.0.0.0"], ["--host has no effect without --data"]),
    (["serve", "--join-auth", "OPEN"], ["--join-auth has no effect without --data"]),
    (["serve", "--data", "new", "--parameters", "list.json"], ["--parameters has no effect with --data"]),
    (["serve", "--data", "new"], ["a new deployment needs types: give --type or --types"]),
    (["serve", "--data", "new", "--type", '{"k": 20}'], ["type 'fledge'"]),
    (["serve", "--data", ".", "--type", ONE_TYPE], ["is not empty and holds no deployment"]),
    (["serve", "--data", "empty/x", "--type", ONE_TYPE], ["empty/x cannot be used: Not a directory"]),
    (["serve", "--data", "new", "--join-auth", "NONE"], ["--join-auth", "OPEN", "KEY", "JWT"]),
    (["serve", "--data", "new", "--batch-auth", "OPEN"], ["--batch-auth", "batches always need KEY or JWT"]),
    (["serve", "--data", "new", "--join-auth", "JWT"], ["JWT needs --jwks, --issuer and --audience"]),
    (["serve", "--data", "new", "--issuer", "x"], ["no effect without --join-auth JWT"]),
    (
        ["serve", "--data", "new", "--type", ONE_TYPE, "--host", "192.0.2.1"],
        ["--host", "192.0.2.1 is no address of this machine"],
    ),
    (
        ["serve", "--data", "new", "--type", ONE_TYPE, "--host", "no such name"],
        ["--host", "no such name is no address of this machine"],
    ),
    (["serve", "--data", "new", "--type", ONE_TYPE, "--host", ""], ["--host", "give an address, such as 127.0.0.1"]),
    (["operate", "api-key"], ["Missing option", "--data"]),
    (["operate", "api-key", "--data", "new"], ["new holds no deployment: run `kanon serve --data new` first"]),
    (["operate", "api-key", "--data", "new", "--name", "a", "--revoke", "b"], ["give --name for a new key, or"]),
    (["serve", "--type", "{"], ["--type", "not valid JSON"]),
    (["serve", "--types", "nowhere.json"], ["--types", "nowhere.json cannot be read"]),
    (["serve", "--parameters", "nowhere.json"], ["--parameters", "nowhere.json cannot be read"]),
    (["serve", "--parameters", "empty"], ["--parameters", "not valid JSON"]),
    (["serve", "--parameters", "list.json"], ["must be a JSON object of NoiseKeys and LogGenerations"]),
    (["serve", "--parameters", "period.json"], ["must be a JSON object of NoiseKeys and LogGenerations"]),
    (["demo", "--from", "2026-01-01"], ["name it with --log"]),
    (["demo", "--to", "2026-01-01"], ["name it with --log"]),
    (["demo", "--columns", "a,b,c"], ["--columns has no effect", "name it with --log"]),
    (["demo", "--from", "1.1.2026", "--log", "empty"], ["--from", "write it as 2026-01-31"]),
    (["demo", "--to", "2026-02-30", "--log", "empty"], ["--to", "write it as 2026-01-31"]),
    (["demo", "--log", "nowhere.csv"], ["--log", "nowhere.csv", "does not exist"]),
    (["demo", "--log", "."], ["cannot be read"]),
    (["demo", "--type", ONE_TYPE, "--types", "empty"], ["give --type or --types, not both"]),
    (["demo", "--log", "empty"], ["empty: line 1 is empty; it must name the columns"]),
    (["demo", "--columns", "a,b", "--log", "empty"], ["--columns", "three names"]),
    (
        ["demo", "--log", "far.csv"],
        ["spans 70,389,505 steps, more than 1,048,576, from 1970-01-01 to 9999-12-31", "or give --from and --to"],
    ),
    (["demo", "--plot", "x.txt"], ["--plot", "a name that ends in .svg"]),
    (["demo", "--seed", "-1"], ["--seed", "greater than or equal to 0"]),
    (["plan", "--plot", "x.txt"], ["--plot", "a name that ends in .png"]),
    (["plan", "--paper", "x.txt"], ["--paper", "a name that ends in .png"]),
    (["plan", "--epsilon", "three"], ["--epsilon must be a decimal such as 2.25 or 1e-5, not 'three'"]),
    (["plan", "--epsilon", "1/3"], ["--epsilon must be a decimal between 0.01 and 20, not 1/3"]),
    (["plan", "--epsilon", "0"], ["--epsilon must be a decimal between 0.01 and 20, not 0"]),
    (["plan", "--epsilon", "nan"], ["--epsilon must be a decimal such as"]),
    (["plan", "--delta", "1"], ["--delta must be below 0.01, not 1"]),
    (["plan", "--delta", "0.01"], ["--delta must be below 0.01, not 0.01"]),
    (["plan", "--delta", "2"], ["--delta must be a decimal between 1e-15 and 1, not 2"]),
    (["plan", "--delta", "0"], ["--delta must be a decimal between 1e-15 and 1, not 0"]),
    (["plan", "--compare", "--profile", "sharp"], ["leave --profile out"]),
    (["plan", "--profile", "crossing", "--restart", "grid"], ["--restart has no effect with --profile"]),
    (
        ["plan", "--profile", "crossng"],
        [
            "profile must be one of balanced, balanced-2, crossing, published, returning, sharp",
            "did you mean crossing?",
        ],
    ),
    (["plan", "--window", "1"], ["--window"]),
    (["plan", "--unit", "year", "--restart", "grid"], ["--unit year needs a hold"]),
    (
        ["plan", "--unit", "year", "--epsilon", "1001"],
        ["--epsilon must be a decimal between 0.01 and 1000, not 1001"],
    ),
    (["plan", "--epsilon", "0.5"], ["raise k, epsilon or delta"]),
    (["plan", "--profile", "published", "--epsilon", "2"], ["choose another profile"]),
    (["reports", "demo", "--plot", "x.txt"], ["--plot", "a name that ends in .png"]),
    (["reports", "demo", "--log", "empty"], ["empty: line 1 is empty"]),
    (["risk", "uniqueness", "empty", "--plot", "x.txt"], ["--plot", "a name that ends in .png"]),
    (["doctor", "--stack", "a", "--url", "http://127.0.0.1:1"], ["give --stack or --url, not both"]),
    (["doctor", "--region", "eu-central-1"], ["name it with --stack"]),
    (["doctor", "--url", "http://127.0.0.1:99999"], ["http://127.0.0.1:PORT"]),
    (["doctor", "--url", "http://["], ["http://127.0.0.1:PORT"]),
    (["audit", "--trials", "1"], ["--trials", "greater than or equal to 200"]),
    (["audit", "--seed", "-1"], ["--seed", "greater than or equal to 0"]),
    (["serve", "--type", '{"k": 20, "window": 24}'], ["--type", "type 'fledge': give either a profile or laws"]),
    (["plan", "--k", "two"], ["--k", "valid integer"]),
    (["plan", "--ks", "2"], ["No such option: --ks", "see kanon plan --help"]),
    (["plan", "--k"], ["kanon plan: Option '--k' requires an argument: see kanon plan --help"]),
    (
        ["risk", "no-noise", "x", "--k"],
        ["kanon risk no-noise: ", "requires an argument: see kanon risk no-noise --help"],
    ),
    (["simulate"], ["Missing argument", "log"]),
    (["simulate", "/no/such/log.csv"], ["check the path"]),
    (["simulate", "empty", "--k", "many"], ["whole numbers separated by commas"]),
    (["simulate", "empty", "--window", "1.5"], ["whole numbers separated by commas"]),
    (["simulate", "empty", "--window", "0"], ["positive whole numbers"]),
    (["simulate", "empty", "--k", "9" * 30], ["positive whole numbers"]),
    (
        ["simulate", "empty", "--profile", "published,crossng"],
        ["--profile: profile must be one of balanced, balanced-2, crossing", "not 'crossng' (did you mean crossing?)"],
    ),
    (["simulate", "empty", "--window", "24,1"], ["--window: must be at least 2, not 1"]),
    (
        ["simulate", "empty", "--window", "24,70000"],
        ["--k or --window: type 'fledge': window: Input should be less than or equal to"],
    ),
    (["simulate", "empty", "--columns", "a,b"], ["--columns: give three names"]),
    (
        ["simulate", "line.csv", "--columns", "a,b,c"],
        ["expected a, b, c; check that line 1 is the header, and the names of columns (--columns TIME,SET,CLIENT)"],
    ),
    (
        ["simulate", "empty", "--k", ",".join(map(str, range(50, 75))), "--profile", "sharp-2"],
        ["25 combinations are more than 24"],
    ),
    (["simulate", "empty", "--type", "{}", "--types", "x"], ["give --type or --types, not both"]),
    (["simulate", "empty", "--period", "0"], ["--period"]),
    (["simulate", "empty", "--noise-key", "x"], ["No such option"]),
    (["simulate", "empty", "--prices", "/no/such/file"], ["cannot be read"]),
    (["simulate", "empty", "--html", "/dev/null/x"], ["cannot be written"]),
    (["simulate", "empty", "--type", ONE_TYPE, "--k", "20"], ["--k has no effect", "change the type"]),
    (["simulate", "empty", "--type", ONE_TYPE, "--profile", "sharp"], ["--profile has no effect"]),
    (["plan", "--paper", "x.png", "--k", "50"], ["--k has no effect with --paper"]),
    (["cost", "--jobs", "1"], ["--jobs has no effect", "give --reports"]),
    (["cost", "--table", "elsewhere", "--joins", "1"], ["--joins has no effect with --table: leave it out"]),
    (["cost", "--batch", "501"], ["kanon cost: batch must lie between 1 and 500, not 501"]),
    (["cost", "--prices", "nowhere.json"], ["kanon cost: nowhere.json cannot be read: No such file or directory"]),
    (["cost", "--period", "100000"], ["'--period': Input should be less than or equal to 86400"]),
    (["cost", "--hashes", "5"], ["--hashes has no effect without queries"]),
    *(
        (["cost", "--joins", "0", *given], [f"{given[0]} has no effect without joins"])
        for given in (["--batch", "9"], ["--sets", "9"], ["--popularity", "0"])
    ),
    (["cost", "--slots", "3"], ["kanon cost: slots must be a power of two up to 256, not 3"]),
    (["cost", "--slots", "0"], ["kanon cost: slots must be a power of two up to 256, not 0"]),
    (["cost", "--type", "{"], ["not valid JSON"]),
    (["cost", "--type", '{"k": 0}', "--type", '{"k": 1}'], ["Invalid value"]),
    (["cost", "--table", "reports", "--type", ONE_TYPE], ["--type has no effect with --table"]),
    (["plan", "more"], ["unexpected extra argument"]),
    (["foo"], ["No such command"]),
    (["reports", "foo"], ["No such command", "see kanon reports --help"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "parts"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_a_bad_option_gets_status_2_and_one_line_that_says_what_to_change(
    arguments: list[str], parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "line.csv").write_text("time,set,client\n")
    (tmp_path / "far.csv").write_text("time,set,client\n1970-01-01,a,b\n9999-12-31,a,b\n")
    (tmp_path / "period.json").write_text('{"Period": 5}')
    status, output = run(*arguments)
    assert status == 2
    assert [part for part in parts if part not in output] == [], output
    assert output.startswith("kanon")
    assert output.count("\n") == 1
    assert "Value error" not in output


@pytest.mark.slow
def test_a_file_that_fails_when_it_is_written_ends_a_command_with_one_line(tmp_path: Path) -> None:
    (full := tmp_path / "full.png").symlink_to("/dev/full")
    status, output = run("plan", "--profile", "published", "--plot", str(full))
    assert (status, output.splitlines()[-1]) == (2, "kanon plan: --plot cannot be written: No space left on device")


@pytest.mark.parametrize("group", ["kanon", "kanon operate", "kanon reports"])
def test_a_group_without_a_command_shows_its_help(group: str) -> None:
    status, output = run(*group.split()[1:])
    assert status == 2
    assert f"Usage: {group} [OPTIONS] COMMAND" in output
    assert "--help" in output


@pytest.mark.slow
def test_a_port_that_is_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        status, output = run("serve", "--port", str(port))
    assert status == 2
    assert f"port {port} is in use: choose another" in output
    assert output.count("\n") == 1


STACK_COMMANDS = ["doctor", "explain --type fledge --set aGVsbG8", "operate skip", "reports demo-service"]


@pytest.mark.parametrize("command", STACK_COMMANDS)
def test_an_error_of_a_stack_is_one_line_that_names_the_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(*_: Any) -> None:
        raise NoAnswerError("no answer from http://127.0.0.1:1: check the address")

    monkeypatch.setattr("kanon.operate.stacks.local_stack", stops)
    name = command.partition(" --")[0]
    assert run(*command.split()) == (2, f"kanon {name}: no answer from http://127.0.0.1:1: check the address\n")


@pytest.mark.parametrize("command", STACK_COMMANDS)
def test_a_refused_call_names_the_permissions_that_the_command_needs(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "DescribeStacks")

    monkeypatch.setattr("kanon.operate.stacks.local_stack", refuses)
    status, output = run(*command.split())
    assert status == 2
    assert "DescribeStacks answered AccessDenied" in output
    page = re.search(r"docs/guides/operate\.md#(.+) names the permissions", output)
    headings = (ROOT / "docs" / "guides" / "operate.md").read_text().splitlines()
    assert "the command needs cloudformation" in output or (page and f"## {page[1].replace('-', ' ')}" in headings)


# Words that an option may be given, of which most are wrong for it.
WORDS = st.sampled_from(
    [
        *("", "-", "-1", "0", "1", "2", "65536", "9" * 30, "1e-5", "1e999", "nan", "inf", "-inf", "1/0", "0x1", "é"),
        *("{}", "[]", "null", "{", '{"k": 1}', ONE_TYPE, "empty", "nowhere", ".", "/proc/x/y.png", "x.png", "x.txt"),
        *("set", "a,b,c", "set+day", "a/b", "fledge/!", "http://[", "http://127.0.0.1:1", "2026-13-01", "\ud800", "%s"),
    ]
)


@st.composite
def invocations(draw: st.DrawFn) -> list[str]:
    """A command with some of its options, each with some word."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    parameters = [p for p in COMMANDS[name].params if p.name != "help"]
    arguments = [
        draw(WORDS) for p in parameters if p.param_type_name == "argument" for _ in range(draw(st.integers(0, 2)))
    ]
    options = [p for p in parameters if p.param_type_name == "option"]
    for option in draw(st.lists(st.sampled_from(options), max_size=4)) if options else []:
        arguments += [option.opts[0]] if option.is_flag else [option.opts[0], draw(WORDS)]
    return [*name.split()[1:], *arguments]


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands read and judge their options; what would take long ends where it begins."""
    import kanon.audit.mechanism
    import kanon.demo.logs
    import kanon.local

    def stop(*_: Any, **__: Any) -> None:
        raise CommandError("stopped: start it again", 1)

    monkeypatch.setattr(kanon.local.Stack, "__enter__", stop)
    monkeypatch.setattr(kanon.audit.mechanism, "audit_in_process", lambda *_: ([], []))
    monkeypatch.setattr("kanon.audit.service.audit_service", lambda *_: ([], []))
    small = partial(kanon.demo.logs.generated_log, days=9, joins=40, sets=3)
    monkeypatch.setattr(kanon.demo.logs, "generated_log", lambda seed, **_: small(seed))
    monkeypatch.setattr("kanon.demo.reported_log.draw", lambda *_: b"")
    for name in ("planner.best_plan", "planner.profile_plan", "planner.compare", "figures.draw_figure_1"):
        monkeypatch.setattr(f"kanon.plan.{name}", stop)
    monkeypatch.setattr("kanon.simulate.page.page", lambda *_: "")
    monkeypatch.setattr("kanon.risk.page.picture", lambda *_: b"<svg")
    monkeypatch.setattr("kanon.release.releasing.release", stop)
    monkeypatch.setattr("kanon.demo.reported_log.Files.write", stop)
    monkeypatch.setattr("kanon.operate.stacks.deployed_stack", stop)
    monkeypatch.setattr("kanon.cli.stacks.LOCAL", "http://127.0.0.1:1")  # never a service that runs on this machine
    monkeypatch.setattr("kanon.client.client.DEADLINE", 0.0)  # and none is waited for
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()


WRONG = (None, "", "-1", "0", "9" * 30, "inf", "nan", "x", "nowhere/x.csv", ".", "/proc/x/y.png")
"""Values of an option: missing, empty, negative, zero, huge, infinite, no number, and paths that cannot be used."""
LINES = [
    (name, parameter.opts[0], WRONG[(place + at) % len(WRONG)])
    for at in range(len(WRONG) if EXAMPLES >= 1000 else 1)
    for place, (name, parameter) in enumerate((name, p) for name in sorted(COMMANDS) for p in COMMANDS[name].params)
    if parameter.param_type_name == "option" and not parameter.is_flag and parameter.name != "help"
]
"""Every option of every command with one of these values, in the long form with each."""
CONTENTS = {
    ".csv": "time,set,client,key,value\n"
    + "".join(f"{1_767_225_600 + n},set-{n % 2},c{n},{n % 2},1\n" for n in range(9)),
    ".txt": "1\n2\n",
    ".json": "{}",
}


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_wrong_value_of_an_option_gets_one_line_that_says_what_to_change(name: str) -> None:
    base = example(name)
    for word in filter(FILE.fullmatch, base):
        Path(word).parent.mkdir(parents=True, exist_ok=True)
        Path(word).write_text(CONTENTS.get(Path(word).suffix, ""))
    for _, option, value in (line for line in LINES if line[0] == name):
        arguments = [*name.split()[1:], *base, option] + ([] if value is None else [value])
        status, output = run(*arguments)
        assert status in range(7), (arguments, output)
        errors = [line for line in output.splitlines() if line.startswith("kanon")]
        if status:
            assert len(errors) == 1, (arguments, output)
            assert re.fullmatch(rf"(kanon|{name}): .*\w.*", errors[0]), (arguments, output)


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(arguments=invocations())
@pytest.mark.usefixtures("nothing_runs")
def test_no_options_end_in_a_traceback(arguments: list[str]) -> None:
    status, output = run(*arguments)
    assert status in range(7), (arguments, output)
    assert "Traceback" not in output
