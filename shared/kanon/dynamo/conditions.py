"""Conditional writes: a failed condition means that another worker has finished."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from botocore.exceptions import ClientError

P = ParamSpec("P")
T = TypeVar("T")


def unless_refused(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """The response of a conditional call; None if the condition failed and nothing was written."""
    try:
        return call(*args, **kwargs)
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        return None
