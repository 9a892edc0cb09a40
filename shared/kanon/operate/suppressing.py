"""Suppress sets so that a restored table of statuses does not bring them back.

The bucket of states has an object for each suppressed set, ``suppressed/<set key>``. A new log generation, without
which nothing is evaluated after a restore, suppresses these sets again.
"""

from dataclasses import dataclass
from typing import Any

from kanon.errors import ConfigurationError
from kanon.operate.stacks import RunningStack

FOLDER = "suppressed/"


@dataclass(frozen=True)
class Suppressions:
    """The suppressed sets of a stack."""

    stack: RunningStack

    def suppress(self, set_key: bytes) -> None:
        """Force a set to read false, even if it crosses.

        Raises:
            ConfigurationError: too many sets are suppressed.
        """
        self._client.put_object(**self._object(set_key), Body=b"")
        try:
            self.stack.statuses.suppress(set_key)
        except ConfigurationError:
            self._client.delete_object(**self._object(set_key))
            raise

    def show(self, set_key: bytes) -> bool:
        """Stop suppressing a set; False if it was not suppressed."""
        self._client.delete_object(**self._object(set_key))
        return self.stack.statuses.show(set_key)

    def again(self) -> None:
        """Suppress the sets that a table of statuses has lost.

        Raises:
            ConfigurationError: too many sets are suppressed.
        """
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=FOLDER)
        names = (item["Key"].removeprefix(FOLDER) for page in pages for item in page.get("Contents", ()))
        wanted, statuses = {bytes.fromhex(name) for name in names}, self.stack.statuses
        statuses.read((), (), consistent=True)
        for set_key in sorted(wanted - statuses.suppressed):
            statuses.suppress(set_key)

    @property
    def _client(self) -> Any:
        return self.stack.client("s3")

    @property
    def _bucket(self) -> str:
        return self.stack.evaluate.states_bucket

    def _object(self, set_key: bytes) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": f"{FOLDER}{set_key.hex()}"}
