"""What the templates deploy and the functions of reports do, as far as a bill depends on it.

``kanon cost`` runs without a parser of YAML and without the libraries of reports and of listed types, so these figures
stand here. Others are read from the modules of the gate that decide them.
``tests/unit/cost/test_deployed.py`` compares each of them with the template or the module that decides it.
"""

REQUEST_MB, EVALUATE_MB = 512, 1769
"""Memory of the functions of the gate (``REQUEST_MB``: join, query and sweep), and of ``collect`` and ``rotate``."""
STORE_MB, JOBS_MB, WORKER_MB = 1769, 1769, 3008
"""Memory of the other functions of reports (``WORKER_MB``: decrypt and aggregate)."""
WORKER_SECONDS = 900
"""The timeout of decrypt and aggregate."""

EVALUATE_SECONDS, TEMPORARY_MB = 120, 2048
"""The timeout of evaluate, and the size of its temporary files."""
MOST_READ_UNITS = 20_000
"""``MaxReadUnits``, the units that a table serves a second."""
SEALED_OVERHEAD, SEALED_STEP, LENGTH_BYTES, LISTED_SET_BYTES = 48, 32, 2, 47
"""Of a sealed value: its bytes besides the padded value, the step of the padding, the bytes of a length, and those of a
set in an object of listed sets besides."""
SWEEPS_A_DAY = 1

LISTER_SECRETS = 1
SECRETS, KEYS, DASHBOARDS = 3, 2, 1
METRICS, ALARM_METRICS = 15, 29
"""The metrics of the gate's functions, and the metrics that its alarms read."""
REPORT_METRICS, REPORT_ALARM_METRICS = 19, 35
GATEWAY_SECRETS, GATEWAY_METRICS, GATEWAY_ALARM_METRICS = 2, 2, 3
"""The same of the gateway for relays, and its secrets."""
ISSUER_SECRETS, ISSUER_METRICS, ISSUER_ALARM_METRICS = 2, 3, 5
"""The same of the issuer of credentials; one of its secrets is made before the stack."""
WAF_RULES, URL_RULES, EDGE_SECRETS = 1, 1, 1
"""Parts of the edge: the rules of its web ACL, those with a function URL besides, and a secret."""

DEFAULT_SLOTS, DEFAULT_PARTITIONS = 16, 16
"""The default slots, and partitions per slot."""
PERIODS = (60, 300, 900, 1800, 3600, 7200, 10_800, 14_400, 21_600, 28_800, 43_200, 86_400)
OUTAGE_DAYS = 7
SECONDS_TO_TICK = 1800 - 180 - 60
"""From the schedule to the tick, less the publish margin, by default."""

KEPT_DAYS = 97
"""Days that a report is kept."""
MOST_MESSAGES, MOST_BATCH_BYTES = 10_000, 6_000_000
"""Messages of one batch of ``store``, and their bytes: Lambda's limit of a request."""
SWEEPS_AN_HOUR = 24
"""Runs of the two schedules of reports: each runs every five minutes."""

SHARD_BYTES, MOST_SHARDS = 64 << 20, 1_000
KEYS_A_PART, MOST_KEYS = 1_000_000, 10**7
"""Sizes of a job: of a shard, and of a part of its summary."""
