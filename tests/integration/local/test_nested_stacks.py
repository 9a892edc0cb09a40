"""The local stack on a template with nested stacks: buckets, batches of messages, lifetimes of objects."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kanon.local import Stack, TemplateError
from kanon.local.clock import Every
from kanon.local.template import Template
from tests.moto_engine import ENGINES
from tests.queues import messages

TEMPLATE = Path(__file__).parent / "nested_stack" / "template.yaml"
START = 1_700_000_000.0
"""22:13:20 UTC."""
DAY = 86_400
MIB = 1024 * 1024


def letters_stack(**options: Any) -> Stack:
    parameters = {"Letters": "ON", **options.pop("parameters", {})}
    return Stack(parameters, **{"start": START, "template": TEMPLATE, **options})


@pytest.fixture
def stack() -> Iterator[Stack]:
    with letters_stack() as running:
        yield running


def objects(stack: Stack, prefix: str) -> list[str]:
    found = stack.session.client("s3").list_objects_v2(Bucket=stack.storage.buckets["Archive"], Prefix=prefix)
    return sorted(item["Key"] for item in found.get("Contents", []))


def batches(stack: Stack) -> list[tuple[float, list[str]]]:
    """When each batch was passed on, and the bodies in it."""
    client, found = stack.session.client("s3"), []
    for key in objects(stack, "batches/"):
        body = client.get_object(Bucket=stack.storage.buckets["Archive"], Key=key)["Body"].read()
        found.append((json.loads(body)["at"], sorted(json.loads(body)["bodies"])))
    return sorted(found)


def send(stack: Stack, *bodies: str) -> None:
    for body in bodies:
        assert stack.request("POST", "/letters", body).status == 200


# Templates


def test_parameters_come_from_the_parent_and_outputs_return_to_it(stack: Stack) -> None:
    nested = stack.request("GET", "/letters").json()
    bucket = stack.storage.buckets["Archive"]
    assert nested == {
        "LETTERS_DEPLOYMENT": stack.template.resolve({"Ref": "AWS::StackId"}),
        "LETTERS_STACK": "arn:aws:cloudformation:us-east-1:123456789012:stack/kanon-local-LettersStack/local",
        "LETTERS_GREETING": "hello from kanon-local-LettersStack",
        "LETTERS_CONTROL": stack.storage.tables["Control"],
        "LETTERS_ORIGINS": "one two",
        "LETTERS_FIRST": "one",
        "LETTERS_POST_URL": next(url for arn, url in stack.storage.queue_urls.items() if arn.endswith("-Post")),
        "LETTERS_BUCKET": bucket,
    }
    assert stack.request("GET", "/clerk").json() == {
        "CLERK_BUCKET": bucket,
        "CLERK_PLACE": f"arn:aws:s3:::{bucket}/batches/",
    }


def test_a_changed_parameter_of_the_parent_reaches_the_nested_stack(stack: Stack) -> None:
    stack.deploy({"Greeting": "welcome"})
    assert stack.request("GET", "/letters").json()["LETTERS_GREETING"] == "welcome from kanon-local-LettersStack"


def test_a_nested_stack_whose_condition_does_not_hold_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    read, whole = [], Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, **how: read.append(path.name) or whole(path, **how))
    with letters_stack(parameters={"Letters": "OFF"}) as stack:
        assert set(stack.functions) == {"clerk"}
        assert stack.storage.buckets == {}
        assert stack.request("GET", "/letters").status == 404
        assert stack.request("GET", "/clerk").json() == {"CLERK_BUCKET": "", "CLERK_PLACE": ""}
    assert "letters.yaml" not in read


def test_conditions_of_a_nested_stack_are_its_own(stack: Stack) -> None:
    assert set(stack.storage.buckets) == {"Archive"}
    with pytest.raises(TemplateError, match="kanon-local-LettersStack has no output Nothing"):
        stack.template.resolve({"Fn::GetAtt": ["LettersStack", "Outputs.Nothing"]})


def test_a_nested_stack_without_a_value_for_a_parameter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nested.yaml").write_text(
        "Parameters: {Name: {Type: String}}\nResources: {Table: {Type: 'AWS::DynamoDB::Table'}}"
    )
    stack = {"Type": "AWS::CloudFormation::Stack", "Properties": {"TemplateURL": "nested.yaml"}}
    with pytest.raises(TemplateError, match="parameter Name has no default"):
        Template({"Resources": {"Nested": stack}}, {}, "stack", directory=tmp_path)
    stack["Properties"] |= {"Parameters": {"Name": "a", "Other": "b"}}  # type: ignore[operator]
    with pytest.raises(TemplateError, match="unknown parameters Other"):
        Template({"Resources": {"Nested": stack}}, {}, "stack", directory=tmp_path)


# Objects


@pytest.mark.parametrize("engine", ["moto", "ministack"])
def test_an_object_is_written_only_under_its_condition_on_either_engine(engine: str) -> None:
    with letters_stack(engine=ENGINES[engine]) as stack:
        send(stack, "one")
        stack.tick()
        assert [bodies for _, bodies in batches(stack)] == [["one"]]
        s3, place = stack.session.client("s3"), {"Bucket": stack.storage.buckets["Archive"], "Key": "a/b"}
        first = s3.put_object(**place, Body=b"first", IfNoneMatch="*")["ETag"]
        for condition in ({"IfNoneMatch": "*"}, {"IfMatch": '"0"'}):
            with pytest.raises(ClientError, match="PreconditionFailed"):
                s3.put_object(**place, Body=b"refused", **condition)
        assert s3.get_object(**place, IfMatch=first)["Body"].read() == b"first"
        second = s3.put_object(**place, Body=bytes(range(256)), IfMatch=first)["ETag"]
        with pytest.raises(ClientError, match="PreconditionFailed"):
            s3.get_object(**place, IfMatch=first)
        assert s3.get_object(**place, IfMatch=second)["Body"].read() == bytes(range(256))
        with pytest.raises(ClientError, match="NoSuchKey"):
            s3.get_object(**{**place, "Key": "absent"})


def test_two_stacks_at_a_time_have_different_buckets(stack: Stack) -> None:
    with letters_stack(name="kanon_with-a-name-That-is-too-long-for-a-bucket") as other:
        assert stack.storage.buckets != other.storage.buckets
        send(other, "one")
        other.tick()
        assert (len(batches(other)), batches(stack)) == (1, [])


def test_objects_expire_at_the_midnight_after_their_lifetime_on_the_stacks_clock(stack: Stack) -> None:
    send(stack, "one")
    stack.run_queues(flush=True)
    s3, bucket = stack.session.client("s3"), stack.storage.buckets["Archive"]
    s3.put_object(Bucket=bucket, Key="kept/forever", Body=b"x")
    midnight = START - START % DAY + 32 * DAY
    stack.clock.set(midnight - 1)
    assert stack.sweep() == 0
    s3.put_object(Bucket=bucket, Key="batches/young", Body=b"x")
    stack.clock.set(midnight)
    assert stack.sweep() == 1
    assert objects(stack, "") == ["batches/young", "kept/forever"]


def test_an_object_written_again_begins_a_new_lifetime(stack: Stack) -> None:
    s3, place = stack.session.client("s3"), {"Bucket": stack.storage.buckets["Archive"], "Key": "batches/a"}
    s3.put_object(**place, Body=b"x")
    stack.clock.set(START + 20 * DAY)
    s3.put_object(**place, Body=b"y")
    stack.clock.set(START + 40 * DAY)
    assert stack.sweep() == 0
    assert objects(stack, "batches/") == ["batches/a"]
    stack.clock.set(START + 53 * DAY)
    assert stack.sweep() == 1


# Batches


def test_messages_wait_for_the_end_of_the_window_on_the_stacks_clock(stack: Stack) -> None:
    send(stack, "one")
    stack.advance(20)
    send(stack, "two")
    stack.advance(39)
    assert batches(stack) == []
    stack.advance(1)
    assert batches(stack) == [(START + 60, ["one", "two"])]
    send(stack, "three")
    stack.advance(1000)
    assert batches(stack)[1:] == [(START + 120, ["three"])]


def test_a_full_batch_does_not_wait(stack: Stack) -> None:
    send(stack, *(f"{n:02}" for n in range(30)))
    stack.run_queues()
    (batch,) = batches(stack)
    assert (batch[0], len(batch[1])) == (START, 25)
    stack.advance(60)
    assert sorted(body for _, bodies in batches(stack) for body in bodies) == [f"{n:02}" for n in range(30)]


def test_a_batch_fits_into_an_event(stack: Stack) -> None:
    sizes = [200_000] * 24 + [250_000] * 8
    for size in sizes:
        send(stack, "x" * size)
    stack.tick()
    whole = [sum(len(body) for body in bodies) for _, bodies in batches(stack)]
    assert sum(whole) == sum(sizes)
    assert len(whole) == 2
    assert max(whole) < 6 * MIB


def test_a_failed_message_of_a_batch_returns_alone_and_then_becomes_a_dead_letter(stack: Stack) -> None:
    send(stack, "fail", "one")
    stack.advance(60)
    stack.advance(1000)
    assert batches(stack) == [(START + 60, ["fail", "one"]), (START + 220, ["fail"])]  # hidden 100 s, window 60 s
    assert messages(stack, "PostDead") == ["fail"]


def test_without_a_window_messages_do_not_wait() -> None:
    with letters_stack(parameters={"Window": "0"}) as stack:
        send(stack, "one")
        stack.run_queues()
        assert batches(stack) == [(START, ["one"])]


def test_on_the_real_clock_a_message_is_passed_on_while_the_window_of_another_queue_is_open() -> None:
    with letters_stack(start=None, parameters={"Window": "300"}) as stack:
        stop, passed = threading.Event(), threading.Event()
        invoke = stack.queues._invoke
        stack.queues._invoke = lambda function, event: (invoke(function, event), passed.set())[0]
        running = threading.Thread(target=stack.run, args=(stop,))
        running.start()
        try:
            send(stack, "in the window")
            (parcels,) = [url for arn, url in stack.storage.queue_urls.items() if arn.endswith("-Parcels")]
            stack.session.client("sqs").send_message(QueueUrl=parcels, MessageBody="without a window")
            assert passed.wait(30)
        finally:
            stop.set()
            running.join(30)
        assert [bodies for _, bodies in batches(stack)] == [["without a window"]]
        stack.run_queues(flush=True)
        assert ["in the window"] in [bodies for _, bodies in batches(stack)]


# Schedules


def test_each_schedule_of_a_nested_stack_fires_at_its_own_times(stack: Stack) -> None:
    stack.advance(10 * 3600)
    daily = [key for key in objects(stack, "ticks/") if key.endswith("daily")]
    hourly = [key for key in objects(stack, "ticks/") if key.endswith("hourly")]
    midnight = int(START) // DAY * DAY + DAY
    assert daily == [f"ticks/{midnight + 7 * 3600 + 1800}-daily"]
    assert hourly == [f"ticks/{midnight + 3600 * hour + 300}-hourly" for hour in range(-1, 9)]


def test_a_replacement_replaces_every_schedule() -> None:
    with letters_stack(schedule=Every(1000)) as stack:
        stack.advance(999)
        assert objects(stack, "ticks/") == []
        stack.advance(1)
        assert objects(stack, "ticks/") == [f"ticks/{int(START) + 1000}-{name}" for name in ("daily", "hourly")]


# What the stack says of itself


def test_the_stack_describes_the_queues_and_functions_of_its_nested_stacks(stack: Stack) -> None:
    described = stack.describe()
    assert set(described["functions"]) == {"clerk", "letters"}
    urls = {arn.rpartition("-")[2]: url for arn, url in stack.storage.queue_urls.items()}
    assert described["queues"] == urls
    assert set(urls) == {"DeadLetters", "LostEvents", "Post", "PostDead", "Parcels"}
