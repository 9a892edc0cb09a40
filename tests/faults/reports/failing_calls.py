"""Makes one call of a run fail, in one of several ways."""

from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError, ReadTimeoutError

KINDS = ("refused", "answer lost", "killed before", "killed after", "in conflict")
SINGLE = {"PutItem", "UpdateItem", "DeleteItem"}


class KilledError(BaseException):
    """The worker ends here at once; no handler of the product catches this."""


@dataclass
class Fault:
    """One call of the run, counted over all clients, fails once."""

    at: int
    kind: str
    operations: list[str] = field(default_factory=list)
    watching: bool = True

    @property
    def calls(self) -> int:
        return len(self.operations)

    def watch(self, client: Any) -> None:
        call = client._make_api_call

        def disturbed(operation: str, asked: Any) -> Any:
            if self.watching:
                self.operations.append(operation)
            if not self.watching or self.calls - 1 != self.at:
                return call(operation, asked)
            if self.kind == "in conflict":
                return self._conflict(operation, asked) or call(operation, asked)
            if self.kind == "refused":
                raise ClientError({"Error": {"Code": "InternalServerError", "Message": "planted"}}, operation)
            if self.kind == "killed before":
                raise KilledError
            call(operation, asked)
            raise KilledError if self.kind == "killed after" else ReadTimeoutError(endpoint_url="planted")

        client._make_api_call = disturbed

    def _conflict(self, operation: str, asked: Any) -> None:
        """A transaction in progress names the last item of this write, if it is one to DynamoDB."""
        error: Any = {"Error": {"Code": "TransactionConflictException", "Message": "planted"}}
        if operation == "TransactWriteItems":
            reasons = [{"Code": "None"}] * (len(asked["TransactItems"]) - 1) + [{"Code": "TransactionConflict"}]
            error = {
                "Error": {"Code": "TransactionCanceledException", "Message": "planted"},
                "CancellationReasons": reasons,
            }
        elif operation not in SINGLE:
            return
        raise ClientError(error, operation)
