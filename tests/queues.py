"""The waiting messages in the queues of a stack."""

from kanon.local import Stack


def messages(stack: Stack, queue: str) -> list[str]:
    """The bodies of the messages waiting in a queue (logical id), left where they are."""
    (url,) = [url for arn, url in stack.storage.queue_urls.items() if arn.endswith(f"-{queue}")]
    sqs = stack.session.client("sqs")
    found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0)
    return [message["Body"] for message in found.get("Messages", [])]
