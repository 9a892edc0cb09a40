"""Replaces the Lambda runtime: imports app.py from given directories and answers events.

Run as ``python -I -S runtime.py``, so that nothing is importable but the standard library and the
directories of the first line of standard input. The second line holds the events, the third one the seconds by which
the clock is ahead.
"""

import importlib.util
import json
import os
import sys
import time

directories = json.loads(sys.stdin.readline())
events = json.loads(sys.stdin.readline())
ahead = float(sys.stdin.readline())
sys.path[:] = [*directories, *(entry for entry in sys.path if "site-packages" not in entry)]

# The function prints its log; only the last line of this output is the result.
import app  # noqa: E402

from kanon import clock  # noqa: E402

clock.now = lambda: time.time() + ahead


class Context:
    """Lambda's second argument of a handler."""

    function_name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
    function_version = "$LATEST"
    memory_limit_in_mb = os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]
    invoked_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:" + function_name
    aws_request_id = "00000000-0000-4000-8000-000000000000"
    deadline = time.monotonic() + 30

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until the timeout."""
        return int((self.deadline - time.monotonic()) * 1000)


answers = [app.handler(event, Context()) for event in events]
files = {
    name: str(module.__file__)
    for name, module in sys.modules.items()
    if getattr(module, "__file__", None) and name.split(".")[0] not in sys.stdlib_module_names
}
numpy = importlib.util.find_spec("numpy") is not None
print()
print(json.dumps({"answers": answers, "files": files, "finds_numpy": numpy}))
