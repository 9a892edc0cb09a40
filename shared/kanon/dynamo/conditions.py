"""Conditional writes: a failed condition means that another worker has finished."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def unless_refused(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """The response of a conditional call; None if the condition failed and nothing was written."""
    from botocore.exceptions import ClientError

    try:
        return call(*args, **kwargs)
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        return None


def refused_by(call: Callable[..., Any], **kwargs: Any) -> dict[str, Any] | None:
    """The item on which the condition of a write failed, ``{}`` if there is none; None if the write succeeded."""
    from botocore.exceptions import ClientError

    try:
        call(**kwargs, ReturnValuesOnConditionCheckFailure="ALL_OLD")
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        response: Any = error.response  # its declared type has no Item
        return dict(response.get("Item", {}))
    return None
