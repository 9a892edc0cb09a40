"""Queue messages: reading one, and sending many."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kanon.dynamo.batches import chunks
from kanon.errors import UnreadableMessageError

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

MessageBody = TypeVar("MessageBody", bound=BaseModel)

MESSAGES_A_CALL = 10


def read_message(model: type[MessageBody], text: str) -> MessageBody:
    """Read the body of a message.

    Raises:
        UnreadableMessageError: it does not fit the model. The error names its problems, never its content.
    """
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        problems = [_problem(model, one) for one in error.errors(include_url=False, include_input=False)]
        raise UnreadableMessageError(*problems) from None


def send_all(client: "SQSClient", url: str, messages: Sequence[BaseModel]) -> None:
    """Send messages to a queue.

    Raises:
        RuntimeError: the queue did not accept every message. Send all of them again.
    """
    for batch in chunks(messages, MESSAGES_A_CALL):
        entries = [
            {"Id": str(i), "MessageBody": message.model_dump_json(exclude_none=True)} for i, message in enumerate(batch)
        ]
        answer = client.send_message_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
        if answer.get("Failed"):
            raise RuntimeError(f"the queue refused {len(answer['Failed'])} of {len(entries)} messages")


def _problem(model: type[BaseModel], error: ErrorDetails) -> str:
    """The invalid field and its problem. The name of an unknown field is content, too, and is not shown."""
    field = next(iter(error["loc"]), None)
    return f"{field if field in model.model_fields else 'body'}: {error['type']}"
