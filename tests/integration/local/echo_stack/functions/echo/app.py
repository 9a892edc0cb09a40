"""Answers what it was given: the event, its environment, its clock. Told so, it fails."""

import json
import os
from typing import Any

from kanon import aws, clock

VARIABLES = {k: v for k, v in os.environ.items() if k.startswith(("ECHO_", "AWS_", "KANON_"))}
RECEIVED: list[Any] = []
dynamodb = aws.dynamodb()
sqs = aws.sqs()


def handler(event: dict[str, Any], context: Any) -> Any:
    RECEIVED.append([clock.now(), event])
    print("echo", context.aws_request_id)
    if event.get("schedule"):
        sqs.send_message(QueueUrl=VARIABLES["ECHO_QUEUE_URL"], MessageBody="ticked")
        return None
    if "Records" in event:
        failed = [r["messageId"] for r in event["Records"] if r["body"] == "fail"]
        if any(record["body"] == "raise" for record in event["Records"]):
            raise RuntimeError("told to")
        return {"batchItemFailures": [{"itemIdentifier": identifier} for identifier in failed]}
    if "raise" in event:
        raise RuntimeError("told to")
    if event.get("routeKey") == "POST /answer":
        return json.loads(event["body"])
    if event.get("routeKey") == "POST /v1/things/{thing}":
        part = event["pathParameters"]["thing"].encode()
        item = {
            "name": {"B": b"things"},
            "part": {"B": part},
            "ttl": {"N": str(int(clock.now()) + 60)},
        }
        dynamodb.put_item(TableName=VARIABLES["ECHO_TABLE"], Item=item)
    told = {
        "event": event,
        "environment": VARIABLES,
        "received": RECEIVED[:-1],
        "context": {
            "name": context.function_name,
            "memory": context.memory_limit_in_mb,
            "remaining": context.get_remaining_time_in_millis(),
        },
    }
    if "routeKey" not in event:
        return told
    return {"statusCode": 200, "headers": {"Content-Type": "application/json"}, "body": json.dumps(told)}
