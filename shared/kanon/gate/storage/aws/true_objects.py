"""The objects of true sets in the bucket of states, as ``query`` sees them, and those of listed sets, as ``list`` does.

Each of the two may read these and no others.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kanon.errors import UndecodableMembersError
from kanon.gate.listed_sets import ListedSet, decode, name_beside
from kanon.gate.true_sets import TrueSets

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ABSENT = frozenset({"NoSuchKey", "404"})


def read_true(client: "S3Client", bucket: str, name: str) -> TrueSets:
    """An object of true sets.

    Raises:
        UndecodableMembersError: it is missing or damaged.
    """
    return TrueSets.of(name, read_object(client, bucket, name))


def read_listed(client: "S3Client", bucket: str, shows: str) -> Iterator[ListedSet] | None:
    """The listed sets beside the object ``shows``, sorted; None if it does not have all of them.

    Raises:
        UndecodableMembersError: it is missing or damaged.
    """
    return decode(shows, read_object(client, bucket, name_beside(shows)))


def read_object(client: "S3Client", bucket: str, name: str) -> bytes:
    """The bytes of an object.

    Raises:
        UndecodableMembersError: it is missing.
    """
    try:
        return client.get_object(Bucket=bucket, Key=name)["Body"].read()
    except client.exceptions.ClientError as error:
        if error.response["Error"]["Code"] not in ABSENT:
            raise
        raise UndecodableMembersError("an object of true sets, or that beside it, is missing") from error


def step_of(name: str) -> int:
    """The step of an object."""
    return _numbers(name)[0]


def run_of(name: str) -> int:
    """The run that has put an object."""
    return _numbers(name)[1]


def _numbers(name: str) -> tuple[int, int]:
    step, run, _ = name.rpartition("/")[2].split("-", 2)
    return int(step), int(run)
