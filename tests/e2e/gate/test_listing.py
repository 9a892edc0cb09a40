"""Listed types on AWS from a join to a list: over HTTP, with an operator, and by SQL over the history."""

import csv
import io
import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.client import Client, Connection, Join
from kanon.errors import ConfigurationError
from kanon.gate.listed_sets import SUFFIX, ListedSet, decode, encode, name_beside
from kanon.gate.storage.aws.lists import ListObjects
from kanon.gate.true_sets import PREFIX
from kanon.local import Stack
from kanon.local.template import TemplateError
from kanon.operate.generation import begin
from kanon.operate.stacks import described_stack
from kanon.operate.unlisting import unlist
from tests.e2e.gate.backups import rows
from tests.e2e.gate.operating import deploy_generations, key_of, new_table
from tests.integration.gate.edge import base64url
from tests.monitor.monitor import Monitor
from tests.moto_engine import ENGINES
from tests.table_ids import give_ids

HOUR = 3600
TYPES = {
    "terms": {"k": 20, "window": 24, "profile": "crossing", "listed": True},
    "fledge": {"k": 50, "window": 24, "profile": "crossing"},
}
VALUES = ["shoes", "how to sue my boss", "=HYPERLINK(1)", "\x1b[2J", "ünï"]
LISTED = {"Types": json.dumps(TYPES)}
GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "listed.md").read_text()


@pytest.fixture(params=["moto", "ministack"])
def listing(request: pytest.FixtureRequest, new_stack: Callable[..., Stack]) -> Stack:
    """A stack in which a crowd has joined some values, and one client one of its own."""
    stack = new_stack(LISTED, engine=ENGINES[request.param])
    join(stack, VALUES, 60)
    join(stack, ["my own name"], 1)
    stack.advance(3 * HOUR)
    assert not stack.failures
    return stack


def join(stack: Stack, values: list[str], clients: int) -> None:
    joins = [
        {"type": "terms", "set": base64url(sha256(value.encode()).digest()), "client": f"client {n}", "value": value}
        for value in values
        for n in range(clients)
    ]
    for at in range(0, len(joins), 100):
        answer = stack.request("POST", "/v1:batchJoin", {"joins": joins[at : at + 100]})
        assert answer.status == 200
        assert not any(answer.json()["results"])


def listed(stack: Stack) -> set[str]:
    return {each["value"] for each in stack.request("GET", "/v1/types/terms/released").json()["values"]}


@pytest.fixture
def client(listing: Stack) -> Iterator[Client]:
    with closing(listing.serve()) as server, Client(Connection(server.url)) as made:
        yield made


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "250"})
    assert result.exit_code == 0, result.output
    return result.output


def test_what_a_crowd_shares_is_listed_and_nothing_else(listing: Stack, client: Client) -> None:
    assert listed(listing) == set(VALUES)
    assert {each.value for each in client.released("terms").values} == set(VALUES)
    for private in (False, True, "all"):
        assert client.is_shared("terms", [*VALUES, "my own name"], private=private) == set(VALUES)  # type: ignore[arg-type]
    assert listing.request("GET", "/v1/types/fledge/released").status == 404
    assert listing.request("GET", "/v1/types/other/released").status == 404
    assert listing.request("GET", "/v1/types/terms/released?other=1").status == 400
    client.join_many(Join("terms", "later", f"client {n}") for n in range(60))
    listing.advance(2 * HOUR)
    assert listed(listing) == {*VALUES, "later"}
    listing.advance(40 * HOUR)
    assert listed(listing) == set()
    assert not listing.failures


def test_a_private_look_up_of_one_value_takes_the_pointer_and_one_range(
    listing: Stack, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[str, int]] = []
    original = listing.answer

    def answer(asked: Any) -> Any:
        found = original(asked)
        taken.append((asked.target, len(found.body)))
        return found

    monkeypatch.setattr(listing, "answer", answer)
    assert client.is_shared("terms", ["shoes"], private=True) == {"shoes"}
    (pointer, _), (file, size) = taken
    assert pointer == "/v1/types/terms/ranges"
    assert file.startswith(f"{pointer}/")
    assert 0 < size <= 1 << 16
    assert client.is_shared("terms", ["my own name"], private=True) == set()
    assert "shoes" not in str(taken)


def test_lists_take_the_roles_of_their_functions_alone(listing: Stack) -> None:
    listed(listing)
    calls = {(call.function, call.action) for call in Monitor.of(listing).calls}
    assert {action for function, action in calls if function == "released"} == {"dynamodb:GetItem", "s3:GetObject"}
    assert {action.partition(":")[0] for function, action in calls if function == "list"} == {
        "dynamodb",
        "s3",
        "secretsmanager",
    }


def test_the_command_shows_a_list(listing: Stack) -> None:
    with closing(listing.serve()) as server:
        text = run("listed", "terms", "--url", server.url, "--format", "csv")
    assert "shoes" in text
    assert "'=HYPERLINK(1)" in text


def test_the_commands_of_the_guide_make_a_csv_of_a_stack(
    new_stack: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worked job on AWS: joins of your server, the list an hour later, a CSV file.

    No emulator deploys the template, checks a signature or keeps time: the parameters are given to the stack, the
    signature is made and not verified, and its clock is moved.
    """
    stack = new_stack(LISTED)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "local")
    words = shlex.split(re.findall(r"`kanon (listed terms --url [^`]*)`", GUIDE)[0])
    crowd = [(f"user {n}", text) for text in ("shoes", "how to sue my boss", "=HYPERLINK(1)") for n in range(60)]
    with closing(stack.serve()) as server:
        words = [{"URL": server.url, "REGION": "eu-central-1"}.get(word, word) for word in words]
        with Client(Connection(server.url)) as client:
            client.join_many(Join("terms", text, user) for user, text in [*crowd, ("user 1", "my own name")])
        stack.advance(3 * HOUR)
        table = run(*words, "--format", "csv")
    rows = csv.DictReader(io.StringIO(table))
    assert [row["value"] for row in rows] == ["'=HYPERLINK(1)", "how to sue my boss", "shoes"]
    assert not stack.failures


def test_the_command_signs_for_a_region_and_refuses_half_of_what_that_needs(
    listing: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    original = listing.answer
    monkeypatch.setattr(
        listing,
        "answer",
        lambda asked: (seen.extend(v for n, v in asked.headers if n.lower() == "authorization"), original(asked))[1],
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "local")
    with closing(listing.serve()) as server:
        assert "shoes" in run("listed", "terms", "--url", server.url, "--region", "eu-central-1")
    assert all("/eu-central-1/execute-api/aws4_request" in text for text in seen)
    assert seen
    for given in (["--aws-profile", "x"], ["--region", "eu-central-1"]):
        result = CliRunner().invoke(app, ["listed", "terms", *given])
        assert result.exit_code == 2


def test_the_command_reads_the_history_of_a_stack(listing: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    running = described_stack(listing.describe(), listing.session, listing.engine.endpoint)
    monkeypatch.setattr("kanon.operate.stacks.deployed_stack", lambda name, _: {"kanon": running}[name])
    first = listing.request("GET", "/v1/types/terms/released").json()["step"]
    join(listing, ["later"], 60)
    listing.advance(2 * HOUR)
    words = ("listed", "terms", "--stack", "kanon", "--region", "eu-central-1", "--format", "json")
    since = {row["value"]: (row["first"], row["last"]) for row in json.loads(run(*words, "--since", "1971-01-01"))}
    newest = listing.request("GET", "/v1/types/terms/released").json()["step"]
    assert since.keys() == {*VALUES, "later"}
    assert since["shoes"][0] <= first < since["later"][0]
    assert {last for _, last in since.values()} == {newest}
    assert {row["value"] for row in json.loads(run(*words))} == {*VALUES, "later"}
    assert json.loads(run(*words, "--since", "2999-01-01")) == []
    for given, told in (
        (["fledge", "--stack", "kanon"], "listed types: terms"),
        (["terms", "--stack", "kanon", "--url", "http://127.0.0.1:1"], "not both"),
    ):
        result = CliRunner().invoke(app, ["listed", *given])
        assert result.exit_code != 0
        assert told in f"{result.output}{result.exception}"
    objects = ListObjects(listing.session.client("s3"), running.list_bucket, HOUR)
    for step in objects.steps_of_history("terms"):
        objects.client.delete_object(Bucket=objects.bucket, Key=objects._place("terms", step))
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code != 0
    assert "has no list of type 'terms'" in f"{result.output}{result.exception}"


def test_an_operator_suppresses_and_unlists(listing: Stack) -> None:
    running = described_stack(listing.describe(), listing.session, listing.engine.endpoint)
    running.statuses.suppress(key_of(listing, "terms", sha256(b"shoes").digest()))
    assert unlist(running, "terms", VALUES[1]) == 2
    assert listed(listing) == set(VALUES) - {VALUES[1]}
    assert listing.request("GET", "/v1/types/terms/ranges").json()["count"] == len(VALUES) - 1
    assert VALUES[1].encode() not in contents(listing)
    listing.advance(HOUR)
    assert listed(listing) == set(VALUES[2:])
    assert unlist(running, "terms", VALUES[1]) == 0
    assert listed(listing) == set(VALUES[2:])
    with pytest.raises(ConfigurationError, match="not listed: listed types: terms"):
        unlist(running, "fledge", "x")


def test_a_restored_control_brings_back_nothing_that_was_unlisted(
    listing: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control as a new table with rows of before. Its ids are those of DynamoDB, so evaluation stops meanwhile."""
    give_ids(monkeypatch)
    running = described_stack(listing.describe(), listing.session, listing.engine.endpoint)
    backup = rows(listing, "Control")
    value, others = VALUES[1], {value for value in VALUES if value != VALUES[1]}
    unlist(running, "terms", value)
    listing.advance(HOUR)
    assert listed(listing) == others

    new_table(listing, "Control", backup)
    listing.restart("evaluate")
    for _ in range(3):  # its pointer leads nowhere at first
        answer = listing.request("GET", "/v1/types/terms/released")
        assert answer.status == 404 or {each["value"] for each in answer.json()["values"]} <= others
        listing.advance(HOUR // 2)
    assert value.encode() not in contents(listing)
    entries = begin(running, listing.clock.now())
    deploy_generations(listing, json.dumps([entry.model_dump() for entry in entries]))
    listing.advance_to((entries[-1].from_step + 1) * HOUR - 60)
    join(listing, [value, "later"], 60)
    listing.advance(2 * HOUR)
    assert "later" in listed(listing) <= {"later", *others}
    assert value.encode() not in contents(listing)
    assert listing.request("GET", "/v1/types/terms/ranges").json()["step"] >= entries[-1].from_step
    listing.failures.clear()


def files(stack: Stack, to: Path) -> Path:
    """The history, as a copy in a folder."""
    s3, bucket = stack.session.client("s3"), stack.storage.buckets["ListBucket"]
    for item in s3.list_objects_v2(Bucket=bucket, Prefix="lists/").get("Contents", ()):
        file = to / item["Key"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(s3.get_object(Bucket=bucket, Key=item["Key"])["Body"].read())
    return to


def contents(stack: Stack) -> bytes:
    """All objects of the bucket of lists, those of Parquet as texts."""
    s3, bucket = stack.session.client("s3"), stack.storage.buckets["ListBucket"]
    keys = [item["Key"] for item in s3.list_objects_v2(Bucket=bucket).get("Contents", ())]
    objects = ListObjects(s3, bucket, HOUR)
    history = [str(objects.history("terms", step)).encode() for step in objects.steps_of_history("terms")]
    assert history
    return b"".join([*history, *(s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys)])


def test_the_history_answers_since_when_and_how_long(listing: Stack, tmp_path: Path) -> None:
    """The query of the guide, which Athena runs over the bucket."""
    join(listing, ["later"], 60)
    listing.advance(2 * HOUR)
    files(listing, tmp_path)
    query = GUIDE.partition("```sql\nSELECT")[2].partition("```")[0]
    source = f"read_parquet('{tmp_path}/lists/terms/*/*/values.parquet', hive_partitioning = true)"
    with duckdb.connect() as database:
        rows = database.sql("SELECT" + query.replace("kanon_lists", source).rstrip().rstrip(";")).fetchall()
    found = {row[0]: row[1:] for row in rows}
    assert found.keys() == {*VALUES, "later"}
    newest = listing.request("GET", "/v1/types/terms/released").json()["step"]
    assert found["later"][0] > found["shoes"][0]
    assert {last for _, last, *_ in found.values()} == {newest}


DDL = GUIDE.partition("```sql\nCREATE EXTERNAL TABLE")[2].partition("```")[0]
ATHENA = {"string": "VARCHAR", "bigint": "BIGINT"}
"""The types of the guide's table as DuckDB names them."""


def columns_of(text: str) -> dict[str, str]:
    """The columns in the parentheses of a statement of Athena, and their types as DuckDB names them."""
    pairs = (column.split() for column in text.partition("(")[2].partition(")")[0].split(","))
    return {name.strip("`"): ATHENA[kind] for name, kind in pairs}


def declared(ddl: str) -> tuple[dict[str, str], dict[str, str], str]:
    """What a table of Athena declares: its columns, those of its partitions, and the folder in its bucket."""
    table, _, rest = ddl.partition("PARTITIONED BY")
    partitions, _, rest = rest.partition("STORED AS PARQUET LOCATION 's3://BUCKET/")
    return columns_of(table), columns_of(partitions), rest.partition("'")[0]


def stored(stack: Stack, to: Path) -> list[tuple[dict[str, str], dict[str, str], str]]:
    """The same of each file of the history: the columns that it has, those of its name, and its folder."""
    found = []
    for file in sorted(files(stack, to).rglob("*.parquet")):
        folder, *parts = file.relative_to(to).as_posix().removesuffix("/values.parquet").rsplit("/", 2)
        with duckdb.connect() as database:
            rows = database.sql(f"DESCRIBE SELECT * FROM read_parquet('{file}', hive_partitioning = false)").fetchall()
        partitions = {name: "BIGINT" if value.isdigit() else "VARCHAR" for name, _, value in map(by_equals, parts)}
        found.append(({row[0]: row[1] for row in rows}, partitions, f"{folder}/"))
    return found


def by_equals(part: str) -> tuple[str, str, str]:
    return part.partition("=")


def test_the_table_for_athena_is_that_of_the_files(listing: Stack, tmp_path: Path) -> None:
    """Athena itself runs nowhere here; planted differences of each part of the statement are seen."""
    found = stored(listing, tmp_path)
    assert found
    assert all(each == declared(DDL) for each in found)
    for right, wrong in (
        ("since bigint", "since string"),
        ("value string", "text string"),
        ("`date` string, step", "step bigint, day"),
        ("lists/terms/", "list/terms/"),
    ):
        assert right in DDL
        assert all(each != declared(DDL.replace(right, wrong)) for each in found), wrong


def flipped(sealed: bytes) -> bytes:
    """A sealed value with another last byte."""
    return sealed[:-1] + bytes([sealed[-1] ^ 1])


def test_one_damaged_value_is_reported_and_the_others_are_listed(listing: Stack) -> None:
    s3, (states, lists) = listing.session.client("s3"), map(listing.storage.buckets.get, ("StatesBucket", "ListBucket"))
    found: dict[str, list[ListedSet]] = {}
    for item in s3.list_objects_v2(Bucket=states)["Contents"]:
        if item["Key"].endswith(SUFFIX):
            shows = PREFIX + item["Key"].removesuffix(SUFFIX)
            found[shows] = list(decode(shows, s3.get_object(Bucket=states, Key=item["Key"])["Body"].read()) or ())
    damaged = min(each.key for sets in found.values() for each in sets)
    for shows, sets in found.items():
        changed = [each._replace(sealed=flipped(each.sealed)) if each.key == damaged else each for each in sets]
        s3.put_object(Bucket=states, Key=name_beside(shows), Body=encode(shows, changed))
    for item in s3.list_objects_v2(Bucket=lists, Prefix="opened/")["Contents"]:
        s3.delete_object(Bucket=lists, Key=item["Key"])
    assert "ListsWithUnopenedValues" not in listing.logs.getvalue()  # type: ignore[attr-defined]
    listing.advance(HOUR)
    assert listed(listing) < set(VALUES)
    assert len(listed(listing)) == len(VALUES) - 1
    assert '"ListsWithUnopenedValues":[1.0]' in listing.logs.getvalue()  # type: ignore[attr-defined]
    assert not listing.failures


def test_a_key_without_a_listed_type_publishes_nothing_and_raises_no_alarm(new_stack: Callable[..., Stack]) -> None:
    key = {"ListerKey": "k" * 43, "ListerKeySecret": "arn:aws:secretsmanager:us-east-1:123456789012:secret:a"}
    stack = new_stack({"Types": json.dumps({"fledge": TYPES["fledge"]}), **key})
    stack.advance(2 * HOUR)
    assert not stack.failures
    assert '"ListsBehind":[0.0]' in stack.logs.getvalue()  # type: ignore[attr-defined]
    assert stack.request("GET", "/v1/types/fledge/released").status == 404


def test_open_lists_need_a_review(new_stack: Callable[..., Stack]) -> None:
    """The rule of the template is checked by CloudFormation; here the parameters are."""
    with pytest.raises(TemplateError, match="ListAuth"):
        new_stack({**LISTED, "ListAuth": "OPEN"})
    stack = new_stack({**LISTED, "ListAuth": "NONE", "ReviewSteps": "2"})
    join(stack, ["shoes"], 60)
    stack.advance(3 * HOUR)
    answer = stack.request("GET", "/v1/types/terms/released")
    assert answer.json()["values"] == []
    assert str(answer.header("cache-control")).startswith("public, max-age=")
    stack.advance(2 * HOUR)
    assert listed(stack) == {"shoes"}


def test_a_key_that_is_not_that_of_its_secret_stops_the_lister_at_once(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack(LISTED)
    stack.functions["list"].environment["KANON_LISTER_KEY"] = "k" * 43
    stack.advance(600)
    assert stack.failures
    assert '"kind":"ConfigurationError"' in stack.logs.getvalue()  # type: ignore[attr-defined]
    stack.failures.clear()
