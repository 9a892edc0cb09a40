"""Answers its own variables."""

import json
import os
from typing import Any

VARIABLES = {name: value for name, value in os.environ.items() if name.startswith("CLERK_")}


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return {"statusCode": 200, "body": json.dumps(VARIABLES)}
