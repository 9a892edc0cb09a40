"""One evaluate worker in its own process: reads its settings from stdin, reports on stdout.

It handles the queue as Lambda does, message by message, each with its own time limit, and measures its own memory;
the engine and the load run in other processes. With ``seconds_per_call``, each DynamoDB call takes this time of the
limit, so the point at which a worker stops does not depend on the machine.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def main() -> None:
    """Handle messages until the queue is empty."""
    asked = json.load(sys.stdin)
    os.environ.update(asked["environment"])
    out, sys.stdout = sys.stdout, sys.stderr  # the function logs
    from botocore.config import Config

    from kanon import aws, clock

    # Unlike DynamoDB, the emulator sorts the whole partition for every page, which takes time.
    aws.CONFIG = aws.CONFIG.merge(Config(read_timeout=60))
    offset = asked["now"] - time.time()
    clock.now = lambda: time.time() + offset
    pages: list[int] = []
    calls = 0

    def count_call(**_: object) -> None:
        nonlocal calls
        calls += 1

    def count_rows(parsed: dict[str, Any], **_: object) -> None:
        pages.append(len(parsed["Items"]))

    session: Any = aws.session()
    session.register("after-call.dynamodb.Query", count_rows)
    session.register("before-call.dynamodb", count_call)

    def spent() -> float:
        per_call: float | None = asked["seconds_per_call"]
        return time.monotonic() if per_call is None else calls * per_call

    handler = runpy.run_path(asked["handler"])["handler"]
    queue, url = session.create_client("sqs"), os.environ["KANON_QUEUE_URL"]
    report: dict[str, Any] = {"resident_at_start": resident(), "invocations": [], "hops": 0, "failed": False}
    while messages := queue.receive_message(QueueUrl=url).get("Messages"):
        (message,) = messages
        began = time.monotonic()
        deadline = spent() + asked["timeout"]
        # Not kanon.local.functions.Context: the import of the local stack would add 28 MiB to the memory measured.
        context = SimpleNamespace(
            function_name="evaluate",
            memory_limit_in_mb="1769",
            invoked_function_arn="arn",
            aws_request_id="load",
            get_remaining_time_in_millis=lambda deadline=deadline: int((deadline - spent()) * 1000),
        )
        record = {"messageId": "m", "body": message["Body"], "eventSource": "aws:sqs", "receiptHandle": "r"}
        report["failed"] = bool(handler({"Records": [record]}, context)["batchItemFailures"])
        report["invocations"].append(time.monotonic() - began)
        report["hops"] = max(report["hops"], json.loads(message["Body"])["hop"])
        if report["failed"]:
            break
        queue.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    report |= {"resident_at_most": resident(), "pages": len(pages), "largest_page": max(pages, default=0)}
    json.dump(report, out)


def resident() -> float:
    """The peak resident memory of this program so far, MiB.

    On Linux, ``ru_maxrss`` also covers the process before it became this program: the memory of the parent.
    """
    status = Path("/proc/self/status")
    if status.exists():
        (peak,) = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(peak) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
