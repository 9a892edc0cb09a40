"""Writes on a condition: whoever comes second finds the work done."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from botocore.exceptions import ClientError

P = ParamSpec("P")
T = TypeVar("T")


def unless_refused(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """The answer of a call with a condition, None if the condition did not hold and nothing was written."""
    try:
        return call(*args, **kwargs)
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        return None
