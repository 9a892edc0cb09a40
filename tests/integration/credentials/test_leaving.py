"""Who wants to be forgotten: an operator deletes accounts, and forgets joins whose tags their persons compute."""

import base64
import json
from pathlib import Path

import pytest

from kanon import clock
from kanon.client import SetId
from kanon.client.anonymous import Anonymous, EnrolmentError, recovery_code
from kanon.errors import ConfigurationError
from kanon.gate.forgetting import Tag, members, tokens_of
from kanon.gate.names import client_token, set_key
from kanon.gate.storage.disk.log import entry_of
from kanon.serving.directory import Directory, Given, open_directory
from kanon.serving.forgetting import forget, forget_tags
from tests.integration.credentials.people import PERIOD, TYPE, TYPES, account, client_of, device, served
from tests.integration.serving.machine import Machine
from tests.unit.cli.commands import run

SETS = [SetId("aGVsbG8"), SetId("d29ybGQ")]
ME, OTHER = "me", "other"


def of(line: str) -> Tag:
    type_name, set_id, tag = line.split(" ")
    return Tag(type_name, decoded(set_id), decoded(tag))


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def joined(at: Machine, folder: Path) -> dict[str, Anonymous]:
    """Two persons join two sets, in a step that is evaluated and in one that is not; one more client has a name."""
    people = {}
    for name in (ME, OTHER):
        people[name] = device(at, folder / name)
        people[name].enrol(at.server.url, auth=account(at, name))
    for _ in range(2):
        at.evaluate()
        for each in people.values():
            with client_of(at, each) as client:
                for value in SETS:
                    client.join(TYPE, value)
        found = at.request("POST", "/v1/types/fledge/sets/aGVsbG8:join", {"client": ME})
        assert found.status == 200
    return people


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Anonymous]:
    """A directory ``d`` in which people have joined, after its service has stopped."""
    monkeypatch.chdir(tmp_path)
    with served(tmp_path / "d") as at:
        people, now = joined(at, tmp_path), at.now
    monkeypatch.setattr(clock, "now", lambda: now)
    return people


def opened(types: dict = TYPES) -> Directory:
    return open_directory(Path("d"), Given(PERIOD, json.dumps(types)), clock.now())


def tokens(directory: Directory, type_name: str, set_id: bytes) -> tuple[list[int], list[bytes]]:
    """The members of a set, and its joins in the log."""
    key = set_key(directory.joining.pepper, type_name, set_id)
    manifest = directory.control.manifest()
    assert manifest is not None
    parts = [directory.parts.read(piece) for piece in manifest.pieces]
    steps = [step for step in directory.log.steps() if step > manifest.step]
    entries = [bytes(entry) for step in steps for entry in directory.log._read(step, lambda d: _rows(d, key))]
    return [token for part in parts for token in members(part, key).tolist()], entries


def _rows(database: object, key: bytes) -> list[bytes]:
    rows = database.execute("SELECT entry FROM joins")  # type: ignore[attr-defined]
    return [row[0] for row in rows if row[0].startswith(key)]


def token(directory: Directory, tag: Tag) -> int:
    joining, bits = directory.joining, directory.types[tag.type_name].parameters.client_bits
    return client_token(joining.client_key, set_key(joining.pepper, tag.type_name, tag.set_id), "arc", tag.tag, bits)


def test_a_line_holds_the_tag_that_joins_show(tmp_path: Path) -> None:
    with served(tmp_path / "d") as at:
        me = device(at, tmp_path / "file")
        with pytest.raises(EnrolmentError, match="enrol"):
            me.tag(TYPE, SETS[0])
        me.enrol(at.server.url, auth=account(at, ME))
        for type_name in (TYPE, "people"):
            shown = me.presentation(type_name, b"hello", int(at.now // PERIOD), at.now)["presentation"]["proof"]
            assert of(me.tag(type_name, SETS[0])) == (type_name, b"hello", decoded(shown)[99:132])
        assert len({me.tag(TYPE, value) for value in (*SETS, "text", b"text")}) == 3


def test_a_person_is_forgotten_by_its_tags_in_states_and_log_and_no_count_changes(left: dict[str, Anonymous]) -> None:
    lines = [left[ME].tag(TYPE, value) for value in SETS]
    mine, others = [of(line) for line in lines], [of(left[OTHER].tag(TYPE, value)) for value in SETS]
    with opened() as directory:
        before = {each: tokens(directory, TYPE, each.set_id) for each in mine}
        secret = [token(directory, each) for each in (*mine, *others)]
    assert all(len(states) == len(entries) == 2 for states, entries in before.values())
    Path("lines.txt").write_text("\n".join([*lines, lines[0], ""]))
    status, told = run("operate", "forget-tags", "lines.txt", "--data", "d", "--yes")
    assert (status, told.splitlines()[-1]) == (0, "Tokens that were found and replaced: 2.")
    assert "Who joins again counts once more." in told
    with opened() as directory:
        for each, own, other in zip(mine, secret[:2], secret[2:], strict=True):
            states, entries = tokens(directory, TYPE, each.set_id)
            assert (len(states), len(entries)) == (2, 2)
            assert own not in states
            assert other in states
            key, number = set_key(directory.joining.pepper, TYPE, each.set_id), directory.segments.numbers[TYPE]
            assert entry_of(key, own, number) not in entries
            assert entry_of(key, other, number) in entries
        assert len(tokens(directory, "fledge", b"hello")[0]) == 1
        assert forget_tags(directory, mine) == 0
        assert forget_tags(directory, others) == 2


def test_a_tag_of_another_set_or_type_forgets_nothing(left: dict[str, Anonymous]) -> None:
    mine = of(left[ME].tag(TYPE, SETS[0]))
    with opened() as directory:
        wrong = [mine._replace(set_id=b"world"), mine._replace(type_name="people"), mine._replace(tag=b"")]
        assert forget_tags(directory, wrong) == 0
        assert forget_tags(directory, [of(left[ME].tag("people", SETS[0]))]) == 0
        for name in ("fledge", "peopl"):
            with pytest.raises(ConfigurationError, match="no type that needs credentials: there is people, person"):
                forget_tags(directory, [mine, mine._replace(type_name=name)])
        assert forget_tags(directory, [mine]) == 1


@pytest.mark.parametrize("line", ["person aGVsbG8", "person aGVsbG8 A", "person a=b AAAA", "person aGVsbG8 AAAA more"])
def test_a_line_of_another_form_is_named_and_nothing_is_forgotten(left: dict[str, Anonymous], line: str) -> None:
    good = left[ME].tag(TYPE, SETS[0])
    Path("lines.txt").write_text(f"{good}\n{line}\n")
    status, told = run("operate", "forget-tags", "lines.txt", "--data", "d", "--yes")
    assert status == 2
    assert "line 2 is not one that a client's `tag` has made" in told
    with opened() as directory:
        assert forget_tags(directory, [of(good)]) == 1


def test_a_client_with_a_name_is_forgotten_where_clients_have_names(left: dict[str, Anonymous]) -> None:
    with opened() as directory:
        joining = directory.joining
        names = {name for name, _ in tokens_of(directory.types, joining.pepper, joining.client_key, ME, [b"hello"])}
        assert names == {"fledge"}
        before = tokens(directory, TYPE, b"hello")
        assert forget(directory, ME, [b"hello"]) == 1
        assert tokens(directory, TYPE, b"hello") == before
    alone = Given(PERIOD, json.dumps({TYPE: TYPES[TYPE]}))
    with (
        open_directory(Path("alone"), alone, clock.now()) as directory,
        pytest.raises(ConfigurationError, match="tags"),
    ):
        forget(directory, ME, [b"hello"])


def test_an_operator_deletes_an_account_as_the_person_could_beside_the_service(tmp_path: Path) -> None:
    with served(tmp_path / "d") as at:
        me, code = account(at, ME), recovery_code()
        one = device(at, tmp_path / "file")
        one.enrol(at.server.url, auth=me, recovery=code)

        def deleted(name: str, *more: str) -> str:
            status, told = run("operate", "delete-account", name, "--data", str(tmp_path / "d"), "--yes", *more)
            assert status == 0
            return told

        assert "nothing was deleted" in deleted(OTHER)
        assert "nothing was deleted" in deleted(ME, "--auth", "JWT")
        device(at, tmp_path / "second").enrol(at.server.url, auth=me, recovery=code)
        told = deleted(ME)
        assert told.splitlines()[-1] == "Deleted."
        assert "holds until its week ends" in told
        with pytest.raises(EnrolmentError, match="was deleted: enrol again when"):
            device(at, tmp_path / "third").enrol(at.server.url, auth=me, recovery=code)
        device(at, tmp_path / "fourth").enrol(at.server.url, auth=account(at, OTHER))
        assert ME not in at.logs.getvalue()


def test_deleting_is_refused_where_nobody_can_have_enrolled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "holds no deployment" in run("operate", "delete-account", ME, "--data", "d", "--yes")[1]
    open_directory(Path("d"), Given(PERIOD, json.dumps(TYPES)), clock.now()).close()
    status, told = run("operate", "delete-account", ME, "--data", "d", "--yes")
    assert (status, "has no accounts" in told) == (2, True)
    assert "give KEY, JWT or DEVICE" in run("operate", "delete-account", ME, "--data", "d", "--auth", "key", "--yes")[1]
