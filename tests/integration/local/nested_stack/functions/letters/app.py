"""Sends what it is asked to a queue, and keeps each batch of the queue as an object, and each schedule too."""

import json
import os
from typing import Any

from kanon import aws, clock

VARIABLES = {name: value for name, value in os.environ.items() if name.startswith("LETTERS_")}
BUCKET = os.environ["LETTERS_BUCKET"]
s3, sqs = aws.s3(), aws.sqs()


def handler(event: dict[str, Any], context: Any) -> Any:
    if "Records" in event:
        bodies = [record["body"] for record in event["Records"]]
        put(f"batches/{clock.now():.0f}-{event['Records'][0]['messageId']}", {"at": clock.now(), "bodies": bodies})
        failed = [record for record in event["Records"] if record["body"].startswith("fail")]
        return {"batchItemFailures": [{"itemIdentifier": record["messageId"]} for record in failed]}
    if "schedule" in event:
        put(f"ticks/{int(clock.now())}-{event['schedule']}", {})
        return None
    if event["routeKey"] == "POST /letters":
        sqs.send_message(QueueUrl=VARIABLES["LETTERS_POST_URL"], MessageBody=event["body"])
        return {"statusCode": 200, "body": "{}"}
    return {"statusCode": 200, "body": json.dumps(VARIABLES)}


def put(key: str, value: Any) -> None:
    s3.put_object(Bucket=BUCKET, Key=key, Body=json.dumps(value).encode(), IfNoneMatch="*")
