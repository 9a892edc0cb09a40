"""The keys of a deployment on an engine: ring, budgets and secrets, with a clock that a test sets."""

import base64
from dataclasses import dataclass, field
from typing import Any

from kanon.reports.job import Amount
from kanon.reports.service.rotation import Epoch, Rotation
from kanon.reports.storage.budgets import Budgets
from kanon.reports.storage.key_ring import KeyRing, PrivateKeys, StoredRing
from tests.integration.gate.tables import Running
from tests.integration.reports.tables import NOW, create_control, fresh_tables, replace_table
from tests.small_pages import expect_consistent_reads

PREFIX = "/report-keys/"


@dataclass
class Issuing:
    """What rotation works on. Every worker has clients of its own."""

    running: Running
    name: str
    now: float = NOW
    clients: list[Any] = field(default_factory=list)

    def _client(self, service: str) -> Any:
        self.clients.append(self.running.session.client(service))
        return self.clients[-1]

    @property
    def control(self) -> str:
        return f"{self.name}-Control"

    @property
    def table(self) -> str:
        return f"{self.name}-Budgets"

    @property
    def jobs_table(self) -> str:
        return f"{self.name}-ReportJobs"

    @property
    def prefix(self) -> str:
        return f"{self.name}{PREFIX}"

    def epoch(self) -> Epoch:
        client = self._client("dynamodb")
        expect_consistent_reads(client)
        return Epoch(client, KeyRing(client, self.control), Budgets(client, self.table, Amount(0, 0)), self.jobs_table)

    def private(self) -> PrivateKeys:
        return PrivateKeys(self._client("secretsmanager"), self.prefix)

    def worker(self) -> Rotation:
        """A worker that has not called anything yet."""
        return Rotation(self.epoch(), self.private())

    def run(self) -> StoredRing:
        return self.worker().run(self.now)

    def ring(self) -> StoredRing:
        keys = self.epoch().ring.read()
        assert keys is not None
        return keys

    def secrets(self) -> set[str]:
        """The ids of the keys that have a secret."""
        pages = self.running.session.client("secretsmanager").get_paginator("list_secrets").paginate()
        names = {secret["Name"] for page in pages for secret in page["SecretList"]}
        return {name.removeprefix(self.prefix) for name in names if name.startswith(self.prefix)}

    def texts(self) -> list[str]:
        """What the secrets hold."""
        client = self.running.session.client("secretsmanager")
        return [client.get_secret_value(SecretId=f"{self.prefix}{name}")["SecretString"] for name in self.secrets()]

    def replace(self, table: str) -> None:
        """Delete a table and create it again, empty."""
        replace_table(self.running.client(), table)

    def replace_budgets(self, *, epoch: str | None) -> None:
        """Delete the table of budgets and create it again, empty or with an epoch, as a backup has it."""
        client = self.running.client()
        self.replace(self.table)
        if epoch is not None:
            client.transact_write_items(TransactItems=[self.epoch().budgets.begin(epoch)])

    def fits(self) -> bool:
        """Whether the ring names exactly the keys that exist, each with its public half."""
        keys = self.ring()
        private = self.private().existing([key.id for key in keys.keys])
        halves = {i: base64.b64encode(key.public_key().public_bytes_raw()).decode() for i, key in private.items()}
        return halves == {key.id: key.public for key in keys.keys} and self.secrets() == set(halves)


def issuing(running: Running) -> Issuing:
    """A new deployment: empty tables, no keys."""
    tables = fresh_tables(running)
    name = tables.names["Budgets"].rpartition("-")[0]
    create_control(tables.client, f"{name}-Control")
    deployment = Issuing(running, name)
    deployment.replace_budgets(epoch=None)
    return deployment
