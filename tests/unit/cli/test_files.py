"""No command writes over an input, or over a file that kanon did not write, unless it is told to."""

import ast
import json
import os
import shutil
import stat
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer import BadParameter

from kanon import cli
from kanon.cli.errors import CommandError
from kanon.cli.files import OutputFiles
from kanon.created import PRIVATE
from tests.unit.cli.commands import commands, run

READ = {
    *("log", "logs", "types_file", "types", "prices", "measured", "parameters", "groups", "key"),
    *("sketches", "first", "second", "reports", "domain", "keys", "events", "file", "jwks", "data", "joins"),
    *("sets", "table", "tags", "to"),
}
"""The parameters with a path that is read. ``risk --key`` makes a missing file, and never replaces one.

``--data`` names a directory that holds a deployment, or is made. The table of ``gate --out`` is appended to, if
``gate`` made it; a backup is a new directory."""

ASKED = "--group set --epsilon 1 --delta 1e-6 --dataset d"
WRITERS = {
    "demo --log joins.csv --plot": "OUT.svg",
    "plan --profile published --plot": "OUT.png",
    "plan --paper": "OUT.png",
    f"release joins.csv {ASKED} --out": "OUT.csv",
    f"release joins.csv {ASKED} --operator-report": "OUT.json",
    "reports aggregate joins.csv --discover --keys public-keys.json --out": "OUT.avro",
    "reports demo --log joins.csv --plot": "OUT.png",
    "reports demo-service --log joins.csv --url http://127.0.0.1:1 --plot": "OUT.png",
    "reports domain joins.csv --out": "OUT.avro",
    "reports keys --private": "OUT.json",
    "reports keys --public": "OUT.json",
    "reports respond joins.csv --out": "OUT.json",
    "reports simulate joins.csv --keys public-keys.json --out": "OUT.avro",
    "risk merge joins.csv --out": "OUT.khll",
    "risk uniqueness joins.csv --html": "OUT.html",
    "risk uniqueness joins.csv --out": "OUT.khll",
    "risk uniqueness joins.csv --plot": "OUT.png",
    "simulate joins.csv --html": "OUT.html",
}
"""A command line for every option that names an output."""

PNG = b"\x89PNG\r\n\x1a\n" + bytes(25) + b"rest"
HTML = b"<!doctype html>\n<html></html>\n"
JSON = b'{\n  "a": 1\n}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "joins.csv").write_text("time,set,client\n1767225600,a,1\n")
    (tmp_path / "public-keys.json").write_text('{"keys": [{"id": "a", "key": "%s="}]}' % ("A" * 43))
    return tmp_path


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def outputs(force: bool = False, **given: Any) -> OutputFiles:
    """The outputs of a command with some parameters."""
    parameters = [SimpleNamespace(name=name, opts=[f"--{name}"]) for name in given]
    context: Any = SimpleNamespace(command=SimpleNamespace(params=parameters), params=given)
    return OutputFiles(context, force=force)


def test_every_option_with_a_path_is_read_or_written_with_force() -> None:
    found = set()
    for name, command in commands().items():
        own = name.removeprefix("kanon ")
        paths = [p for p in command.params if "pathlib" in str(getattr(p, "type_descriptor", p).annotation)]
        written = {p.opts[0] for p in paths if p.name not in READ}
        found |= {(own, option) for option in written}
        assert bool(written) == any(p.opts == ["--force"] for p in command.params), name
    assert found == {(line.partition(" --")[0].replace(" joins.csv", ""), line.split()[-1]) for line in WRITERS}


@pytest.mark.parametrize("path", sorted(Path(str(cli.__file__)).parent.glob("*.py")), ids=lambda path: path.name)
def test_no_command_writes_a_file_by_itself(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        assert called.split(".")[-1] not in ("write_text", "write_bytes", "savetxt"), ast.unparse(node)
        assert called.split(".")[-1] != "savefig" or "BytesIO" in path.read_text()
        mode = (
            [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)] if called.split(".")[-1] == "open" else []
        )
        assert not {"w", "wb", "x", "xb", "a", "ab"} & set(mode), ast.unparse(node)


@pytest.mark.parametrize(("line", "name"), WRITERS.items(), ids=list(WRITERS))
def test_no_command_writes_over_its_input_or_a_file_of_somebody_else(line: str, name: str, folder: Path) -> None:
    own = name.replace("OUT", "taken")
    (folder / own).write_text("mine\n")
    (folder / name.replace("OUT", "symbolic")).symlink_to("joins.csv")
    os.link("joins.csv", name.replace("OUT", "hard"))
    before = content(folder)
    for stem in ("./taken", "symbolic", "hard"):
        status, output = run(*line.split(), name.replace("OUT", stem))
        assert status == 2, output
        assert output.count("\n") == 1
        assert "choose another name" in output
        assert content(folder) == before
    reads = "joins.csv" in line
    assert ("is also given as" if reads else "exists already: choose another name, or write over it") in output


def test_a_file_is_written_again_only_as_kanon_wrote_it(tmp_path: Path) -> None:
    made = {tmp_path / "a.png": PNG, tmp_path / "b.htm": HTML, tmp_path / "c.json": JSON}
    outputs().write(made)
    assert json.loads((tmp_path / "c.json").read_text())["a"] == 1
    for path in made:
        outputs().check(path, "--out")
        whole = path.read_bytes()
        path.write_bytes(whole[:-2] + b"x" + whole[-1:])
        with pytest.raises(BadParameter, match="exists already"):
            outputs().check(path, "--out")
        outputs(force=True).check(path, "--out")


def test_a_table_is_recognised_by_its_description(tmp_path: Path) -> None:
    table, description = tmp_path / "t.csv", tmp_path / "t.json"
    described = json.dumps({"table_sha256": sha256(b"a\n1\n").hexdigest()}, indent=2).encode()
    outputs().write({table: b"a\n1\n", description: described})
    outputs().check(table, "--out")
    table.write_text("a\n2\n")
    with pytest.raises(BadParameter, match="exists already"):
        outputs().check(table, "--out")
    table.write_text("a\n1\n")
    description.write_bytes(described)
    with pytest.raises(BadParameter, match="exists already"):
        outputs().check(table, "--out")


def test_an_empty_file_may_be_written_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "made-by-mktemp"
    path.touch(mode=0o600)
    made = outputs()
    made.check(path, "--html")
    made.write({path: HTML})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_options_do_not_name_one_file(tmp_path: Path) -> None:
    for force in (False, True):
        made = outputs(force=force)
        made.check(tmp_path / "page.html", "--html")
        with pytest.raises(BadParameter, match="is also the file of --html"):
            made.check(tmp_path / "." / "PAGE.html", "--out")


def test_an_input_is_found_by_any_name_among_several(tmp_path: Path) -> None:
    outputs().write({tmp_path / "a.html": HTML})
    os.link(tmp_path / "a.html", tmp_path / "b.html")
    with pytest.raises(BadParameter, match="is also given as --logs"):
        outputs(logs=["x\0y", str(tmp_path / "b.html")]).check(tmp_path / "a.html", "--html")
    outputs(force=True, logs=[tmp_path / "b.html"]).check(tmp_path / "a.html", "--html")


def test_a_link_stays_and_the_file_that_it_names_is_written(tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to("page.html")
    outputs().write({tmp_path / "link.html": HTML})
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "page.html").read_bytes().endswith(b"<html></html>\n")


def appears(path: Path) -> None:
    path.write_text("mine")


def fails(_: Path) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("event", "message"), [(appears, "exists already"), (fails, "--html cannot be written: No sp")]
)
def test_after_an_error_no_new_file_remains_and_no_file_is_lost(
    event: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    new, old = tmp_path / "a.html", tmp_path / "b.html"
    made = outputs()
    made.check(new, "--html")
    old.write_text("")
    with pytest.raises(CommandError, match=message), made.created() as create, create(old, PRIVATE), create(new, 0o644):
        event(new)
    assert old.read_text() == ""
    assert not [path for path in tmp_path.iterdir() if path not in (old, new) or path.read_text() not in ("", "mine")]


def test_a_private_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.khll"
    path.touch(mode=0o644)
    outputs().write({path: b"kanonKHL"}, PRIVATE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_pipe_is_written_directly(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    made = outputs()
    made.check(path, "--html")
    made.write({path: HTML})
    assert os.read(reader, 1 << 16).endswith(b"<html></html>\n")
    os.close(reader)


def test_a_folder_is_made(tmp_path: Path) -> None:
    outputs().picture(tmp_path / "new" / "a.PNG", "--plot")
    assert (tmp_path / "new").is_dir()
    outputs().picture(None, "--plot")


def test_a_picture_that_is_not_a_png_is_refused(tmp_path: Path) -> None:
    for name in ("x.txt", "x", "x.svg"):
        with pytest.raises(BadParameter, match="give a name that ends in"):
            outputs().picture(tmp_path / name, "--plot")


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "x.png", tmp_path / "folder", Path("/proc/x/y.png"), Path("a\0b/x.png")):
        with pytest.raises(BadParameter, match="cannot be written"):
            outputs().check(path, "--out")


@pytest.mark.slow
def test_a_written_picture_can_still_be_read(folder: Path) -> None:
    from matplotlib import image

    shutil.copy(Path(__file__).parents[3] / "docs" / "profiles.png", "demo.png")
    shown = image.imread("demo.png")
    outputs(force=True).write({Path("again.png"): Path("demo.png").read_bytes()})
    assert (image.imread("again.png") == shown).all()
