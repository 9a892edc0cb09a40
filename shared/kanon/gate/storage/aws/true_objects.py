"""The objects of true sets in the bucket of states, as ``query`` sees them: it may read these and no others."""

from typing import TYPE_CHECKING

from kanon.errors import UndecodableMembersError
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
        raise UndecodableMembersError("an object of true sets is missing") from error
