"""The local stack on a template of one function that answers what it was given."""

import contextlib
import gc
import http.client
import io
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from kanon import aws
from kanon.local import FunctionError, Stack
from kanon.local.gateway import PAYLOAD_LIMIT
from tests.moto_engine import ENGINES
from tests.queues import messages

ECHO = Path(__file__).parent / "echo_stack" / "template.yaml"
START = 1_700_000_000.0  # 13 minutes past the hour


def echo_stack(**options: Any) -> Stack:
    return Stack(**{"start": START, "template": ECHO, **options})


@pytest.fixture
def stack() -> Iterator[Stack]:
    with echo_stack() as running:
        yield running


@pytest.fixture
def connection(stack: Stack) -> Iterator[http.client.HTTPConnection]:
    """A connection to the served stack, over a real socket."""
    server = stack.serve()
    with contextlib.closing(http.client.HTTPConnection(server.url.removeprefix("http://"))) as open_:
        yield open_
    server.close()


def test_the_first_page_says_where_to_go(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", "/")
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Content-Type")) == (200, "text/html; charset=utf-8")
    page = answer.read().decode()
    assert '<a href="/docs">' in page
    assert "/reports/" not in page, "this stack has no reports"


def received(stack: Stack) -> list[tuple[float, dict[str, Any]]]:
    """The events the function has seen, each with its time on the function's clock."""
    found = stack.request("GET", "/v1/things/known").json()["received"]
    return [(moment, event) for moment, event in found]


def ticks(stack: Stack) -> list[float]:
    return [moment for moment, event in received(stack) if event.get("schedule")]


def bodies(stack: Stack) -> list[tuple[float, str]]:
    return [(t, r["body"]) for t, event in received(stack) for r in event.get("Records", [])]


def send(stack: Stack, body: str) -> None:
    (url,) = [url for arn, url in stack.storage.queue_urls.items() if arn.endswith("Work")]
    stack.session.client("sqs").send_message(QueueUrl=url, MessageBody=body)


# Functions


def test_a_function_sees_the_variables_of_its_template_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KANON_LEFT_OVER", "x")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "mine")
    with echo_stack(parameters={"Greeting": "good"}) as stack:
        answer = stack.request("GET", "/v1/things/known").json()
        environment = answer["environment"]
        assert environment["ECHO_GREETING"] == "good from kanon-local"
        assert environment["ECHO_TABLE"] == stack.storage.tables["Table"]
        assert environment["AWS_REGION"] == "us-east-1"
        assert "KANON_LEFT_OVER" not in environment
        assert "AWS_SESSION_TOKEN" not in environment
        assert os.environ["AWS_SESSION_TOKEN"] == "mine"
        assert "ECHO_TABLE" not in os.environ


def test_the_lambda_context_has_the_limits_of_the_template(stack: Stack) -> None:
    context = stack.request("GET", "/v1/things/known").json()["context"]
    assert context["memory"] == "256"
    assert 3_000 < context["remaining"] <= 20_000  # without the template it would be 3 s
    assert context["name"] == stack.functions["echo"].name


def test_a_worker_can_be_brought_near_its_limit(stack: Stack) -> None:
    assert stack.invoke("echo", {}, timeout=0.0)["context"]["remaining"] == 0


def test_copies_of_a_function_share_nothing(stack: Stack) -> None:
    first, second = stack.cold_start("echo"), stack.cold_start("echo")
    first.invoke({"n": 1})
    assert len(first.invoke({})["received"]) == 1
    assert second.invoke({})["received"] == []


def test_a_restart_forgets_what_the_warm_copy_knew(stack: Stack) -> None:
    stack.request("GET", "/v1/things/known")
    assert len(received(stack)) == 1
    stack.restart("echo")
    assert received(stack) == []


def test_the_output_of_a_function_goes_to_its_log(stack: Stack, capsys: Any) -> None:
    stack.request("GET", "/v1/things/known")
    assert "echo " in stack.logs.getvalue()
    assert "echo " not in capsys.readouterr().out


def test_closing_an_output_before_it_is_released_raises_nothing(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 3.13 on Python tells of an error met while it collects an ``io`` object."""
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    for name in "stdout", "stderr":
        with monkeypatch.context() as outside, io.TextIOWrapper(io.BytesIO()) as closed:
            outside.setattr(sys, name, closed)
            stack.request("GET", "/v1/things/known")
            assert getattr(sys, name) is not closed
            closed.close()
    gc.collect()
    assert unraisable == []


def test_a_raising_function_is_an_error_of_the_gateway_with_its_trace_in_the_log(
    stack: Stack,
) -> None:
    with pytest.raises(FunctionError, match="RuntimeError: told to"):
        stack.invoke("echo", {"raise": True})
    response = stack.request("POST", "/answer", "not json")
    assert (response.status, response.json()) == (500, {"message": "Internal Server Error"})
    assert "JSONDecodeError" in stack.logs.getvalue()


def test_a_function_makes_its_clients_from_its_own_session_only_while_it_runs(stack: Stack) -> None:
    assert stack.request("POST", "/v1/things/known", "body").status == 200
    assert stack.meter.calls["echo", "PutItem"] == 1
    assert isinstance(aws.session(), botocore.session.Session)


def test_secrets_are_generated_by_their_rule_and_reproducible_with_a_seed() -> None:
    found = []
    for seed in (1, 1, 2):
        with echo_stack(seed=seed) as stack:
            found.append(stack.storage.secrets)
            assert len(stack.storage.secrets["Plain"]) == 64
            assert stack.storage.secrets["Keyed"].startswith('{"1": "')
    assert found[0] == found[1] != found[2]


# HTTP


def test_an_event_is_the_same_with_and_without_a_socket(stack: Stack, connection: http.client.HTTPConnection) -> None:
    connection.request(
        "POST",
        "/v1/things/a%3Ab?x=%20",
        b'{"q": 1}',
        {"Content-Type": "application/json", "X-Two": "b"},
    )
    over_socket = connection.getresponse()
    assert over_socket.status == 200
    remote = json.loads(over_socket.read())["event"]
    local = stack.request(
        "POST",
        "/v1/things/a%3Ab?x=%20",
        {"q": 1},
        {"x-two": "b", "content-type": "application/json"},
    ).json()["event"]
    for made in (remote, local):
        assert made["rawPath"] == "/v1/things/a:b"
        assert made["rawQueryString"] == "x=%20"
        assert made["body"] == '{"q": 1}'
        assert made["headers"]["x-two"] == "b"
        assert made["requestContext"]["timeEpoch"] == int(START * 1000)
    assert remote.keys() == local.keys()


def test_the_gateway_itself_answers_if_no_route_matches(
    connection: http.client.HTTPConnection,
) -> None:
    connection.request("GET", "/elsewhere")
    response = connection.getresponse()
    assert (response.status, response.read()) == (404, b'{"message": "Not Found"}')
    assert response.getheader("content-type") == "application/json"


def test_a_body_beyond_the_gateways_quota_is_refused(stack: Stack) -> None:
    headers = {"content-type": "text/plain"}
    full, over = b"x" * PAYLOAD_LIMIT, b"x" * (PAYLOAD_LIMIT + 1)
    assert stack.request("POST", "/v1/things/x", over, headers).status == 413
    assert stack.request("POST", "/v1/things/x", full, headers).status == 200


def test_the_functions_answer_reaches_the_client_whole(stack: Stack, connection: http.client.HTTPConnection) -> None:
    answer = '{"statusCode": 202, "headers": {"Retry-After": "7"}, "body": "\u00e9"}'.encode()
    connection.request("POST", "/answer", answer, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert (response.status, response.read()) == (202, "\u00e9".encode())
    assert response.getheader("retry-after") == "7"


def test_the_server_listens_on_loopback_only_and_stops(stack: Stack) -> None:
    server = stack.serve()
    port = int(server.url.rpartition(":")[2])
    assert server.url.startswith("http://127.0.0.1:")
    server.close()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


# Time


def test_the_schedule_fires_at_its_times_on_the_functions_clock(stack: Stack) -> None:
    stack.advance(2 * 3600)
    assert ticks(stack) == [START - START % 3600 + 3600 * n + 180 for n in (1, 2)]
    assert stack.clock.now() == START + 7200


def test_setting_the_clock_fires_nothing(stack: Stack) -> None:
    stack.clock.set(START + 86400)
    assert ticks(stack) == []
    stack.tick()
    assert ticks(stack) == [START + 86400]


def test_a_tick_at_the_end_of_an_advance_fires_once(stack: Stack) -> None:
    tick = START - START % 3600 + 3600 + 180
    stack.advance_to(tick)
    assert ticks(stack) == [tick]
    stack.advance(60)
    assert ticks(stack) == [tick]


def test_the_queue_is_run_until_no_message_is_visible(stack: Stack) -> None:
    stack.tick()
    assert bodies(stack) == [(START, "ticked")]
    assert messages(stack, "Work") == []


def test_a_failed_message_returns_after_its_visibility_timeout_and_then_becomes_a_dead_letter(
    stack: Stack,
) -> None:
    send(stack, "fail")
    stack.run_queues()
    stack.run_queues()
    assert bodies(stack) == [(START, "fail")]
    stack.advance(99)
    assert len(bodies(stack)) == 1
    stack.advance(1)
    assert bodies(stack) == [(START, "fail"), (START + 100, "fail")]
    stack.advance(1000)
    assert len(bodies(stack)) == 2  # maxReceiveCount
    assert messages(stack, "DeadLetters") == ["fail"]


def test_a_message_stays_if_its_function_raises_and_is_deleted_if_it_succeeds(stack: Stack) -> None:
    send(stack, "raise")
    send(stack, "fine")
    stack.run_queues()
    assert sorted(body for _, body in bodies(stack)) == ["fine", "raise"]
    assert [str(failure) for failure in stack.failures] == ["RuntimeError: told to"]
    stack.advance(100)
    assert sorted(body for _, body in bodies(stack)) == ["fine", "raise", "raise"]


def test_an_event_that_keeps_failing_is_retried_twice_and_becomes_a_dead_letter(stack: Stack) -> None:
    stack._invoke_asynchronously("echo", {"raise": True})
    assert len(received(stack)) == 3
    (buried,) = messages(stack, "DeadLetters")
    assert '"errorMessage": "told to"' in buried


def test_a_real_clock_follows_the_schedule_until_told_to_stop() -> None:
    class Soon:
        def next_after(self, moment: float) -> float:
            return moment + 0.001

    with echo_stack(start=None, schedule=Soon()) as stack:
        stop, ticked = threading.Event(), threading.Event()
        stack.functions["echo"].cold_start()
        run_queues = stack.run_queues
        stack.run_queues = lambda *flush: (run_queues(*flush), ticked.set())  # type: ignore[method-assign]
        thread = threading.Thread(target=stack.run, args=(stop,))
        thread.start()
        assert ticked.wait(30)
        stop.set()
        thread.join(30)
        assert not thread.is_alive()
        assert len(ticks(stack)) >= 1


# Rows and units


@pytest.mark.parametrize("engine", ["moto", "ministack"])
def test_rows_expire_by_the_simulated_clock_on_either_engine(engine: str) -> None:
    with echo_stack(engine=ENGINES[engine]) as stack:
        stack.request("POST", "/v1/things/old")
        stack.advance(30)
        stack.request("POST", "/v1/things/young")
        dynamodb = stack.session.client("dynamodb")
        table = stack.storage.tables["Table"]
        described = dynamodb.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
        assert described["TimeToLiveStatus"] == "DISABLED"  # the engine's own clock deletes nothing
        stack.clock.set(START + 60)
        assert stack.sweep() == 0
        stack.clock.set(START + 61)
        assert stack.sweep() == 1
        (left,) = dynamodb.scan(TableName=table)["Items"]
        assert left["part"] == {"B": b"young"}


def test_advancing_the_clock_deletes_expired_rows(stack: Stack) -> None:
    dynamodb, table = stack.session.client("dynamodb"), stack.storage.tables["Table"]
    stack.request("POST", "/v1/things/old")
    assert dynamodb.scan(TableName=table)["Count"] == 1
    stack.advance(7 * 3600)
    assert dynamodb.scan(TableName=table)["Count"] == 0


@pytest.mark.parametrize("engine", ["moto", "ministack"])
def test_a_query_reads_its_partition_in_byte_order_on_either_engine(engine: str) -> None:
    with echo_stack(engine=ENGINES[engine]) as stack:
        dynamodb = stack.session.client("dynamodb")
        table = stack.storage.tables["Table"]
        parts = [bytes([n]) for n in (255, 0, 62, 63, 128, 10, 47)]
        for partition in (b"one", b"two"):
            for part in parts:
                item = {"name": {"B": partition}, "part": {"B": part}}
                dynamodb.put_item(TableName=table, Item=item)
        pages = dynamodb.get_paginator("query").paginate(
            TableName=table,
            KeyConditionExpression="#n = :n",
            ExpressionAttributeNames={"#n": "name"},
            ExpressionAttributeValues={":n": {"B": b"one"}},
            PaginationConfig={"PageSize": 3},
        )
        items = [item for page in pages for item in page["Items"]]
        assert {item["name"]["B"] for item in items} == {b"one"}
        assert [item["part"]["B"] for item in items] == sorted(parts)
        empty = dynamodb.query(
            TableName=table,
            KeyConditionExpression="#n = :n",
            ExpressionAttributeNames={"#n": "name"},
            ExpressionAttributeValues={":n": {"B": b"three"}},
        )
        assert empty["Count"] == 0


def test_units_are_counted_by_the_documented_rules(stack: Stack) -> None:
    stack.request("POST", "/v1/things/small")
    assert stack.meter.written["echo"] == 1
    stack.request("POST", "/v1/things/" + "x" * 1020)
    assert stack.meter.written["echo"] == 3  # 1,020 bytes of key and a little more


def test_requests_to_two_functions_at_once_are_never_mixed_up(new_stack: Any) -> None:
    stack = new_stack()
    right: list[bool] = []

    def ask(method: str, target: str, body: Any, expected: bytes, times: int = 150) -> None:
        for _ in range(times):
            response = stack.request(method, target, body)
            right.append(response.status == 200 and expected in response.body)

    calls = [
        ("GET", "/v1/types/fledge", None, b'"window"'),
        ("POST", "/v1/types/fledge/sets/aGVsbG8:join", {"client": "a"}, b"{}"),
    ]
    for call in calls:
        ask(*call, times=1)  # both functions are warm
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=ask, args=call) for call in calls * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert right == [True] * (2 + 4 * 150)
