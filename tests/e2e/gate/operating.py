"""What an operator of a running stack sees and does: marks, reasons of a stop, deployments, log generations, tables."""

import json
from typing import Any

from kanon.gate.names import set_key
from kanon.keys import Secret
from kanon.local import Stack
from tests.integration.gate.doctor_view import operate, seen


def key_of(stack: Stack, type_name: str, set_id: bytes) -> bytes:
    """The key of a set."""
    return set_key(Secret.derived("set-pepper", stack.storage.secrets["SetPepper"]), type_name, set_id)


def mark(stack: Stack) -> int:
    """The mark of the only slot."""
    (through,) = seen(stack).marks.values()
    assert through is not None
    return through


def stopped(stack: Stack) -> list[dict[str, Any]]:
    """What evaluate logged when it stopped."""
    lines = stack.logs.getvalue().splitlines()  # type: ignore[attr-defined]
    return [json.loads(line) for line in lines if '"evaluation stopped"' in line]


def stops(stack: Stack) -> str:
    """The reason why evaluation stops; it is tried once more."""
    before, already = seen(stack).marks, len(stopped(stack))
    stack.invoke("evaluate", {"schedule": True})
    stack.run_queues()
    lines = stopped(stack)
    assert seen(stack).marks == before
    assert len(lines) > already
    reason: str = lines[-1]["reason"]
    return reason


def deploy(stack: Stack, *names: str, **variables: str) -> None:
    """Give these functions, or all, other variables, as a deployment does."""
    for name in names or stack.functions:
        stack.functions[name].environment.update(variables)  # type: ignore[attr-defined]
        stack.restart(name)


def deploy_generations(stack: Stack, text: str) -> int:
    """Deploy with this value of LogGenerations. Returns the first step of the newest one."""
    deploy(stack, "evaluate", KANON_LOG_GENERATIONS=text)
    first: int = json.loads(text)[-1]["from_step"]
    return first


def begin_generation(stack: Stack) -> int:
    """Begin a log generation by the command and deploy what it prints; its first step."""
    code, output = operate(stack, "new-generation", "--yes")
    assert code == 0, output
    return deploy_generations(stack, output.splitlines()[-1])


def new_table(stack: Stack, table: str, rows: list[dict[str, Any]]) -> None:
    """Put a new table with these rows in the place of one."""
    client, name = stack.session.client("dynamodb"), stack.storage.tables[table]
    old = client.describe_table(TableName=name)["Table"]
    client.delete_table(TableName=name)
    client.create_table(
        TableName=name,
        KeySchema=old["KeySchema"],
        AttributeDefinitions=old["AttributeDefinitions"],
        BillingMode="PAY_PER_REQUEST",
    )
    for item in rows:
        client.put_item(TableName=name, Item=item)
