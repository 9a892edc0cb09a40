"""Lists over HTTP: who may read them, pages, CSV, range files, caches, and look-ups that name no value."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kanon.client import Client, ListedValue, RefusedError, SetId, UnexpectedAnswerError, value_id
from kanon.client.connection import HttpAnswer
from kanon.gate import list_routes, ranges
from kanon.gate.lists import KEPT
from kanon.serving.access import AuthMode
from tests.integration.serving.machine import KEYS, PERIOD, Machine, machine

TYPES = {
    "terms": {"k": 20, "window": 24, "profile": "crossing", "listed": True},
    "fledge": {"k": 20, "window": 24, "profile": "crossing"},
}
VALUES = ["shoes", "=cmd()", "-1", "a,\"b'\n", "<script>", "\x1b[2J\u202e", "ünï", "x" * 512]
CROWD = 45
LIST, POINTER = "/v1/types/terms/released", "/v1/types/terms/ranges"


def join_all(served: Machine, values: list[str], clients: int = CROWD) -> None:
    for value in values:
        joins = [
            {"type": "terms", "set": value_id(value), "client": f"client {n}", "value": value} for n in range(clients)
        ]
        answer = served.request("POST", "/v1:batchJoin", {"joins": joins})
        assert json.loads(answer.body) == {"results": [{}] * clients}


def publish(served: Machine) -> None:
    served.evaluate()  # it lets the lister have its turn


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path / "d", types=TYPES) as made:
        join_all(made, VALUES)
        join_all(made, ["rare"], clients=3)
        publish(made)
        yield made


class Asked:
    """A transport of the client that records paths."""

    def __init__(self, served: Machine) -> None:
        self.served, self.paths = served, list[str]()

    def __call__(self, method: str, path: str, body: bytes, headers: Any) -> HttpAnswer:
        self.paths.append(path)
        return self.served.request(method, path, body or None, dict(headers))


def released(served: Machine, query: str = "", **headers: str) -> HttpAnswer:
    return served.request("GET", f"{LIST}{query}", headers=headers)


def test_a_list_has_the_shared_values_and_says_of_which_step_it_is(served: Machine) -> None:
    answer = released(served)
    assert answer.status == 200
    body = json.loads(answer.body)
    step = int(served.now // PERIOD) - 1
    assert body.keys() == {"type", "step", "nextUpdate", "values", "next"}
    assert (body["type"], body["step"], body["next"]) == ("terms", step, None)
    assert {entry["value"] for entry in body["values"]} == set(VALUES)
    assert {entry["since"] for entry in body["values"]} == {step}
    assert dict(answer.headers)["Cache-Control"].startswith("private, max-age=")


def test_pages_together_are_the_list_also_if_a_newer_one_is_published_between_them(served: Machine) -> None:
    first = json.loads(released(served, "?limit=3").body)
    found, following = first["values"], first["next"]
    join_all(served, ["another"])
    publish(served)
    while following:
        page = json.loads(released(served, f"?limit=3&after={following}").body)
        assert page["step"] == first["step"]
        found, following = found + page["values"], page["next"]
    assert sorted(entry["value"] for entry in found) == sorted(VALUES)
    publish(served)
    assert released(served, f"?limit=3&after={first['next']}").status == 404
    assert "another" in {entry["value"] for entry in json.loads(released(served).body)["values"]}


def test_a_list_that_is_forgotten_while_it_is_read_is_not_empty_but_gone(served: Machine) -> None:
    assert served.service.listing is not None
    file = served.service.listing.lister.file
    found = file.newest("terms")
    assert found is not None
    rows = file.page("terms", found, b"", 1)
    assert rows is not None
    assert file.page("terms", found, b"\xff" * 32, 1) == []
    for _ in range(KEPT):
        publish(served)
    assert file.page("terms", found, rows[0][0], 1) is None
    assert file.range_file(ranges.ListStep("terms", found.step, 0), found, "all") is None


def test_csv_executes_nothing_and_links_its_next_page(served: Machine) -> None:
    import csv
    import io

    answer = released(served, "?limit=5", Accept="text/csv")
    headers = dict(answer.headers)
    assert headers["Content-Type"] == "text/csv; charset=utf-8"
    link = headers["Link"].partition(">")[0].removeprefix("<")
    rest = served.request("GET", link, headers={"Accept": "text/csv"})
    rows = [row for each in (answer, rest) for row in csv.reader(io.StringIO(each.body.decode(), newline=""))]
    assert rows.count(["value", "since"]) == 2
    cells = {row[0] for row in rows if row != ["value", "since"]}
    assert cells == {f"'{value}" if value[0] in "=-" else value for value in VALUES}


@pytest.mark.parametrize(
    ("query", "status"),
    [
        *(("?limit=0", 400), ("?limit=1001", 400), ("?limit=x", 400), ("?after=x", 400), ("?aftr=1.00", 400)),
        *((f"?after=1.{'00' * 32}", 404), (f"?after=٣.{'00' * 32}", 400), (f"?after=1.{'zz' * 32}", 400)),
        (f"?after={2**63}.{'00' * 32}", 400),
        (f"?after=1.ff{' ' * 62}", 400),  # white space is no hash: with it every file of the list would be read
    ],
)
def test_a_wrong_parameter_is_refused_with_what_to_change(served: Machine, query: str, status: int) -> None:
    from urllib.parse import quote

    answer = released(served, quote(query, safe="?=&."))
    assert answer.status == status
    assert json.loads(answer.body)["error"]["message"]
    assert ("did you mean after?" in answer.body.decode()) == (query == "?aftr=1.00")


@pytest.mark.parametrize("path", [LIST, POINTER, f"{POINTER}/1/all", f"{LIST}/", f"{POINTER}?x", "/v1/types//released"])
def test_without_a_key_nobody_reads_lists(served: Machine, path: str) -> None:
    assert served.request("GET", path, key=False).status == 401
    assert served.request("HEAD", path, key=False).status == 401


def test_with_list_auth_open_everybody_does_and_caches_may_keep_them(tmp_path: Path) -> None:
    from dataclasses import replace

    with machine(tmp_path / "d", replace(KEYS, lists=AuthMode.OPEN), types=TYPES) as served:
        answer = served.request("GET", LIST, key=False)
        assert json.loads(answer.body)["step"] is None
        assert dict(answer.headers)["Cache-Control"].startswith("public, max-age=")
        assert served.request("POST", "/v1:batchJoin", {"joins": []}, key=False).status == 401


def test_a_type_that_is_not_listed_has_no_list(served: Machine) -> None:
    for path in ("released", "ranges", "ranges/1/all"):
        answer = served.request("GET", f"/v1/types/fledge/{path}")
        assert (answer.status, "not listed" in answer.body.decode()) == (404, True)
        assert served.request("GET", f"/v1/types/absent/{path}").status == 404


def test_a_range_file_is_named_by_the_pointer_and_never_changes(served: Machine, monkeypatch: Any) -> None:
    pointer = json.loads(served.request("GET", POINTER).body)
    assert pointer == {**pointer, "type": "terms", "prefixBits": 0, "count": len(VALUES)}
    path = f"{POINTER}/{pointer['step']}/all"
    answer = served.request("GET", path)
    headers = dict(answer.headers)
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["Cache-Control"] == "private, max-age=86400, immutable"
    hashes = sorted(sha256(value.encode()).digest()[:16] for value in VALUES)
    assert answer.body[-16 * len(VALUES) :] == b"".join(hashes)
    publish(served)
    again = served.request("GET", path)
    assert (again.body, dict(again.headers)["Etag"]) == (answer.body, headers["Etag"])
    for absent in (f"{pointer['step'] + 9}/all", f"{pointer['step']}/0", f"{pointer['step']}/allx", "1/all"):
        assert served.request("GET", f"{POINTER}/{absent}").status == 404
    for step in ("-1", str(2**63)):
        assert served.request("GET", f"{POINTER}/{step}/all").status in (400, 404)


@pytest.mark.parametrize("most", [1, 2, 4000])
def test_a_private_look_up_asks_for_prefixes_and_never_for_a_value(
    served: Machine, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    from kanon.serving import lists

    monkeypatch.setattr(lists, "most_hashes", lambda _: most)
    publish(served)
    for private in (True, "all"):
        transport = Asked(served)
        client = Client(transport)
        asked = [*VALUES, "rare", "absent"]
        assert client.is_shared("terms", asked, private=private) == frozenset(VALUES)  # type: ignore[arg-type]
        texts = {value_id(value) for value in asked} | {sha256(value.encode()).hexdigest() for value in asked}
        assert not [path for path in transport.paths for text in texts if text in path]
        assert transport.paths[0] == POINTER
        count = len(transport.paths)
        assert client.is_shared("terms", VALUES[:1], private=private) == {VALUES[0]}  # type: ignore[arg-type]
        assert len(transport.paths) == count  # pointer and file are kept
    if most == 4000:
        assert count == 2


def test_a_look_up_begins_again_when_its_list_is_replaced(served: Machine) -> None:
    asked = Asked(served)
    original = asked.served.request

    def replaced(method: str, path: str, *rest: Any, **more: Any) -> HttpAnswer:
        if f"{POINTER}/" in path and len(asked.paths) == 2:
            publish(served)
            publish(served)
        return original(method, path, *rest, **more)

    served.request = replaced  # type: ignore[method-assign]
    assert Client(asked).is_shared("terms", ["shoes", "rare"], private=True) == {"shoes"}
    assert [path.count("/") for path in asked.paths] == [4, 6, 4, 6]

    def always(method: str, path: str, *rest: Any, **more: Any) -> HttpAnswer:
        if f"{POINTER}/" in path:
            publish(served)
            publish(served)
        return original(method, path, *rest, **more)

    served.request = always  # type: ignore[method-assign]
    with pytest.raises(UnexpectedAnswerError, match="change faster"):
        Client(asked).is_shared("terms", ["shoes"], private=True)


def test_the_client_reads_all_pages_of_a_list(served: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_routes.ListRoutes, "released", _in_pages_of_two(list_routes.ListRoutes.released))
    transport = Asked(served)
    found = Client(transport).released("terms")
    assert {each.value for each in found.values} == set(VALUES)
    assert all(isinstance(each, ListedValue) for each in found.values)
    assert len(transport.paths) == len(VALUES) // 2


def _in_pages_of_two(original: Any) -> Any:
    def released(self: Any, type_name: str, after: str, limit: int, *, as_csv: bool) -> Any:
        return original(self, type_name, after, min(limit, 2), as_csv=as_csv)

    return released


def test_the_client_joins_a_listed_type_with_its_value(served: Machine) -> None:
    from kanon.client import Join

    client = Client(Asked(served))
    client.join_many(Join("terms", "joined", f"client {n}") for n in range(CROWD))
    client.join("terms", b"as bytes", "one")
    publish(served)
    assert "joined" in {each.value for each in client.released("terms").values}
    for value, reason in [
        (value_id("shoes"), "not the id"),
        (b"\xff", "UTF-8"),
        ("y" * 513, "512 bytes"),
        ("", "1 to"),
    ]:
        with pytest.raises(ValueError, match=reason):
            client.join("terms", value, "one")
    with pytest.raises(ValueError, match="SHA-256"):
        client.is_shared("terms", [SetId("c2V0IG9uZQ")], private=True)
    with pytest.raises(RefusedError, match="not listed"):
        client.is_shared("fledge", ["shoes"], private=True)


@pytest.mark.parametrize(
    ("type_name", "set_", "more", "reason"),
    [
        ("terms", value_id("shoes"), {}, "give the value"),
        ("terms", value_id("hats"), {"value": "shoes"}, "SHA-256 of the value"),
        ("terms", value_id("shoes"), {"value": None}, "must be a text"),
        ("terms", value_id("shoes"), {"value": 7}, "valid string"),
        ("terms", value_id(""), {"value": ""}, "at least 1"),
        ("terms", value_id("y" * 513), {"value": "y" * 513}, "at most 512"),
        ("terms", value_id("ü" * 257), {"value": "ü" * 257}, "at most 512 bytes"),
        ("fledge", value_id("shoes"), {"value": "shoes"}, "leave out the value"),
    ],
)
def test_a_join_with_a_wrong_value_is_refused(
    served: Machine, type_name: str, set_: str, more: dict[str, Any], reason: str
) -> None:
    body = {"client": "one", **more}
    single = served.request("POST", f"/v1/types/{type_name}/sets/{set_}:join", body)
    assert single.status == 400
    assert reason in single.body.decode()
    assert "shoes" not in single.body.decode()
    entry = {"type": type_name, "set": set_, **body}
    batch = json.loads(served.request("POST", "/v1:batchJoin", {"joins": [entry]}).body)["results"][0]
    assert reason in batch["error"]["message"]


def test_health_and_metrics_say_that_lists_are_late(served: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served.request("GET", "/healthz").status == 200
    listing = served.service.listing
    assert listing is not None
    with monkeypatch.context() as patch:
        patch.setattr(type(listing), "turn", lambda *_: 0.0)
        for _ in range(2):
            served.evaluate()
    late = served.request("GET", "/healthz")
    assert (late.status, late.body) == (503, b"lists are 2 steps behind the answers\n")
    for name in ("publish", "behind"):  # an error must not end the thread
        with monkeypatch.context() as patch:
            patch.setattr(type(listing.lister), name, _fails)
            listing.turn(served.now)
        assert b"lists are not published" in served.request("GET", "/healthz").body
        assert "shoes" not in served.logs.getvalue()
    listing.turn(served.now)
    assert served.request("GET", "/healthz").status == 200
    text = served.request("GET", "/metrics").body.decode()
    assert "kanon_lists_stopped_total 2.0" in text
    assert "kanon_lists_behind 0.0" in text


def _fails(*_: object) -> int:
    raise RuntimeError("shoes")


def test_a_range_file_of_many_values_has_at_most_64_kib(tmp_path: Path) -> None:
    of = ranges.ListStep("terms", 1, 1)
    digests = sorted(sha256(b"%d" % n).digest() for n in range(30_000))
    bits = ranges.bits_for(digests, ranges.most_hashes("terms"))
    for number in range(1 << bits):
        own = [digest for digest in digests if int.from_bytes(digest, "big") >> 256 - bits == number]
        assert len(ranges.encode(of, bits, own)) <= 64 * 1024
