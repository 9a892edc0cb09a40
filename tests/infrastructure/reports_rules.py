"""The rules for infra/reports.yaml. Each takes the document and yields the violations."""

import json
import re
from typing import Any

from tests.infrastructure import rules, template
from tests.infrastructure.rules import Problems, Rule, function_of
from tests.infrastructure.template import (
    ROOT,
    STATEFUL,
    Document,
    as_list,
    functions,
    of_type,
    properties,
    table_key,
    target,
)

PATH = ROOT / "infra" / "reports.yaml"
FUNCTIONS = ("Collect", "Store", "Jobs", "Decrypt", "Aggregate", "Rotate")
BUCKETS = ("ReportsBucket", "WorkBucket", "SummariesBucket")
RULES: dict[str, Rule] = {
    one.__name__: one
    for one in (
        rules.every_function_has_a_log_group_with_retention,
        rules.every_function_has_a_role_of_its_own,
        rules.roles_have_no_managed_policies,
        rules.roles_trust_one_service,
        rules.no_arn_has_a_fixed_partition,
        rules.schedules_have_no_fixed_names_and_no_flexible_window,
        rules.callers_call_the_alias,
        rules.path_segments_are_legal,
        rules.the_key_belongs_to_the_account_alone,
    )
}
"""By name. These hold for both templates as they are."""

TABLES = {
    "Budgets": [("row", "B", "HASH"), ("part", "S", "RANGE")],
    "ReportJobs": [("job", "S", "HASH"), ("part", "S", "RANGE")],
}

RECEIVE = {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ChangeMessageVisibility"}
ROWS = {f"dynamodb:{call}" for call in ("GetItem", "Query", "PutItem", "UpdateItem", "DeleteItem")}
LOGS = {"logs:CreateLogStream", "logs:PutLogEvents"}
READ_SECRET = {"secretsmanager:GetSecretValue"}
SEND = {"sqs:SendMessage"}
BOTH_WAYS = {"kms:Decrypt", "kms:GenerateDataKey"}

# By role, then resource with the condition on its use: the allowed actions, and no others.
PERMISSIONS: dict[str, dict[str, set[str]]] = {
    "CollectRole": {
        "Arrivals": SEND,
        "Control [reports#keys]": {"dynamodb:GetItem"},
        "EdgeSecret if HasEdge": READ_SECRET,
        "Key via dynamodb, secretsmanager if HasEdge": {"kms:Decrypt"},
        "CollectLogs": LOGS,
    },
    "StoreRole": {
        "Arrivals": RECEIVE,
        "ReportsBucket/reports/*": {"s3:PutObject"},
        "ReportsBucket/events/*": {"s3:PutObject"},
        "Key via s3": {"kms:GenerateDataKey"},
        "StoreLogs": LOGS,
    },
    "JobsRole": {
        "ReportJobs": {"dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:UpdateItem"},
        "Budgets": {"dynamodb:BatchGetItem", "dynamodb:Query"},
        "Control [function#jobs]": {"dynamodb:UpdateItem"},
        "Stages": SEND,
        "ReportsBucket": {"s3:ListBucket"},
        "ReportsBucket/*": {"s3:GetObject"},
        "others if HasReportBuckets": {"s3:ListBucket"},
        "others/* if HasReportBuckets": {"s3:GetObject"},
        "EdgeSecret if HasEdge": READ_SECRET,
        "Key via dynamodb, s3, secretsmanager if HasEdge": {"kms:Decrypt"},
        "JobsLogs": LOGS,
    },
    "DecryptRole": {
        "ReportJobs": ROWS,
        "Control [function#decrypt]": {"dynamodb:UpdateItem"},
        "Maps": RECEIVE,
        "Stages": SEND,
        "ReportsBucket": {"s3:ListBucket"},
        "ReportsBucket/*": {"s3:GetObject"},
        "SummariesBucket": {"s3:ListBucket"},
        "SummariesBucket/*": {"s3:GetObject"},
        "others/* if HasReportBuckets": {"s3:GetObject"},
        "WorkBucket": {"s3:ListBucket"},
        "WorkBucket/*": {"s3:GetObject", "s3:PutObject"},
        "report-keys/*": READ_SECRET,
        "Key via dynamodb, s3, secretsmanager": {"kms:Decrypt"},
        "WorkKey via s3": BOTH_WAYS,
        "DecryptLogs": LOGS,
    },
    "AggregateRole": {
        "ReportJobs": {*ROWS, "dynamodb:ConditionCheckItem", "dynamodb:DescribeTable"},
        "Budgets": {
            *ROWS,
            *("dynamodb:BatchGetItem", "dynamodb:ConditionCheckItem", "dynamodb:DescribeTable"),
        },
        "Control [reports#keys]": {"dynamodb:GetItem"},
        "Control [function#aggregate]": {"dynamodb:UpdateItem"},
        "Stages": SEND | RECEIVE,
        "Maps": SEND,
        "ReportsBucket": {"s3:ListBucket"},
        "SummariesBucket": {"s3:ListBucket"},
        "SummariesBucket/*": {"s3:GetObject", "s3:PutObject"},
        "others if HasReportBuckets": {"s3:ListBucket"},
        "others/* if HasReportBuckets": {"s3:GetObject", "s3:PutObject"},
        "WorkBucket": {"s3:ListBucket"},
        "WorkBucket/*": {"s3:GetObject", "s3:PutObject", "s3:DeleteObject"},
        "ReportNoiseKey": READ_SECRET,
        "Key via dynamodb, s3, secretsmanager": {"kms:Decrypt"},
        "Key via s3": {"kms:GenerateDataKey"},
        "WorkKey via s3": BOTH_WAYS,
        "LostEvents": SEND,
        "AggregateLogs": LOGS,
    },
    "RotateRole": {
        "Control [reports#keys]": {"dynamodb:GetItem", "dynamodb:PutItem"},
        "Budgets [epoch, ZXBvY2g=]": {"dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:ConditionCheckItem"},
        "Budgets": {"dynamodb:DescribeTable"},
        "ReportJobs": {"dynamodb:DescribeTable"},
        "report-keys/*": {f"secretsmanager:{call}" for call in ("CreateSecret", "GetSecretValue", "DeleteSecret")},
        "Key via dynamodb, secretsmanager": BOTH_WAYS,
        "LostEvents": SEND,
        "RotateLogs": LOGS,
    },
    "ScheduleRole": {
        "Aggregate.Alias": {"lambda:InvokeFunction"},
        "Rotate.Alias": {"lambda:InvokeFunction"},
        "LostEvents": SEND,
    },
}

OWN_FUNCTION: Document = {
    "POWERTOOLS_LOG_LEVEL": {"Ref": "LogLevel"},
    "POWERTOOLS_METRICS_NAMESPACE": {"Fn::Sub": "KANON/${Name}"},
}
CONTROL: Document = {"KANON_DEPLOYMENT": {"Ref": "Deployment"}, "KANON_CONTROL_TABLE": {"Ref": "Control"}}
JOBS: Document = {
    **CONTROL,
    "KANON_REPORTS_BUCKET": {"Ref": "ReportsBucket"},
    "KANON_SUMMARIES_BUCKET": {"Ref": "SummariesBucket"},
    "KANON_REPORT_BUCKETS": {"Ref": "ReportBuckets"},
    "KANON_REPORT_JOBS_TABLE": {"Ref": "ReportJobs"},
    "KANON_STAGES_URL": {"Ref": "Stages"},
    "KANON_EPSILON_CAP": {"Ref": "EpsilonCap"},
    "KANON_DELTA_CAP": {"Ref": "DeltaCap"},
}
PREFIX = {"Fn::Sub": "${Name}/report-keys/"}
ENVIRONMENT: dict[str, Document] = {
    "Collect": {
        **CONTROL,
        "KANON_ARRIVALS_URL": {"Ref": "Arrivals"},
        "KANON_ALLOWED_ORIGINS": {"Ref": "AllowedOrigins"},
        "KANON_EDGE_SECRET": {"Ref": "EdgeSecret"},
    },
    "Store": {"KANON_REPORTS_BUCKET": {"Ref": "ReportsBucket"}},
    "Jobs": {**JOBS, "KANON_EDGE_SECRET": {"Ref": "EdgeSecret"}, "KANON_BUDGETS_TABLE": {"Ref": "Budgets"}},
    "Decrypt": {**JOBS, "KANON_WORK_BUCKET": {"Ref": "WorkBucket"}, "KANON_REPORT_KEY_PREFIX": PREFIX},
    "Aggregate": {
        **JOBS,
        "KANON_WORK_BUCKET": {"Ref": "WorkBucket"},
        "KANON_BUDGETS_TABLE": {"Ref": "Budgets"},
        "KANON_MAPS_URL": {"Ref": "Maps"},
        "KANON_REPORT_NOISE_KEY_SECRET": {"Ref": "ReportNoiseKey"},
    },
    "Rotate": {
        **CONTROL,
        "KANON_BUDGETS_TABLE": {"Ref": "Budgets"},
        "KANON_REPORT_JOBS_TABLE": {"Ref": "ReportJobs"},
        "KANON_REPORT_KEY_PREFIX": PREFIX,
        "KANON_KMS_KEY": {"Ref": "KeyArn"},
    },
}
"""The variables of each function by value, beside those of all."""

DAY = 86_400
RETENTION = {"Arrivals": 10 * DAY, "Maps": 4 * DAY, "Stages": 4 * DAY}
"""Seconds a queue keeps a message. Its dead letters are kept for 14 days from when they came to the first queue."""
READERS = {"Arrivals": "Store", "Maps": "Decrypt", "Stages": "Aggregate"}
BATCHES: dict[str, Document] = {
    "Arrivals": {"BatchSize": 10_000, "MaximumBatchingWindowInSeconds": 60, "MaximumConcurrency": 10},
    "Maps": {"BatchSize": 1, "MaximumConcurrency": {"Ref": "MapConcurrency"}},
    "Stages": {"BatchSize": 1, "MaximumConcurrency": {"Ref": "MapConcurrency"}},
}
SCHEDULES = {"SweepSchedule": ("Aggregate", "cron(0/5 * * * ? *)"), "RotateSchedule": ("Rotate", "cron(2/5 * * * ? *)")}
SCHEDULE_RETRIES = {"MaximumRetryAttempts": 2, "MaximumEventAgeInSeconds": 300}

LIFETIMES = {"ReportsBucket": 97, "WorkBucket": 31, "SummariesBucket": None}
"""Days that a bucket keeps an object; a report may be aggregated for 90 days, and a job takes one."""
BLOCKED = dict.fromkeys(("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"), True)

COLLECTED = {
    *("POST /.well-known/attribution-reporting/report-aggregate-attribution",),
    *("POST /.well-known/private-aggregation/report-shared-storage",),
    *("POST /.well-known/private-aggregation/report-protected-audience", "POST /v1/reports"),
    *("POST /.well-known/attribution-reporting/debug/report-aggregate-attribution",),
    *("POST /.well-known/private-aggregation/debug/report-shared-storage",),
    *("POST /.well-known/private-aggregation/debug/report-protected-audience", "POST /v1/debug/reports"),
    *("POST /.well-known/attribution-reporting/report-event-attribution",),
    *("GET /.well-known/aggregation-service/v1/public-keys", "GET /reports/openapi.json"),
}
OF_JOBS = {
    *("POST /v1alpha/createJob", "GET /v1alpha/getJob", "POST /stage/v1alpha/createJob", "GET /stage/v1alpha/getJob"),
    *("POST /v1/jobs:preflight", "POST /v1/jobs:publish", "GET /v1/budget"),
}
ROUTES = dict.fromkeys(COLLECTED, ("Collect", "NONE")) | dict.fromkeys(OF_JOBS, ("Jobs", "AWS_IAM"))
"""Route key: (function, authorization)."""


def read() -> Document:
    """infra/reports.yaml with its intrinsic functions in their long forms; a copy of its own."""
    return template.read(PATH)


def rule(check: Rule) -> Rule:
    """Enter a rule into the list."""
    RULES[check.__name__] = check
    return check


def statements(document: Document, role: str) -> list[tuple[str | None, Any]]:
    """The statements of a role, each with the condition of the template under which it exists."""
    found = [
        statement
        for policy in properties(document, role).get("Policies", [])
        for statement in policy["PolicyDocument"]["Statement"]
    ]
    return [
        (one["Fn::If"][0], one["Fn::If"][1])
        if "Fn::If" in one and one["Fn::If"][2] == {"Ref": "AWS::NoValue"}
        else (None, one)
        for one in found
    ]


def named(resource: Any) -> str:
    """The resource of a statement, in one word; the JSON of an unexpected one."""
    match resource:
        case {"Ref": str(name)}:
            return name.removesuffix("Arn")
        case {"Fn::GetAtt": [name, "Arn"]}:
            return str(name)
        case {"Fn::Sub": str(text)} if found := re.fullmatch(r"\$\{(\w+)\.Arn\}(/[\w/]*\*)", text):
            return f"{found[1]}{found[2]}"
        case {"Fn::Sub": str(text)} if text == SECRETS:
            return "report-keys/*"
        case {"Fn::Split": [",", {"Fn::Join": ["", [first, {"Fn::Join": [between, names]}, *end]]}]} if names == LISTED:
            after = "".join(end)
            return f"others{after}" if (first, between) == (OTHER, f"{after},{OTHER}") else json.dumps(resource)
    return json.dumps(resource)


SECRETS = "arn:${AWS::Partition}:secretsmanager:${AWS::Region}:${AWS::AccountId}:secret:${Name}/report-keys/*"
OTHER = "arn:*:s3:::"
LISTED = {"Fn::Split": [",", {"Ref": "ReportBuckets"}]}


def under(statement: Document) -> str:
    """The condition of a statement, in short; the JSON of anything unexpected."""
    match statement.get("Condition"):
        case None:
            return ""
        case {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": keys, **more}, **rest} if not more and not rest:
            return f" [{', '.join(keys)}]"
        case {"StringEquals": {"kms:ViaService": services, **more}, **rest} if not more and not rest:
            return f" via {', '.join(map(_service, services))}"
        case other:
            return f" if {json.dumps(other)}"


def _service(value: Any) -> str:
    match value:
        case {"Fn::If": [condition, service, {"Ref": "AWS::NoValue"}]}:
            return f"{_service(service)} if {condition}"
        case {"Fn::Sub": str(text)} if text.endswith(".${AWS::Region}.${AWS::URLSuffix}"):
            return text.partition(".")[0]
    return json.dumps(value)


# ------------------------------------------------------------------------------------------------ roles
@rule
def roles_allow_exactly_what_the_design_says(document: Document) -> Problems:
    roles = of_type(document, "AWS::IAM::Role")
    if set(roles) != set(PERMISSIONS):
        yield f"the roles are {', '.join(roles)}"
    for name in set(roles) & set(PERMISSIONS):
        allowed: dict[str, set[str]] = {}
        for condition, statement in statements(document, name):
            if statement["Effect"] != "Allow" or {"NotAction", "NotResource", "Principal"} & set(statement):
                yield f"{name} says what is not allowed instead of what is"
                continue
            for resource in as_list(statement["Resource"]):
                where = f"{named(resource)}{under(statement)}{f' if {condition}' if condition else ''}"
                allowed.setdefault(where, set()).update(as_list(statement["Action"]))
        for where in set(allowed) | set(PERMISSIONS[name]):
            if more := allowed.get(where, set()) - PERMISSIONS[name].get(where, set()):
                yield f"{name} may {', '.join(sorted(more))} on {where}"
            if less := PERMISSIONS[name].get(where, set()) - allowed.get(where, set()):
                yield f"{name} lacks {', '.join(sorted(less))} on {where}"
    for name, resource in document["Resources"].items():
        if resource["Type"] in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy", "AWS::IAM::RolePolicy"):
            yield f"{name} is a policy beside the roles: say it in a role"


@rule
def nobody_sees_sums_and_keys_and_budgets_together(_: Document) -> Problems:
    """A rule for the table of permissions itself."""
    granted = {role: " ".join(where) for role, where in PERMISSIONS.items()}
    seen = {
        "WorkBucket": {"DecryptRole", "AggregateRole"},
        "ReportNoiseKey": {"AggregateRole"},
        "Budgets": {"JobsRole", "AggregateRole", "RotateRole"},
    }
    for what, roles in seen.items():
        if {role for role, where in granted.items() if what in where} != roles:
            yield f"{what} is seen by other roles than {', '.join(sorted(roles))}"
    opens = {role for role, where in PERMISSIONS.items() if READ_SECRET & where.get("report-keys/*", set())}
    if opens != {"DecryptRole", "RotateRole"}:  # rotate reads a key that it made and has not published yet
        yield f"private keys are read by {', '.join(sorted(opens))}"


@rule
def only_the_gateway_may_call_collect_and_jobs(document: Document) -> Problems:
    called = set()
    for name, permission in of_type(document, "AWS::Lambda::Permission").items():
        given = permission["Properties"]
        called.add(function_of(given["FunctionName"]))
        source = {
            "Fn::Sub": "arn:${AWS::Partition}:execute-api:${AWS::Region}:${AWS::AccountId}:${ApiId}/*",
        }
        if given["Principal"] != "apigateway.amazonaws.com" or given.get("SourceArn") != source:
            yield f"{name} lets more than this API call"
        if given.get("SourceAccount") != {"Ref": "AWS::AccountId"}:
            yield f"{name} lets another account call"
    if called != {"Collect", "Jobs"}:
        yield f"the gateway may call {called}"
    for name, function in functions(document).items():
        if "FunctionUrlConfig" in function:
            yield f"{name} has an address of its own"


# ---------------------------------------------------------------------------------------------- storage
@rule
def tables_have_the_keys_of_the_design_and_forget(document: Document) -> Problems:
    tables = of_type(document, "AWS::DynamoDB::Table")
    if set(tables) != set(TABLES):
        yield f"the tables are {', '.join(tables)}"
    limit = {"MaxReadRequestUnits": {"Ref": "MaxReadUnits"}, "MaxWriteRequestUnits": {"Ref": "MaxWriteUnits"}}
    expected = {
        "BillingMode": "PAY_PER_REQUEST",
        "TimeToLiveSpecification": {"AttributeName": "ttl", "Enabled": True},
        "SSESpecification": {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": {"Ref": "KeyArn"}},
        "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": False},
        "ContributorInsightsSpecification": {"Enabled": False},
        "DeletionProtectionEnabled": {"Fn::If": ["IsProtected", True, False]},
        "OnDemandThroughput": limit,
    }
    for name in set(tables) & set(TABLES):
        table = tables[name]["Properties"]
        if (key := table_key(table)) != TABLES[name]:
            yield f"{name} has the key {key}"
        for word, value in expected.items():
            if table.get(word) != value:
                yield f"{name} has the {word} {table.get(word)}"
        if more := set(table) - set(expected) - {"AttributeDefinitions", "KeySchema"}:
            yield f"{name} has {', '.join(sorted(more))}: a copy of its rows that nobody forgets"
    if document["Conditions"].get("IsProtected") != {"Fn::Equals": [{"Ref": "DeletionProtection"}, "ON"]}:
        yield "IsProtected does not say whether the tables are protected"


@rule
def buckets_are_closed_encrypted_and_forget(document: Document) -> Problems:
    buckets = of_type(document, "AWS::S3::Bucket")
    if set(buckets) != set(BUCKETS):
        yield f"the buckets are {', '.join(buckets)}"
    for name in set(buckets) & set(BUCKETS):
        bucket = buckets[name]["Properties"]
        key = {"Fn::GetAtt": ["WorkKey", "Arn"]} if name == "WorkBucket" else {"Ref": "KeyArn"}
        by_key = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}
        rules = [
            {
                "Id": "unfinished-uploads",
                "Status": "Enabled",
                "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
            }
        ]
        if days := LIFETIMES[name]:
            rules.append({"Id": "forget", "Status": "Enabled", "ExpirationInDays": days})
        expected = {
            "PublicAccessBlockConfiguration": BLOCKED,
            "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
            "BucketEncryption": {
                "ServerSideEncryptionConfiguration": [
                    {"BucketKeyEnabled": True, "ServerSideEncryptionByDefault": by_key}
                ]
            },
            "LifecycleConfiguration": {"Rules": rules},
        }
        for word in expected.keys() | bucket.keys():
            if bucket.get(word) != expected.get(word):
                yield f"{name} has the {word} {bucket.get(word)}"


@rule
def buckets_refuse_clear_text_and_the_work_bucket_everybody_else(document: Document) -> Problems:
    policies = {
        target(policy["Properties"]["Bucket"]): policy["Properties"]["PolicyDocument"]["Statement"]
        for policy in of_type(document, "AWS::S3::BucketPolicy").values()
    }
    for name in BUCKETS:
        expected = [
            {
                "Sid": "RefuseClearText",
                "Effect": "Deny",
                "Principal": "*",
                "Action": "s3:*",
                "Resource": [{"Fn::GetAtt": [name, "Arn"]}, {"Fn::Sub": f"${{{name}.Arn}}/*"}],
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            }
        ]
        if name == "WorkBucket":
            roles = [{"Fn::GetAtt": [role, "Arn"]} for role in ("DecryptRole", "AggregateRole")]
            expected.append(
                {
                    "Sid": "RefuseEverybodyElse",
                    "Effect": "Deny",
                    "Principal": "*",
                    "Action": "s3:*",
                    "Resource": {"Fn::Sub": "${WorkBucket.Arn}/*"},
                    "Condition": {"ArnNotEquals": {"aws:PrincipalArn": roles}},
                }
            )
        if policies.get(name) != expected:
            yield f"{name} has the policy {json.dumps(policies.get(name))}"
    if set(policies) != set(BUCKETS):
        yield f"policies are of {policies.keys()}"


@rule
def state_outlives_the_stack_unless_its_creation_fails(document: Document) -> Problems:
    for name, resource in of_type(document, *STATEFUL, "AWS::S3::Bucket").items():
        for word, kept in (("DeletionPolicy", "RetainExceptOnCreate"), ("UpdateReplacePolicy", "Retain")):
            if resource.get(word) != kept:
                yield f"{name} has no {word}: {kept}"
    for name, key in of_type(document, "AWS::KMS::Key").items():
        if key["Properties"].get("EnableKeyRotation") is not True:
            yield f"{name} is not rotated"


@rule
def the_noise_key_is_generated_once(document: Document) -> Problems:
    secrets = of_type(document, "AWS::SecretsManager::Secret")
    if set(secrets) != {"ReportNoiseKey"}:
        yield f"the secrets are {', '.join(secrets)}: rotate makes the others"
    for name, secret in secrets.items():
        if secret["Properties"].get("GenerateSecretString") != rules.GENERATED["NoiseKey"]:
            yield f"{name} would be generated again at the next deployment"
        if secret["Properties"].get("KmsKeyId") != {"Ref": "KeyArn"} or "SecretString" in secret["Properties"]:
            yield f"{name} is not encrypted with the customer key, or stands in the template"


# -------------------------------------------------------------------------------------------- functions
@rule
def functions_are_told_exactly_what_they_need(document: Document) -> Problems:
    if set(functions(document)) != set(ENVIRONMENT):
        yield f"the functions are {', '.join(functions(document))}"
    shared = document["Globals"]["Function"]["Environment"]["Variables"]
    for name in set(functions(document)) & set(ENVIRONMENT):
        given = {**shared, **properties(document, name)["Environment"]["Variables"]}
        needed = {**OWN_FUNCTION, "POWERTOOLS_SERVICE_NAME": name.lower(), **ENVIRONMENT[name]}
        for variable in sorted(given.keys() | needed.keys()):
            if given.get(variable) != needed.get(variable):
                yield f"{name} is told {given.get(variable)} as {variable}, and not {needed.get(variable)}"


@rule
def nothing_traces(document: Document) -> Problems:
    for name, function in functions(document).items():
        if function.get("Tracing") != "PassThrough":
            yield f"{name} may trace: a trace keeps URLs and names of objects"
        if "KmsKeyArn" in function:
            yield f"{name} has a key for its environment that no role may use"


@rule
def a_version_pins_code_layers_and_parameters(document: Document) -> Problems:
    for name, function in functions(document).items():
        if not function.get("AutoPublishAlias") or function.get("AutoPublishAliasAllProperties") is not True:
            yield f"{name} publishes no version when a property changes"
        if function.get("Layers") != [{"Ref": "Shared"}, {"Ref": "ReportsLayer"}]:
            yield f"{name} has the layers {function.get('Layers')}"
        if function.get("VersionDescription") != {"Ref": "ReportsLayer"}:
            yield f"{name} publishes no version when a layer changes"
    match properties(document, "ReportsLayer")["Description"]:
        case {"Fn::Select": [0, [str(), *values]]}:
            hashed = {target(value) for value in values}
        case _:
            yield "ReportsLayer is not named after the values of parameters"
            return
    of_the_stack = {"Deployment", "Name", "Control", "KeyArn"}  # they never change
    known = rules.versioned_parameters(document) - of_the_stack
    if missing := sorted(known - hashed):
        yield f"a change of {', '.join(missing)} alone reaches no version"
    if more := sorted(str(name) for name in hashed - known):
        yield f"a change of {', '.join(more)} publishes versions for nothing"


@rule
def environments_fit_into_4_kb(document: Document) -> Problems:
    parent = template.read()["Parameters"]
    for name in FUNCTIONS:
        size = 0
        for variable, value in properties(document, name)["Environment"]["Variables"].items():
            size += len(variable) + int(parent.get(target(value), {}).get("MaxLength", 170))
        if size > 4096:
            yield f"the environment of {name} may grow to {size} bytes"


# -------------------------------------------------------------------------------------------- messages
@rule
def queues_hide_and_keep_messages_for_long_enough(document: Document) -> Problems:
    queues = of_type(document, "AWS::SQS::Queue")
    if set(queues) != set(READERS) | {f"{name}Dead" for name in READERS}:
        yield f"the queues are {', '.join(queues)}"
        return
    for name, queue in queues.items():
        given = queue["Properties"]
        if given.get("SqsManagedSseEnabled") is not True:
            yield f"{name} is not encrypted"
        kept = given.get("MessageRetentionPeriod")
        if kept != RETENTION.get(name, 14 * DAY):
            yield f"{name} keeps messages for {kept} s"
    for name, reader in READERS.items():
        given = queues[name]["Properties"]
        window = BATCHES[name].get("MaximumBatchingWindowInSeconds", 0)
        if given["VisibilityTimeout"] != 6 * properties(document, reader)["Timeout"] + window:
            yield f"{name} does not hide a message for six times the function's timeout and its window"
        redrive = {"deadLetterTargetArn": {"Fn::GetAtt": [f"{name}Dead", "Arn"]}, "maxReceiveCount": 5}
        if given.get("RedrivePolicy") != redrive:
            yield f"{name} gives up as {given.get('RedrivePolicy')} says"


@rule
def messages_are_taken_as_the_design_says(document: Document) -> Problems:
    mappings = of_type(document, "AWS::Lambda::EventSourceMapping")
    read = {}
    for name, mapping in mappings.items():
        given = dict(mapping["Properties"])
        queue = target(given.pop("EventSourceArn"))
        read[queue] = function_of(given.pop("FunctionName"))
        if given.pop("FunctionResponseTypes", None) != ["ReportBatchItemFailures"]:
            yield f"{name} does not report failures one by one"
        figures = {**given, **given.pop("ScalingConfig", {})}
        figures.pop("ScalingConfig", None)
        if figures != BATCHES.get(str(queue)):
            yield f"{name} takes messages as {figures} says"
    if read != READERS:
        yield f"queues are read by {read}"
    for name in ("Decrypt", "Aggregate"):
        if properties(document, name).get("RecursiveLoop") != "Allow":
            yield f"Lambda would stop {name} in the middle of a job"


@rule
def schedules_and_lost_events_are_those_of_the_design(document: Document) -> Problems:
    found = {}
    for name, schedule in of_type(document, "AWS::Scheduler::Schedule").items():
        given = schedule["Properties"]["Target"]
        found[name] = (function_of(given["Arn"]), schedule["Properties"]["ScheduleExpression"])
        if given.get("DeadLetterConfig") != {"Arn": {"Ref": "LostEventsArn"}}:
            yield f"{name} loses events"
        if given.get("RetryPolicy") != SCHEDULE_RETRIES or json.loads(given["Input"]) != {"schedule": True}:
            yield f"{name} retries or says something else"
    if found != SCHEDULES:
        yield f"the schedules are {found}"
    kept = set()
    for name, config in of_type(document, "AWS::Lambda::EventInvokeConfig").items():
        given = config["Properties"]
        kept.add(target(given["FunctionName"]))
        if given.get("Qualifier") != document["Globals"]["Function"]["AutoPublishAlias"]:
            yield f"{name} is not for the version that the schedule calls"
        if given.get("DestinationConfig") != {"OnFailure": {"Destination": {"Ref": "LostEventsArn"}}}:
            yield f"{name} loses events"
        if {word: given.get(word) for word in rules.INVOKE_RETRIES} != rules.INVOKE_RETRIES:
            yield f"{name} retries otherwise"
    if kept != {"Aggregate", "Rotate"}:
        yield f"failed events are kept of {kept}"


# ------------------------------------------------------------------------------------------------- HTTP
@rule
def routes_ask_for_the_authorization_of_the_design(document: Document) -> Problems:
    integrations = {
        name: function_of(one["Properties"]["IntegrationUri"])
        for name, one in of_type(document, "AWS::ApiGatewayV2::Integration").items()
    }
    found = {}
    for route in of_type(document, "AWS::ApiGatewayV2::Route").values():
        given = route["Properties"]
        name = str(given["Target"]["Fn::Sub"]).removeprefix("integrations/${").removesuffix("}")
        found[given["RouteKey"]] = (integrations.get(name), given.get("AuthorizationType"))
        if given["ApiId"] != {"Ref": "ApiId"}:
            yield f"{given['RouteKey']} is a route of another API"
    for key in set(found) | set(ROUTES):
        if found.get(key) != ROUTES.get(key):
            yield f"{key} is {found.get(key)}"
    for name in ("Collect", "Jobs"):
        timeout = properties(document, name)["Timeout"]
        if not timeout * 1000 < properties(document, f"{name}Integration")["TimeoutInMillis"] <= 30_000:
            yield f"the gateway gives up before {name} does"


@rule
def names_are_left_to_cloudformation(document: Document) -> Problems:
    fixed = ("TableName", "QueueName", "FunctionName", "RoleName", "LayerName", "AliasName", "BucketName")
    for name, resource in document["Resources"].items():
        given = resource.get("Properties", {})
        for word in fixed:
            if word in given and not isinstance(given[word], dict):
                yield f"{name} has a fixed {word}"
        if resource["Type"] == "AWS::SecretsManager::Secret" and "Name" in given:
            yield f"{name} has a fixed name: a retained secret would block the next stack"
        if resource["Type"] == "AWS::Logs::LogGroup":
            function = name.removesuffix("Logs").lower()
            if given.get("LogGroupName") != {"Fn::Sub": f"/kanon/${{Name}}/{function}"}:
                yield f"{name} does not carry the name of the stack"
