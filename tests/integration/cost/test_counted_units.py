"""The model of `kanon cost` against the usage and the output of the functions of the local stack."""

import io
from collections import Counter
from dataclasses import dataclass

import pytest

from kanon.client import value_id
from kanon.cost.billing import read_measured
from kanon.cost.deployed import OUTAGE_DAYS
from kanon.cost.evaluating import SlotStep, evaluation_read_units, written_units
from kanon.cost.workload import Workload
from kanon.demo.logs import DemoLog, generated_log
from kanon.gate.types import read_types
from kanon.local import Stack

DAY, PERIOD = 86_400, 3600
TYPE = '{"k": 50, "window": 720, "profile": "published"}'
BACKFILL = 48
"""Steps of the outage allowance of tests, which a new slot looks at before its first one: a read unit each."""
START = 12
"""Write units of the first wake-up: fingerprints, types, and the steps of the outage allowance together."""
LAYOUT = '[{"slots":1,"partitions":1,"from_step":0}]'
MEASURED = read_measured()


@dataclass
class Demo:
    """A day of the demo's log, replayed: what was logged, and what the meter and the logs say."""

    steps: int
    rows: int
    touched: int
    written: dict[str, float]
    read: dict[str, float]
    crossed: int
    objects: Counter[str]


def counted(days: int, **more: str) -> Demo:
    """Send the joins of some days of the demo's log, a step as one batch, to a stack that evaluates them."""
    whole = generated_log(1)
    begin = whole.start + min(20, 45 - days) * DAY
    log = DemoLog("some days", begin, [join for join in whole.joins if begin <= join.time < begin + days * DAY])
    objects: Counter[str] = Counter()
    steps = list(log.by_step(PERIOD))
    parameters = {"Types": f'{{"fledge": {TYPE}}}', "Slots": LAYOUT, **more}
    with Stack(parameters, start=begin, seed=1) as stack:
        evaluate = stack._warm["evaluate"] = stack.cold_start("evaluate")
        calls = evaluate._process.session.events
        calls.register("provide-client-params.s3", lambda model, **_: objects.update([model.name]))
        delay = float(stack.template.parameters["PublishDelay"])
        for step, joins in steps:
            stack.advance_to(step * PERIOD + delay)
            entries = [{"type": "fledge", "set": value_id(join.set), "client": join.client} for join in joins]
            assert stack.request("POST", "/v1:batchJoin", {"joins": entries}).status == 200
        stack.advance_to((steps[-1][0] + 1) * PERIOD + delay)
        statuses = stack.session.client("dynamodb").scan(TableName=stack.storage.tables["Statuses"])["Items"]
        return Demo(
            len(steps),
            sum(len({(join.set, join.client) for join in joins}) for _, joins in steps),
            sum(len({join.set for join in joins}) for _, joins in steps),
            dict(stack.meter.written),
            dict(stack.meter.read),
            sum(len(item["crossings"]["L"]) for item in statuses if "crossings" in item),
            objects,
        )


@pytest.fixture(scope="module")
def demo() -> Demo:
    return counted(1)


def modelled(demo: Demo) -> Workload:
    parameters = read_types(f'{{"fledge": {TYPE}}}', PERIOD)["fledge"].parameters
    seconds, batch = demo.steps * PERIOD, round(demo.rows / demo.steps)  # the replay sends a step as one batch
    touched, crossed = demo.touched / demo.steps, demo.crossed / demo.steps
    return Workload(
        parameters, demo.rows / seconds, batch, touched=touched, crossed=crossed, slots=1, partitions=1
    )  # fmt: skip


def check_written(demo: Demo) -> None:
    """The bound on how far the write units of the model may lie from the counted ones."""
    of_log = demo.steps * modelled(demo).joins_a_step * modelled(demo).logged.units
    assert of_log == pytest.approx(demo.written["join"], rel=0.12)  # hours do not have equally many joins
    counted = demo.written["join"] + demo.written["evaluate"] - START
    assert demo.steps * written_units(modelled(demo), MEASURED, demo.steps) == pytest.approx(counted, rel=0.05)


def test_the_write_units_of_the_model_are_those_of_a_day(demo: Demo) -> None:
    assert demo.rows > 900
    assert demo.touched > 400
    check_written(demo)


@pytest.mark.parametrize("days", [pytest.param(9, marks=pytest.mark.replay), pytest.param(30, marks=pytest.mark.audit)])
def test_the_write_units_of_the_model_are_those_of_many_days(days: int) -> None:
    """The row of a slot grows for a week, over a unit on the third day while a step is open, and on the fourth."""
    demo = counted(days, OutageAllowance=str(OUTAGE_DAYS * DAY))  # of which a row keeps a manifest a day
    assert demo.crossed > 0
    check_written(demo)


def test_the_read_units_of_the_model_equal_those_of_the_demo(demo: Demo) -> None:
    counted = demo.read["evaluate"] - BACKFILL
    assert demo.steps * evaluation_read_units(modelled(demo)) == pytest.approx(counted, rel=0.05)


def test_the_objects_of_the_model_are_those_of_the_demo(demo: Demo) -> None:
    step = SlotStep(modelled(demo), MEASURED)
    assert demo.objects["PutObject"] == pytest.approx(demo.steps * step.put, rel=0.1)
    assert demo.objects["GetObject"] + demo.objects["HeadObject"] == pytest.approx(demo.steps * step.got, rel=0.15)
    assert demo.objects.keys() == {"PutObject", "GetObject", "HeadObject", "ListObjectsV2"}
    assert demo.objects["ListObjectsV2"] == 1  # before the first step of a slot


def test_the_logs_of_a_request_and_of_a_slot_have_the_lengths_of_the_model() -> None:
    logs = io.StringIO()
    with Stack({}, start=1_700_000_000 // PERIOD * PERIOD, seed=1, logs=logs) as stack:

        def printed(path: str, body: dict[str, object]) -> int:
            stack.request("POST", path, body)  # starts the function
            stack.advance(60)  # join writes a line a minute
            logs.seek(0)
            logs.truncate()
            assert stack.request("POST", path, body).status == 200
            return len(logs.getvalue())

        joined = {"joins": [{"type": "fledge", "set": f"c2V0{number:04}", "client": "one"} for number in range(500)]}
        assert printed("/v1:batchJoin", joined) == MEASURED["join_log_bytes"]
        asked = {"setsForType": [{"type": "fledge", "hashes": ["c2V0"]}]}
        assert printed("/v1:query", asked) == MEASURED["query_log_bytes"]
        logs.truncate(0)
        stack.advance(2 * PERIOD)
        assert len(logs.getvalue()) / 2 <= 2 * MEASURED["evaluate_log_bytes"]
