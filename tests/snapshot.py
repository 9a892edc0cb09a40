"""Start many tests from the same used stack: build it once, and restore it before each test."""

import io
import pickle
from collections.abc import Callable
from types import FunctionType
from typing import Any, Generic, TypeVar

from moto.backends import get_backend

from kanon.gate.mechanism.tape import Tapes
from kanon.keys import Secret
from kanon.local import Stack
from kanon.local.template import ACCOUNT, REGION, SECRET

T = TypeVar("T")
SHARED = (Stack, Tapes, Secret, FunctionType)
"""Never copied: the stack is put back, the others do not change."""


class Snapshot(Generic[T]):
    """A stack on moto at this moment, and what a test knows of it (``state``).

    Rows, objects, secrets, time, the functions' settings and the logs are put back by :meth:`restore`. No message may
    wait in a queue now; those that wait at the time of :meth:`restore` are removed.
    """

    def __init__(self, stack: Stack, state: T) -> None:
        assert stack.queues.idle
        assert not any(self._queue(url).messages for url in stack.storage.queue_urls.values())
        self.stack = stack
        self._moment, self._swept = stack.clock.now(), stack._swept
        self._rows = pickle.dumps({name: self._table(name).items for name in stack.storage.tables.values()})
        self._objects = pickle.dumps({name: self._bucket(name).keys for name in stack.storage.buckets.values()})
        self._written = dict(stack._object_times._written)
        self._functions = {name: (each, dict(each.environment)) for name, each in stack.functions.items()}
        self._failures = len(stack.failures)
        assert isinstance(stack.logs, io.StringIO)
        self._logs, self._logged = stack.logs, stack.logs.tell()
        secrets = stack.session.client("secretsmanager")
        self._secrets = {
            arn: secrets.get_secret_value(SecretId=arn)["SecretString"]
            for _, part in stack.template.every()
            for arn in (part.resolve({"Ref": secret.logical_id}) for secret in part.resources(SECRET))
        }
        self._report_keys = self._keys_of_reports()
        self._copy = copier(state)

    def restore(self) -> T:
        """Put the stack back; a copy of the state, for one test."""
        stack = self.stack
        stack.clock.install()  # another stack may have been the last to start or to end
        stack.clock.set(self._moment)
        stack._swept = self._swept
        for name, items in pickle.loads(self._rows).items():
            self._table(name).items = items
        for name, keys in pickle.loads(self._objects).items():
            self._bucket(name).keys = keys
        stack._object_times._written = dict(self._written)
        for name, (function, environment) in self._functions.items():
            function.environment.clear()  # type: ignore[attr-defined]
            function.environment.update(environment)  # type: ignore[attr-defined]
            stack.functions[name] = function
            stack.restart(name)
        secrets = stack.session.client("secretsmanager")
        for arn, text in self._secrets.items():
            if secrets.get_secret_value(SecretId=arn)["SecretString"] != text:
                secrets.put_secret_value(SecretId=arn, SecretString=text)
        found = self._keys_of_reports()
        for name in found.keys() - self._report_keys.keys():
            secrets.delete_secret(SecretId=name, ForceDeleteWithoutRecovery=True)
        for name in self._report_keys.keys() - found.keys():
            secrets.create_secret(Name=name, SecretString=self._report_keys[name])
        for url in stack.storage.queue_urls.values():
            queue = self._queue(url)
            queue._messages, queue._pending_messages = [], set()
        stack.queues.clear()
        del stack.failures[self._failures :]
        self._logs.seek(self._logged)
        self._logs.truncate()
        return self._copy()

    def _table(self, name: str) -> Any:
        return get_backend("dynamodb")[ACCOUNT][REGION].tables[name]

    @staticmethod
    def _bucket(name: str) -> Any:
        return get_backend("s3")[ACCOUNT]["aws"].buckets[name]

    def _keys_of_reports(self) -> dict[str, str]:
        """The secrets that rotate has made, by name."""
        if "rotate" not in self.stack.functions:
            return {}
        prefix = self.stack.functions["rotate"].environment["KANON_REPORT_KEY_PREFIX"]
        client = self.stack.session.client("secretsmanager")
        pages = client.get_paginator("list_secrets").paginate()
        names = [secret["Name"] for page in pages for secret in page["SecretList"]]
        mine = [name for name in names if name.startswith(prefix)]
        return {name: client.get_secret_value(SecretId=name)["SecretString"] for name in mine}

    @staticmethod
    def _queue(url: str) -> Any:
        return get_backend("sqs")[ACCOUNT][REGION].queues[url.rpartition("/")[2]]


def copier(state: T) -> Callable[[], T]:
    """Makes copies of a value as it is now; they share only what is named in ``SHARED``."""
    shared: dict[int, Any] = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, part: Any) -> int | None:
            if not isinstance(part, SHARED):
                return None
            shared[id(part)] = part
            return id(part)

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, place: Any) -> Any:
            return shared[place]

    content = io.BytesIO()
    Pickler(content).dump(state)
    return lambda: Unpickler(io.BytesIO(content.getvalue())).load()
