"""Reports as a client would make them, and a job over them, for tests."""

import uuid
from fractions import Fraction

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from kanon.noise.words import NoiseKey
from kanon.reports.aggregate import Job, NoiseSecrets, aggregate
from kanon.reports.avro import Report, listed, write_domain, write_reports
from kanon.reports.job import PrivacyParameters
from kanon.reports.payload import Contribution, PayloadLayout, encode, seal
from kanon.reports.shared_info import Rules, SharedInfo

NOW = 1_767_225_600
KEY_ID = "5a0c2b1e-93d4-4b61-8c4f-2f8f0e6d7a11"
KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER_KEY = X25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
ORIGIN = "https://report.test"
RULES = Rules(NOW, {KEY_ID: KEY})
SECRETS = NoiseSecrets(NoiseKey("test", bytes(32)), bytes(range(32)))
DECLARED = PrivacyParameters("declared", Fraction(10))
DISCOVER = PrivacyParameters("discover", Fraction(10), Fraction(1, 10**8))
LAYOUT = PayloadLayout(20)


def report_id(number):
    return str(uuid.UUID(int=number + (4 << 76)))


def info(number=1, **changes):
    fields = {
        "api": "attribution-reporting",
        "version": "1.0",
        "report_id": report_id(number),
        "reporting_origin": ORIGIN,
        "scheduled_report_time": NOW - 3600,
        "attribution_destination": "https://shop.test",
        "source_registration_time": NOW - 86_400,
    }
    return SharedInfo(**fields | changes)


def report(contributions=(), number=1, text=None, key=KEY, layout=LAYOUT, **changes):
    """One encrypted report; ``contributions`` are ``(bucket, value[, filtering id])``."""
    text = info(number, **changes).text() if text is None else text
    return sealed(encode([Contribution(*pair) for pair in contributions], layout), text, key)


def sealed(cleartext, text=None, key=KEY):
    """A report with this cleartext and this shared_info."""
    text = info().text() if text is None else text
    return Report(seal(cleartext, key.public_key(), text), KEY_ID, text)


def key16(bucket):
    return bucket.to_bytes(16, "big")


def keys16(*buckets):
    return np.frombuffer(b"".join(map(key16, buckets)), "S16")


def job(folder, *files, domain=None, parameters=None, rules=RULES, **options):
    """A job over lists of reports, each written to a file, with declared buckets or discovery."""
    places = []
    for number, reports in enumerate(files):
        places.append(folder / f"reports-{number}.avro")
        write_reports(places[-1], reports)
    declared = None
    if domain is not None:
        declared = (folder / "domain.avro",)
        write_domain(declared[0], keys16(*domain))
    if parameters is None:
        parameters = DISCOVER if domain is None else DECLARED
    return Job(tuple(places), declared, parameters, rules, **options)


def run(folder, *files, secrets=SECRETS, **options):
    return aggregate(job(folder, *files, **options), secrets, undeclared=True)


def by_bucket(*parts):
    """The number of each key, by its bucket. A part has keys and as many numbers."""
    return {
        int.from_bytes(key, "big"): number
        for keys, numbers in parts
        for key, number in zip(listed(keys), numbers.tolist(), strict=True)
    }


def sums(outcome):
    """The exact sums that noise was added to, by bucket."""
    return by_bucket(*((part.exact.keys, part.exact.sums) for part in outcome.partitions))


def seen(outcome):
    """The exact sums of all keys of the reports, by bucket."""
    return by_bucket(*((part.keys, part.sums) for part in outcome.seen))


def released(outcome):
    """What may be published, by bucket."""
    releases = [part.release() for part in outcome.partitions]
    return by_bucket(*((release.keys, release.metrics) for release in releases))
