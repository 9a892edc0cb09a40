"""Anybody may post reports. A few must not cost much more than as many good ones, end a job, or bury those of others.

Reports come over HTTP into a whole stack. Processor time and memory are those of this process, in which it runs.
"""

import base64
import json
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from typing import Any

import pytest

from kanon.local import Stack
from kanon.reports.avro import Report, read_reports, write_domain
from kanon.reports.collecting import MOST_INFO, PUBLIC_KEYS
from kanon.reports.mapping import Selection, map_reports
from kanon.reports.payload import (
    MOST_BYTES,
    MOST_SLOTS,
    MOST_UNUSUAL,
    Contribution,
    EncryptionKey,
    PayloadLayout,
    encode,
    public_keys,
    seal,
)
from kanon.reports.shared_info import Rules
from tests.integration.reports.test_collect import ATTRIBUTION
from tests.unit.reports import made
from tests.unit.reports.test_payload import bombs

START = made.NOW - 86_400
HOUR = 3600
EACH = 8
"""Reports of each kind."""
TURNS = 25


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack({"Reports": "ON"}, start=START) as stack:
        stack.advance(10 * 60)
        yield stack


def key_of(stack: Stack) -> EncryptionKey:
    return public_keys(stack.request("GET", PUBLIC_KEYS).body.decode())[0]


def post(
    stack: Stack, cleartext: bytes, number: int, *, path: str = "/v1/reports", padded: bool = False, **changes: Any
) -> int:
    """Post one report, encrypted to the stack's key. Returns the status."""
    fields = {"api": "kanon", "attribution_destination": None, "source_registration_time": None}
    fields |= {"scheduled_report_time": int(stack.clock.now()) - HOUR}
    text = made.info(number, **fields | changes).text()
    if padded:  # with the values that take longest to parse
        text = text[:-1] + ',"x":[' + "{}," * ((MOST_INFO - len(text) - 20) // 3) + "{}]}"
    key = key_of(stack)
    payload = base64.b64encode(seal(cleartext, key.key, text)).decode()
    body = {"shared_info": text, "aggregation_service_payloads": [{"payload": payload, "key_id": key.id}]}
    return stack.request("POST", path, json.dumps(body), {"content-type": "application/json"}).status


def good(number: int) -> bytes:
    """A report of the largest accepted size, without padding."""
    buckets = random.Random(number)
    return encode([Contribution(buckets.getrandbits(128), 1) for _ in range(MOST_SLOTS)], PayloadLayout(MOST_SLOTS))


def unusual(number: int) -> bytes:
    """As many pairs as are read one by one: all of another form, in any order."""
    draw = random.Random(number)
    pairs = b""
    for _ in range(MOST_UNUSUAL):
        fields = [b"\x62id\x48" + draw.randbytes(7) + b"\0", b"\x65value\x44\0\0\0\1"]
        fields.append(b"\x66bucket" + bytes([0x40 + (size := draw.randrange(1, 17))]) + draw.randbytes(size))
        draw.shuffle(fields)
        pairs += b"\xbf" + b"".join(fields) + b"\xff"
    return b"\xa2\x64data\x99" + MOST_UNUSUAL.to_bytes(2, "big") + pairs + b"\x69operation\x69histogram"


def almost(number: int) -> bytes:
    """A good report but for its last byte."""
    return good(number)[:-1] + b"?"


def claimed(number: int) -> bytes:
    """Each of another layout, with one wrong byte in its middle."""
    cleartext = bytearray(encode([], PayloadLayout(MOST_SLOTS - number % 100, 8)))
    cleartext[len(cleartext) // 2 - len(cleartext) // 2 % 48 + 7] ^= 255
    return bytes(cleartext)


BOMBS = [bomb for bomb in bombs() if len(bomb) <= MOST_BYTES]
KINDS: dict[str, Callable[[int], bytes]] = {
    "bomb": lambda number: BOMBS[number % len(BOMBS)],
    "unusual": unusual,
    "almost": almost,
    "claimed": claimed,
}


def stored(stack: Stack) -> list[Report]:
    s3, bucket = stack.session.client("s3"), stack.storage.buckets["ReportsBucket"]
    names = [item["Key"] for item in s3.list_objects_v2(Bucket=bucket).get("Contents", ())]
    files = [s3.get_object(Bucket=bucket, Key=name)["Body"].read() for name in names]
    return [report for file in files for report in read_reports(BytesIO(file))]


def least(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The least processor time of each run over many turns. They alternate, so that what slows one slows all."""
    found = dict.fromkeys(runs, float("inf"))
    for _ in range(TURNS):
        for kind, run in runs.items():
            begun = time.process_time()
            run()
            found[kind] = min(found[kind], time.process_time() - begun)
    return found


def test_no_report_of_an_accepted_size_costs_three_times_a_good_one(stack: Stack) -> None:
    for number in range(EACH):
        assert post(stack, good(number), number) == 200
        for place, cleartext in enumerate(KINDS.values(), 1):
            assert post(stack, cleartext(number), 100 * place + number, padded=True) == 200
        assert post(stack, bytes(60_000), 999) == 400
    stack.advance(61)
    reports = {json.loads(report.shared_info)["report_id"]: report for report in stored(stack)}
    keys = stack.functions["decrypt"].environment["KANON_REPORT_KEY_PREFIX"]
    secret = stack.session.client("secretsmanager").get_secret_value(SecretId=f"{keys}{key_of(stack).id}")
    private = made.X25519PrivateKey.from_private_bytes(base64.b64decode(secret["SecretString"]))
    rules = Rules(int(stack.clock.now()), {key_of(stack).id: private}, made.ORIGIN)

    def mapping(place: int) -> Callable[[], Any]:
        some = [reports[made.report_id(100 * place + number)] for number in range(EACH)]
        return lambda: map_reports(some, rules, Selection())

    times = least({kind: mapping(place) for place, kind in enumerate(("good", *KINDS))})
    ratios = {kind: times[kind] / times["good"] for kind in KINDS}
    print("processor time in good reports:", {kind: f"{ratio:.2f}" for kind, ratio in ratios.items()})
    assert max(ratios.values()) <= 3
    tracemalloc.start()
    try:
        map_reports(list(reports.values()), rules, Selection())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    print(f"memory: {peak / 2**20:.1f} MiB for {len(reports)} reports")
    assert peak < 32 << 20


def test_strangers_end_no_job_and_charge_nothing_to_it(stack: Stack) -> None:
    """Junk with invented origins, hours and destinations beside good reports."""
    mine, shop = "https://mine.test", "https://shop.test"
    api = {
        "api": "attribution-reporting",
        "attribution_destination": shop,
        "source_registration_time": made.NOW - 70 * 86_400,
    }
    assert stack.request("GET", PUBLIC_KEYS).status == 200
    send = partial(post, stack, path=ATTRIBUTION, **api)
    now = int(stack.clock.now())
    for number in range(10):
        text = encode([Contribution(1, 60_000)], made.LAYOUT)
        assert send(text, number, reporting_origin=mine, scheduled_report_time=now - HOUR) == 200
    for number in range(100, 130):
        origin = f"https://{number}.test" if number % 2 else mine
        hour, other = now - number * 12 * HOUR, f"https://shop-{number}.test"
        sent = send(b"junk", number, reporting_origin=origin, scheduled_report_time=hour, attribution_destination=other)
        assert sent == 200
    before = set(names(stack))
    stack.advance(61)
    assert len(set(names(stack)) - before) <= 64
    told = done(stack, "mine", "attribution-reporting", mine, attribution_destinations=shop)
    assert told["result_info"]["return_code"] == "SUCCESS", told
    assert told["privacy"]["rows_charged"] == 1
    assert stack.failures == []


def done(stack: Stack, job: str, api: str, origin: str, **parameters: str) -> Any:
    """What getJob tells of a job over all stored reports of an origin, with one declared key, after it has run."""
    s3, buckets = stack.session.client("s3"), stack.storage.buckets
    domain = BytesIO()
    write_domain(domain, made.keys16(1))
    s3.put_object(Bucket=buckets["SummariesBucket"], Key="domains/keys.avro", Body=domain.getvalue())
    body = {
        "job_request_id": job,
        "input_data_bucket_name": buckets["ReportsBucket"],
        "input_data_blob_prefix": f"reports/{api}/",
        "output_data_bucket_name": buckets["SummariesBucket"],
        "output_data_blob_prefix": f"output/{job}.avro",
        "job_parameters": {
            "attribution_report_to": origin,
            "output_domain_bucket_name": buckets["SummariesBucket"],
            "output_domain_blob_prefix": "domains/",
            **parameters,
        },
    }
    assert stack.request("POST", "/v1alpha/createJob", body).status == 202
    stack.run_queues()
    return stack.request("GET", f"/v1alpha/getJob?job_request_id={job}").json()


def test_a_job_over_bombs_of_many_hours_ends_in_time_and_counts_the_good_reports(stack: Stack) -> None:
    """Once, three such reports made a job of 2 seconds take 47, and a few in each hour ended it."""
    origins = {"good": "https://good.test", "bombs": "https://bombs.test"}
    now, before = int(stack.clock.now()), set(names(stack))
    for number in range(24):
        hour = {"scheduled_report_time": now - number * HOUR}
        assert post(stack, good(number), 1000 + number, reporting_origin=origins["good"], **hour) == 200
        bomb = good(0) if number == 7 else BOMBS[number % len(BOMBS)]
        assert post(stack, bomb, 2000 + number, reporting_origin=origins["bombs"], **hour) == 200
    stack.advance(61)
    assert len(set(names(stack)) - before) == 2, "one object for each origin, whatever the hours"
    used: dict[str, list[float]] = {kind: [] for kind in origins}
    told: dict[str, Any] = {}
    for turn in range(2):
        for kind, origin in origins.items():
            begun = time.process_time()
            told[kind] = done(stack, f"{kind}-{turn}", "kanon", origin)
            used[kind].append(time.process_time() - begun)
    print("processor time of a job over bombs, in jobs over good reports:", min(used["bombs"]) / min(used["good"]))
    assert min(used["bombs"]) <= 3 * min(used["good"])
    assert [told[kind]["result_info"]["return_code"] for kind in origins] == ["SUCCESS", "SUCCESS_WITH_ERRORS"]
    counted = {one["category"]: one["count"] for one in told["bombs"]["result_info"]["error_summary"]["error_counts"]}
    assert counted == {"REPORT_PARSING_ERROR": 23, "NUM_REPORTS_WITH_ERRORS": 23}
    assert [told[kind]["privacy"]["rows_charged"] for kind in origins] == [2, 2]
    assert stack.failures == []


def names(stack: Stack) -> list[str]:
    found = stack.session.client("s3").list_objects_v2(Bucket=stack.storage.buckets["ReportsBucket"])
    return [item["Key"] for item in found.get("Contents", ())]
