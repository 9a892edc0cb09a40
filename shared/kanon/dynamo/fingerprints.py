"""Fingerprints of immutable values in table Control: one item for each function, compared when it starts."""

from collections.abc import Collection, Mapping

from kanon.dynamo.limits import MOST_EXPRESSION_BYTES
from kanon.dynamo.tables import KeyedTable, bound
from kanon.errors import ConfigurationError, FingerprintMismatchError

DEPLOYMENT = "deployment"
"""The attribute that every function records when it first starts."""


class Fingerprints(KeyedTable):
    """The recorded fingerprints.

    Attributes:
        changed: the message for a changed value.
        too_many: the message for too many fingerprints in one update.
    """

    key_name = "name"
    key_type = "S"
    changed = "an immutable value differs from what this deployment started with; restore it"
    too_many = "fingerprints are more than one deployment can hold; split it"

    def recorded(self, owner: str) -> dict[str, str]:
        """The fingerprints recorded for a function, strongly consistent."""
        item = self._item(f"function#{owner}")
        return {name: value["S"] for name, value in item.items() if name != self.key_name}

    def check(self, owner: str, fingerprints: Mapping[str, str], old: Collection[str] = ()) -> None:
        """Record new fingerprints and compare known ones, in one conditional update.

        Args:
            owner: the function.
            fingerprints: by the name of an attribute; with names in ``old``, ``DEPLOYMENT`` is among them.
            old: names that must be recorded already, unless the function has never started.

        Raises:
            ConfigurationError: there are too many for one update.
            FingerprintMismatchError: an immutable value has changed, or one of ``old`` is not recorded.
        """
        places = {name: i for i, name in enumerate(fingerprints)}
        names = {f"#n{i}": name for name, i in places.items()}
        values = bound(**{f"v{i}": value for i, value in enumerate(fingerprints.values())})
        update = "SET " + ", ".join(f"#n{i} = :v{i}" for i in places.values())
        new = {name: places[DEPLOYMENT] if name in old else i for name, i in places.items()}
        condition = " AND ".join(
            f"(attribute_not_exists(#n{new[name]}) OR #n{i} = :v{i})" for name, i in places.items()
        )
        if max(len(update), len(condition)) > MOST_EXPRESSION_BYTES:
            raise ConfigurationError(f"{len(names)} {self.too_many}")
        changed = self._update(
            f"function#{owner}",
            update,
            condition,
            values,
            ExpressionAttributeNames=names,
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
        if changed is None:
            raise FingerprintMismatchError(f"{owner}: {self.changed}")

    def record(self, owner: str, fingerprints: Mapping[str, str]) -> None:
        """Record fingerprints unconditionally. Only for an operator's command, after it has compared the data."""
        for name, value in fingerprints.items():
            self._client.update_item(
                TableName=self._table,
                Key=self._key(f"function#{owner}"),
                UpdateExpression="SET #name = :value",
                ExpressionAttributeNames={"#name": name},
                ExpressionAttributeValues=bound(value=value),
            )

    def erase(self, owner: str, name: str) -> None:
        """Erase what a command has recorded, once it is done."""
        self._client.update_item(
            TableName=self._table,
            Key=self._key(f"function#{owner}"),
            UpdateExpression="REMOVE #name",
            ExpressionAttributeNames={"#name": name},
        )
