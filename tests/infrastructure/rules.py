"""The rules for template.yaml. Each takes the document and yields the violations."""

import json
import re
from collections.abc import Callable, Iterator

from tests.infrastructure.template import (
    FUNCTIONS,
    STATEFUL,
    Document,
    as_list,
    environment,
    functions,
    of_type,
    parameter,
    properties,
    statements,
    strings,
    table_key,
    target,
)

MOST_HASHES = 1_000
Problems = Iterator[str]
Rule = Callable[[Document], Problems]
RULES: dict[str, Rule] = {}

TABLES = {
    "StepLog": [("step_slot", "B", "HASH"), ("set_token", "B", "RANGE")],
    "Members": [("set_key", "B", "HASH")],
    "Statuses": [("set_key", "B", "HASH")],
    "Control": [("name", "S", "HASH")],
}
EXPIRING = ("StepLog", "Members", "Statuses")

# By role, then resource: the allowed actions, and no others.
PERMISSIONS = {
    "JoinRole": {
        "StepLog": {"dynamodb:PutItem", "dynamodb:BatchWriteItem"},
        "Control": {"dynamodb:UpdateItem"},
        "SetPepper": {"secretsmanager:GetSecretValue"},
        "ClientKey": {"secretsmanager:GetSecretValue"},
        "EdgeSecret if HasEdge": {"secretsmanager:GetSecretValue"},
        "Key": {"kms:Decrypt"},
        "JoinLogs": {"logs:CreateLogStream", "logs:PutLogEvents"},
    },
    "QueryRole": {
        "Statuses": {"dynamodb:BatchGetItem"},
        "Control": {"dynamodb:UpdateItem"},
        "SetPepper": {"secretsmanager:GetSecretValue"},
        "EdgeSecret if HasEdge": {"secretsmanager:GetSecretValue"},
        "Key": {"kms:Decrypt"},
        "QueryLogs": {"logs:CreateLogStream", "logs:PutLogEvents"},
    },
    "EvaluateRole": {
        "StepLog": {"dynamodb:Query", "dynamodb:BatchWriteItem", "dynamodb:DescribeTable"},
        "Members": {
            *("dynamodb:BatchGetItem", "dynamodb:PutItem", "dynamodb:PartiQLInsert", "dynamodb:PartiQLUpdate"),
            "dynamodb:DescribeTable",
        },
        "Statuses": {"dynamodb:UpdateItem", "dynamodb:DescribeTable"},
        "Control": {"dynamodb:GetItem", "dynamodb:UpdateItem", "dynamodb:DescribeTable"},
        "NoiseKey": {"secretsmanager:GetSecretValue"},
        "Key": {"kms:Decrypt"},
        "Queue": {
            "sqs:SendMessage",
            "sqs:ReceiveMessage",
            "sqs:DeleteMessage",
            "sqs:GetQueueAttributes",
            "sqs:ChangeMessageVisibility",
        },
        "LostEvents": {"sqs:SendMessage"},
        "EvaluateLogs": {"logs:CreateLogStream", "logs:PutLogEvents"},
    },
    "ScheduleRole": {
        "Evaluate.Alias": {"lambda:InvokeFunction"},
        "LostEvents": {"sqs:SendMessage"},
    },
    "CanaryRole": {
        **{
            alias: {"lambda:GetAlias", "lambda:UpdateAlias", "lambda:GetProvisionedConcurrencyConfig"}
            for alias in ("Join", "Query", '{"Fn::Sub": "${Join.Arn}:live"}', '{"Fn::Sub": "${Query.Arn}:live"}')
        },
        '"*"': {"cloudwatch:DescribeAlarms"},
    },
}
ON_NO_RESOURCE = {"Sid": "WatchAlarms", "Effect": "Allow", "Action": "cloudwatch:DescribeAlarms", "Resource": "*"}
"""The one statement without a resource: the action knows no single alarm, and alarms tell nothing about a set."""
TRUSTED = {"ScheduleRole": "scheduler", "CanaryRole": "codedeploy"}
"""The service that takes a role, if it is not Lambda."""

EVERY_FUNCTION: Document = {
    "KANON_TYPES": {"Ref": "Types"},
    "KANON_PERIOD": {"Ref": "Period"},
    "KANON_SLOTS": {"Ref": "Slots"},
    "KANON_DEPLOYMENT": {"Ref": "AWS::StackId"},
    "KANON_CONTROL_TABLE": {"Ref": "Control"},
    "POWERTOOLS_LOG_LEVEL": {"Ref": "LogLevel"},
    "POWERTOOLS_METRICS_NAMESPACE": {"Fn::Sub": "KANON/${AWS::StackName}"},
}
ENVIRONMENT: dict[str, Document] = {
    "Join": {
        **EVERY_FUNCTION,
        "POWERTOOLS_SERVICE_NAME": "join",
        "KANON_STEP_LOG_TABLE": {"Ref": "StepLog"},
        "KANON_SET_PEPPER_SECRET": {"Ref": "SetPepper"},
        "KANON_CLIENT_KEY_SECRET": {"Ref": "ClientKey"},
        "KANON_OUTAGE_ALLOWANCE": {"Ref": "OutageAllowance"},
        "KANON_EDGE_SECRET": {"Fn::If": ["HasEdge", {"Ref": "EdgeSecret"}, ""]},
    },
    "Evaluate": {
        **EVERY_FUNCTION,
        "POWERTOOLS_SERVICE_NAME": "evaluate",
        "KANON_STEP_LOG_TABLE": {"Ref": "StepLog"},
        "KANON_MEMBERS_TABLE": {"Ref": "Members"},
        "KANON_STATUSES_TABLE": {"Ref": "Statuses"},
        "KANON_NOISE_KEY_SECRET": {"Ref": "NoiseKey"},
        "KANON_NOISE_KEYS": {"Ref": "NoiseKeys"},
        "KANON_LOG_GENERATIONS": {"Ref": "LogGenerations"},
        "KANON_QUEUE_URL": {"Ref": "Queue"},
        "KANON_OUTAGE_ALLOWANCE": {"Ref": "OutageAllowance"},
        "KANON_GRACE": {"Ref": "Grace"},
        "KANON_LEASE": {"Ref": "Lease"},
        "KANON_PUBLISH_DELAY": {"Ref": "PublishDelay"},
        "KANON_PUBLISH_MARGIN": {"Ref": "PublishMargin"},
    },
    "Query": {
        **EVERY_FUNCTION,
        "POWERTOOLS_SERVICE_NAME": "query",
        "KANON_STATUSES_TABLE": {"Ref": "Statuses"},
        "KANON_SET_PEPPER_SECRET": {"Ref": "SetPepper"},
        "KANON_PUBLISH_DELAY": {"Ref": "PublishDelay"},
        "KANON_ANONYMOUS_HASHES": {"Ref": "AnonymousHashes"},
        "KANON_EDGE_SECRET": {"Fn::If": ["HasEdge", {"Ref": "EdgeSecret"}, ""]},
    },
}
"""The variables of each function, by value: the wrong parameter under the right name is a wrong clock or key."""

RETENTION = {"Queue": 4 * 86_400, "DeadLetters": 14 * 86_400, "LostEvents": 14 * 86_400}
"""Seconds a queue keeps a message. A dead letter's age counts from its first queue: it must have days left there."""
SCHEDULE_RETRIES = {"MaximumRetryAttempts": 10, "MaximumEventAgeInSeconds": 1800}
INVOKE_RETRIES = {"MaximumRetryAttempts": 2, "MaximumEventAgeInSeconds": 1800}
"""Half an hour of attempts: after that the event goes to the lost events, where an alarm sees it."""

KEY_STATEMENT = {
    "Sid": "AccountDecidesByIdentityPolicies",
    "Effect": "Allow",
    "Principal": {"AWS": {"Fn::Sub": "arn:${AWS::Partition}:iam::${AWS::AccountId}:root"}},
    "Action": "kms:*",
    "Resource": "*",
}
"""The only statement of the key's policy: no other account, no service and nobody without a role's permission."""

# Route key: (integration, authorization). "join" stands for the parameter JoinAuth, "batch" for BatchAuth.
ROUTES = {
    "POST /v1/types/{type}/sets/{set}": ("JoinIntegration", "join"),
    "POST /v1:batchJoin": ("JoinIntegration", "batch"),
    "POST /v1:batchQuery": ("QueryIntegration", "batch"),
    "GET /v1/types/{type}/sets/{set}": ("QueryIntegration", "NONE"),
    "POST /v1:query": ("QueryIntegration", "NONE"),
    "POST /v1:validateHashes": ("QueryIntegration", "NONE"),
    "GET /v1/types": ("QueryIntegration", "NONE"),
    "GET /v1/types/{type}": ("QueryIntegration", "NONE"),
    "GET /openapi.json": ("QueryIntegration", "NONE"),
    "GET /docs": ("QueryIntegration", "NONE"),
}
BY_TOKEN = {
    "join": {"Fn::If": ["JoinsOpen", "NONE", {"Fn::If": ["JoinsByToken", "JWT", "AWS_IAM"]}]},
    "batch": {"Fn::If": ["BatchesByToken", "JWT", "AWS_IAM"]},
}
AUTHORIZER = {
    "join": {"Fn::If": ["JoinsByToken", {"Ref": "Tokens"}, {"Ref": "AWS::NoValue"}]},
    "batch": {"Fn::If": ["BatchesByToken", {"Ref": "Tokens"}, {"Ref": "AWS::NoValue"}]},
}
ACCESS = {
    "JoinsOpen": {"Fn::Equals": [{"Ref": "JoinAuth"}, "OPEN"]},
    "JoinsByToken": {"Fn::Equals": [{"Ref": "JoinAuth"}, "JWT"]},
    "BatchesByToken": {"Fn::Equals": [{"Ref": "BatchAuth"}, "JWT"]},
}
QUOTAS = {
    "POST /v1:query": "AnonymousRate",
    "POST /v1:validateHashes": "AnonymousRate",
    "POST /v1:batchQuery": "BatchQueryRate",
}
"""The routes with a rate of their own: what a caller without a signature can use up, others do not need."""
UNITS_OF_A_HASH = 0.5
"""Read units of one status, read eventually consistent."""
SEGMENT = re.compile(r"\{[\w.:-]+\+?\}|[a-zA-Z0-9.:_-]+")

# The allowed fields of an access log: none of a path, a query, a header, a body or a caller.
LOGGED = {
    "$context.requestId",
    "$context.requestTime",
    "$context.routeKey",
    "$context.status",
    "$context.integrationStatus",
    "$context.responseLatency",
    "$context.responseLength",
}

DEFAULT_QUOTA = 40_000
"""Units a second that AWS allows an on-demand table of a new account, for reads and for writes."""
WARM = {"WarmReadUnits": 12_000, "WarmWriteUnits": 4_000}
"""What a new table serves at once."""

CLOCK_SKEW = 10
"""Seconds by which two of AWS's clocks may differ, generously."""
SCHEDULE_OFFSET = 180
"""Seconds after the end of a step at which the schedule fires."""

CANARY_METRICS = {
    "Join": {"Errors", "JoinsAccepted", "JoinsRefused"},
    "Query": {"Errors", "QueriesAnswered", "QueriesRefused"},
}

# A change of GenerateSecretString makes CloudFormation generate another value at the next deployment, and every
# function refuses a changed key: these may never change.
GENERATED = {
    "SetPepper": {"PasswordLength": 64, "ExcludePunctuation": True},
    "ClientKey": {"PasswordLength": 64, "ExcludePunctuation": True},
    "NoiseKey": {
        "SecretStringTemplate": "{}",
        "GenerateStringKey": "1",
        "PasswordLength": 64,
        "ExcludePunctuation": True,
    },
    "EdgeSecret": {
        "SecretStringTemplate": "{}",
        "GenerateStringKey": "current",
        "PasswordLength": 64,
        "ExcludePunctuation": True,
    },
}


def rule(check: Rule) -> Rule:
    """Enter a rule into the list."""
    RULES[check.__name__] = check
    return check


# ------------------------------------------------------------------------------------------------ logs
@rule
def every_function_has_a_log_group_with_retention(document: Document) -> Problems:
    groups = of_type(document, "AWS::Logs::LogGroup")
    for name, function in functions(document).items():
        logging = dict(function.get("LoggingConfig", {}))
        if target(logging.pop("LogGroup", None)) not in groups:
            yield f"{name} has no log group of its own in LoggingConfig"
        if logging != {"LogFormat": "JSON", "ApplicationLogLevel": "INFO", "SystemLogLevel": "WARN"}:
            yield f"{name} pays for platform lines of every call, or loses its metrics"
    for name, group in groups.items():
        if group["Properties"].get("RetentionInDays") != {"Ref": "LogRetention"}:
            yield f"{name} does not keep its logs for LogRetention days"


@rule
def access_logs_tell_no_path_and_no_caller(document: Document) -> Problems:
    for name, stage in of_type(document, "AWS::ApiGatewayV2::Stage").items():
        settings = stage["Properties"].get("AccessLogSettings", {})
        if not settings:
            yield f"{name} has no access log"
            continue
        logged = set(re.findall(r"\$context[\w.]*", settings["Format"]))
        if logged - LOGGED:
            yield f"{name} logs {', '.join(sorted(logged - LOGGED))}"
        try:
            json.loads(settings["Format"])
        except ValueError:
            yield f"{name} writes lines that are not JSON"


@rule
def nothing_traces_or_logs_requests(document: Document) -> Problems:
    for name, function in functions(document).items():
        if function.get("Tracing") != "PassThrough":
            yield f"{name} may trace: a trace keeps URLs"
        if "KmsKeyArn" in function:
            yield f"{name} has a key for its environment that no role may use"
    for name in FUNCTIONS:
        for variable in environment(document, name):
            if re.search("LOG_EVENT|DEBUG|TRACE", variable):
                yield f"{name} sets {variable}"
    levels = set(parameter(document, "LogLevel")["AllowedValues"])
    if levels - {"INFO", "WARNING", "ERROR"}:
        yield "LogLevel offers a level that logs requests"
    for name, stage in of_type(document, "AWS::ApiGatewayV2::Stage").items():
        if "LoggingLevel" in json.dumps(stage) or "DataTraceEnabled" in json.dumps(stage):
            yield f"{name} logs executions"


# ----------------------------------------------------------------------------------------- asynchronous
@rule
def every_asynchronous_edge_has_a_dead_letter_queue(document: Document) -> Problems:
    queues = of_type(document, "AWS::SQS::Queue")
    dead = {
        target(queue["Properties"]["RedrivePolicy"]["deadLetterTargetArn"])
        for queue in queues.values()
        if "RedrivePolicy" in queue["Properties"]
    }
    read = {
        target(mapping["Properties"]["EventSourceArn"])
        for mapping in of_type(document, "AWS::Lambda::EventSourceMapping").values()
    }
    ends = {name for name in queues if name not in read and "RedrivePolicy" not in queues[name]["Properties"]}
    lost = ends - dead  # for events that were not queue messages, which cannot be redriven
    used: set[str | None] = set()
    for name in set(queues) - ends:
        if "RedrivePolicy" not in queues[name]["Properties"]:
            yield f"{name} has no dead-letter queue"
    if dead - set(queues):
        yield "a RedrivePolicy names no queue of the template"
    for name, mapping in of_type(document, "AWS::Lambda::EventSourceMapping").items():
        source = target(mapping["Properties"]["EventSourceArn"])
        if source not in queues or source in dead:
            yield f"{name} does not read a queue with a dead-letter queue"
        if mapping["Properties"].get("FunctionResponseTypes") != ["ReportBatchItemFailures"]:
            yield f"{name} does not report failures one by one"
    invoked = set()
    for name, schedule in of_type(document, "AWS::Scheduler::Schedule").items():
        goal = schedule["Properties"]["Target"]
        invoked.add(function_of(goal["Arn"]))
        if target(goal.get("DeadLetterConfig", {}).get("Arn")) not in lost:
            yield f"{name} has no queue of its own for lost events"
        used.add(target(goal.get("DeadLetterConfig", {}).get("Arn")))
        if "RetryPolicy" not in goal:
            yield f"{name} has no retry policy"
    kept = set()
    for config in of_type(document, "AWS::Lambda::EventInvokeConfig").values():
        failed = config["Properties"].get("DestinationConfig", {}).get("OnFailure", {})
        if target(failed.get("Destination")) in lost:
            used.add(target(failed["Destination"]))
            kept.add(function_of(config["Properties"]["FunctionName"]))
    for name in sorted(str(name) for name in invoked - kept):
        yield f"{name} is called asynchronously and has no failure destination"
    for name in sorted(lost - used):
        yield f"{name} is read by nobody and receives nothing"
    for name, resource in document["Resources"].items():
        if resource["Type"] == "AWS::Serverless::Function" and "Events" in resource["Properties"]:
            yield f"{name} has events of its own: make them resources, so that these rules see them"


@rule
def queues_keep_messages_for_days(document: Document) -> Problems:
    queues = of_type(document, "AWS::SQS::Queue")
    for name in sorted(set(queues) | set(RETENTION)):
        kept = queues.get(name, {}).get("Properties", {}).get("MessageRetentionPeriod")
        if kept != RETENTION.get(name):
            yield f"{name} keeps messages for {kept} s, and not {RETENTION.get(name)}"


@rule
def retries_are_those_of_the_design(document: Document) -> Problems:
    for name, schedule in of_type(document, "AWS::Scheduler::Schedule").items():
        given = schedule["Properties"]["Target"].get("RetryPolicy")
        if given != SCHEDULE_RETRIES:
            yield f"{name} retries as {given} says"
    for name, config in of_type(document, "AWS::Lambda::EventInvokeConfig").items():
        given = {word: config["Properties"].get(word) for word in INVOKE_RETRIES}
        if given != INVOKE_RETRIES:
            yield f"{name} retries as {given} says"
        if config["Properties"].get("Qualifier") != document["Globals"]["Function"]["AutoPublishAlias"]:
            yield f"{name} is not for the version that the schedule calls"


@rule
def schedules_have_no_fixed_names_and_no_flexible_window(document: Document) -> Problems:
    for name, schedule in of_type(document, "AWS::Scheduler::Schedule").items():
        if "Name" in schedule["Properties"]:
            yield f"{name} has a fixed name: a second stack could not be deployed"
        if schedule["Properties"]["FlexibleTimeWindow"] != {"Mode": "OFF"}:
            yield f"{name} has a flexible window: evaluation would miss its tick"
        if schedule["Properties"].get("ScheduleExpressionTimezone") != "UTC":
            yield f"{name} is not in UTC: steps are"


@rule
def names_are_left_to_cloudformation(document: Document) -> Problems:
    fixed = ("TableName", "QueueName", "FunctionName", "RoleName", "LayerName", "AliasName")
    for name, resource in document["Resources"].items():
        given = resource.get("Properties", {})
        for word in fixed:
            if word in given and not isinstance(given[word], dict):
                yield f"{name} has a fixed {word}"
        if resource["Type"] == "AWS::SecretsManager::Secret" and "Name" in given:
            yield f"{name} has a fixed name: a retained secret would block the next stack"
        if resource["Type"] == "AWS::Logs::LogGroup" and not any(
            "${AWS::StackName}" in text for text in strings(given.get("LogGroupName", {}))
        ):
            yield f"{name} does not carry the name of the stack"


@rule
def no_arn_has_a_fixed_partition(document: Document) -> Problems:
    for text in strings(document):
        if re.search(r"arn:aws[a-z-]*:", text):
            yield f"{text} exists in one partition: use ${{AWS::Partition}}"


# ------------------------------------------------------------------------------------------------ roles
@rule
def every_function_has_a_role_of_its_own(document: Document) -> Problems:
    roles = [target(function.get("Role")) for function in functions(document).values()]
    for name, function in functions(document).items():
        role = target(function.get("Role"))
        if role not in of_type(document, "AWS::IAM::Role") or roles.count(role) > 1:
            yield f"{name} has no explicit role of its own"
        for word in ("Policies", "Connectors", "ManagedPolicyArns"):
            if word in function:
                yield f"{name} has {word}: say it in its role"
    for name, resource in document["Resources"].items():
        if resource["Type"] == "AWS::Serverless::Connector" or "Connectors" in resource:
            yield f"{name} is a connector: say it in a role"
        if resource["Type"] in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy", "AWS::IAM::RolePolicy"):
            yield f"{name} is a policy beside the roles: say it in a role"


@rule
def roles_have_no_managed_policies(document: Document) -> Problems:
    for name, role in of_type(document, "AWS::IAM::Role").items():
        if role["Properties"].get("ManagedPolicyArns"):
            yield f"{name} has managed policies"


@rule
def roles_have_no_wildcards(document: Document) -> Problems:
    for name, role in of_type(document, "AWS::IAM::Role").items():
        for statement in statements(role):
            if statement == ON_NO_RESOURCE:
                continue
            if {"NotAction", "NotResource", "Principal", "NotPrincipal"} & set(statement):
                yield f"{name} says what is not allowed instead of what is"
            for text in strings(statement):
                if "*" in text or "?" in text:
                    yield f"{name} has the wildcard {text!r}"
        trusted = role["Properties"]["AssumeRolePolicyDocument"]
        if any("*" in text for text in strings(trusted)):
            yield f"{name} trusts a wildcard"


@rule
def roles_allow_exactly_what_the_design_says(document: Document) -> Problems:
    roles = of_type(document, "AWS::IAM::Role")
    if set(roles) != set(PERMISSIONS):
        yield f"the roles are {', '.join(roles)}"
    for name in set(roles) & set(PERMISSIONS):
        allowed: dict[str, set[str]] = {}
        for statement in statements(roles[name]):
            if statement["Effect"] != "Allow":
                yield f"{name} denies: allow less instead"
            for resource in as_list(statement["Resource"]):
                where = target(resource) or conditional(resource) or json.dumps(resource)
                allowed.setdefault(where, set()).update(as_list(statement["Action"]))
        for where in set(allowed) | set(PERMISSIONS[name]):
            more = allowed.get(where, set()) - PERMISSIONS[name].get(where, set())
            less = PERMISSIONS[name].get(where, set()) - allowed.get(where, set())
            if more:
                yield f"{name} may {', '.join(sorted(more))} on {where}"
            if less:
                yield f"{name} lacks {', '.join(sorted(less))} on {where}"


def conditional(resource: object) -> str | None:
    """The resource that a statement names under a condition only."""
    match resource:
        case {"Fn::If": [condition, {"Ref": name}, {"Ref": "AWS::NoValue"}]}:
            return f"{name} if {condition}"
    return None


@rule
def join_and_query_touch_their_own_control_item_only(document: Document) -> Problems:
    for name, own in (("JoinRole", "function#join"), ("QueryRole", "function#query")):
        for statement in statements(document["Resources"][name]):
            if "Control" in [target(resource) for resource in as_list(statement["Resource"])]:
                expected = {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [own]}}
                if statement.get("Condition") != expected:
                    yield f"{name} may touch another item of Control than {own}"


@rule
def the_key_is_used_through_services_only(document: Document) -> Problems:
    for name, role in of_type(document, "AWS::IAM::Role").items():
        for statement in statements(role):
            if not any(action.startswith("kms:") for action in as_list(statement["Action"])):
                continue
            via = statement.get("Condition", {}).get("StringEquals", {}).get("kms:ViaService", [])
            services = {text.split(".")[0] for text in strings(via)}
            if not services or services - {"dynamodb", "secretsmanager"}:
                yield f"{name} may use the key by itself"


@rule
def roles_trust_one_service(document: Document) -> Problems:
    for name, role in of_type(document, "AWS::IAM::Role").items():
        (statement,) = role["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        service = TRUSTED.get(name, "lambda")
        if statement["Principal"] != {"Service": f"{service}.amazonaws.com"}:
            yield f"{name} trusts {statement['Principal']}"
        equal = statement.get("Condition", {}).get("StringEquals", {})
        if service == "scheduler" and set(equal) != {"aws:SourceAccount", "aws:SourceArn"}:
            yield f"{name} can be taken by schedules of other accounts"


@rule
def only_the_gateway_may_call_functions(document: Document) -> Problems:
    for name, permission in of_type(document, "AWS::Lambda::Permission").items():
        given = permission["Properties"]
        if given["Principal"] != "apigateway.amazonaws.com" or not {"SourceArn", "SourceAccount"} <= set(given):
            yield f"{name} lets more than this API call"
        if function_of(given["FunctionName"]) == "Evaluate":
            yield f"{name} gives evaluate a public entrance"
    for name, function in functions(document).items():
        if "FunctionUrlConfig" in function:
            yield f"{name} has an address of its own"


# ------------------------------------------------------------------------------------------ deployments
def function_of(value: object) -> str | None:
    """The function whose name, ARN or alias a value is."""
    name = target(value)
    return None if name is None else name.removesuffix(".Alias")


@rule
def callers_call_the_alias(document: Document) -> Problems:
    callers = {
        **{
            n: r["Properties"]["IntegrationUri"] for n, r in of_type(document, "AWS::ApiGatewayV2::Integration").items()
        },
        **{n: r["Properties"]["FunctionName"] for n, r in of_type(document, "AWS::Lambda::Permission").items()},
        **{n: r["Properties"]["FunctionName"] for n, r in of_type(document, "AWS::Lambda::EventSourceMapping").items()},
        **{n: r["Properties"]["Target"]["Arn"] for n, r in of_type(document, "AWS::Scheduler::Schedule").items()},
    }
    for name, called in callers.items():
        if not str(target(called)).endswith(".Alias"):
            yield f"{name} calls the unpublished version: code, layer and variables change there one after the other"
    for name in of_type(document, "AWS::Lambda::Alias", "AWS::Lambda::Version"):
        yield f"{name} stands beside what SAM publishes"


@rule
def a_version_pins_code_layer_and_parameters(document: Document) -> Problems:
    layers = of_type(document, "AWS::Serverless::LayerVersion")
    for name, function in functions(document).items():
        if not function.get("AutoPublishAlias") or function.get("AutoPublishAliasAllProperties") is not True:
            yield f"{name} publishes no version when a property changes"
        if function.get("Layers") != [{"Ref": "Shared"}] or function.get("VersionDescription") != {"Ref": "Shared"}:
            yield f"{name} publishes no version when the layer changes"
    description = layers["Shared"]["Properties"]["Description"]
    match description:
        case {"Fn::Select": [0, [str(), *values]]}:
            hashed = {target(value) for value in values}
        case _:
            yield "Shared is not named after the values of parameters"
            return
    if missing := sorted(versioned_parameters(document) - hashed):
        yield f"a change of {', '.join(missing)} alone reaches no version"


def versioned_parameters(document: Document) -> set[str]:
    """The parameters on which a published version depends, also by way of a condition."""
    unversioned = {"DeploymentPreference", "ReservedConcurrentExecutions"}
    nodes: list[object] = [document["Globals"]["Function"]]
    nodes += [
        {word: value for word, value in function.items() if word not in unversioned}
        for function in functions(document).values()
    ]
    found: set[str] = set()
    while nodes:
        node = nodes.pop()
        if isinstance(node, list):
            nodes += node
        elif isinstance(node, dict):
            nodes += node.values()
            if "Fn::If" in node:
                nodes.append(document["Conditions"][node["Fn::If"][0]])
            if "Condition" in node and isinstance(node["Condition"], str):
                nodes.append(document["Conditions"][node["Condition"]])
            if "Fn::Sub" in node:
                found |= set(re.findall(r"\$\{(\w+)\}", str(node["Fn::Sub"]))) & set(document["Parameters"])
            if node.get("Ref") in document["Parameters"]:
                found.add(str(node["Ref"]))
    return found


@rule
def evaluate_switches_whole_and_first(document: Document) -> Problems:
    if "DeploymentPreference" in properties(document, "Evaluate"):
        yield "two versions of evaluate may work on one slot in turns"
    alias = f"Evaluate{'Alias'}{document['Globals']['Function']['AutoPublishAlias']}"
    for name in ("Join", "Query"):
        if document["Resources"][name].get("DependsOn") != alias:
            yield f"{name} may write rows that the running evaluate cannot read"
    if "DependsOn" in document["Resources"]["Evaluate"]:
        yield "Evaluate waits for another resource"


@rule
def join_and_query_switch_in_parts_and_back(document: Document) -> Problems:
    for name in ("Join", "Query"):
        alarm = {"Fn::If": ["HasCanary", [{"Ref": f"{name}Failing"}], [{"Ref": "AWS::NoValue"}]]}
        role = {"Fn::If": ["HasCanary", {"Fn::GetAtt": ["CanaryRole", "Arn"]}, {"Ref": "AWS::NoValue"}]}
        expected = {
            "Enabled": {"Fn::FindInMap": ["Canaries", {"Ref": "Canary"}, "Enabled"]},
            "Type": {"Ref": "Canary"},
            "Role": role,
            "Alarms": alarm,
        }
        if (given := properties(document, name).get("DeploymentPreference")) != expected:
            yield f"{name} switches as {given} says"
        watched = properties(document, f"{name}Failing")
        seen = {m["MetricStat"]["Metric"]["MetricName"] for m in watched["Metrics"] if "MetricStat" in m}
        if seen != CANARY_METRICS[name]:
            yield f"{name}Failing looks at {', '.join(sorted(seen))}"
        live = {"Name": "Resource", "Value": {"Fn::Sub": "${" + name + "}:live"}}
        if live not in [
            d for m in watched["Metrics"] if "MetricStat" in m for d in m["MetricStat"]["Metric"]["Dimensions"]
        ]:
            yield f"{name}Failing does not look at the alias"
        if (watched["Threshold"], watched["EvaluationPeriods"], watched["TreatMissingData"]) != (1, 1, "notBreaching"):
            yield f"{name}Failing takes a failing version back late, or a sound one"
    canaries = {name: entry["Enabled"] for name, entry in document["Mappings"]["Canaries"].items()}
    offered = parameter(document, "Canary")["AllowedValues"]
    if canaries != {name: "false" if name == "AllAtOnce" else "true" for name in offered}:
        yield f"the canaries are {canaries}"
    if document["Conditions"]["HasCanary"] != {"Fn::Not": [{"Fn::Equals": [{"Ref": "Canary"}, "AllAtOnce"]}]}:
        yield "HasCanary does not say whether there is one"
    if parameter(document, "Canary")["Default"] == "AllAtOnce":
        yield "without a choice, a failing version gets all calls"


# ---------------------------------------------------------------------------------------------- storage
@rule
def tables_have_the_keys_of_the_design(document: Document) -> Problems:
    tables = of_type(document, "AWS::DynamoDB::Table")
    if set(tables) != set(TABLES):
        yield f"the tables are {', '.join(tables)}"
    for name in set(tables) & set(TABLES):
        table = tables[name]["Properties"]
        if (key := table_key(table)) != TABLES[name]:
            yield f"{name} has the key {key}"
        ttl = {"AttributeName": "ttl", "Enabled": True} if name in EXPIRING else None
        if table.get("TimeToLiveSpecification") != ttl:
            yield f"{name} has the time to live {table.get('TimeToLiveSpecification')}"
        if table.get("BillingMode") != "PAY_PER_REQUEST":
            yield f"{name} is not on demand"
        for word in ("GlobalSecondaryIndexes", "LocalSecondaryIndexes", "StreamSpecification"):
            if word in table:
                yield f"{name} has {word}: a copy of its rows nobody forgets"


MEMBERS_RECOVERY = {
    "Fn::If": [
        "HasRecovery",
        {"PointInTimeRecoveryEnabled": True, "RecoveryPeriodInDays": {"Ref": "RecoveryDays"}},
        {"PointInTimeRecoveryEnabled": False},
    ]
}


@rule
def tables_forget(document: Document) -> Problems:
    for name, table in of_type(document, "AWS::DynamoDB::Table").items():
        recovery = table["Properties"].get("PointInTimeRecoverySpecification", {})
        if recovery != (MEMBERS_RECOVERY if name == "Members" else {"PointInTimeRecoveryEnabled": False}):
            yield f"{name} keeps longer than RecoveryDays what is promised to be forgotten"
        if table["Properties"].get("ContributorInsightsSpecification", {}).get("Enabled"):
            yield f"{name} shows keys in clear"


@rule
def everything_at_rest_is_encrypted(document: Document) -> Problems:
    key = {"Fn::GetAtt": ["Key", "Arn"]}
    for name, table in of_type(document, "AWS::DynamoDB::Table").items():
        given = table["Properties"].get("SSESpecification", {})
        if not given.get("SSEEnabled") or target(given.get("KMSMasterKeyId")) != target(key):
            yield f"{name} is not encrypted with the customer key"
    for name, secret in of_type(document, "AWS::SecretsManager::Secret").items():
        if target(secret["Properties"].get("KmsKeyId")) != target(key):
            yield f"{name} is not encrypted with the customer key"
    for name, queue in of_type(document, "AWS::SQS::Queue").items():
        if queue["Properties"].get("SqsManagedSseEnabled") is not True:
            yield f"{name} is not encrypted"
    for name, resource in of_type(document, "AWS::KMS::Key").items():
        if resource["Properties"].get("EnableKeyRotation") is not True:
            yield f"{name} is not rotated"


@rule
def the_key_belongs_to_the_account_alone(document: Document) -> Problems:
    for name, key in of_type(document, "AWS::KMS::Key").items():
        if key["Properties"].get("KeyPolicy") != {"Version": "2012-10-17", "Statement": [KEY_STATEMENT]}:
            yield f"{name} may be used or managed by others than the account's own roles"
        if key["Properties"].get("PendingWindowInDays") != 30:
            yield f"{name} can be lost within less than 30 days"


@rule
def state_outlives_the_stack(document: Document) -> Problems:
    for name, resource in of_type(document, *STATEFUL).items():
        if name == "EdgeSecret":  # it protects nothing that outlives the stack
            continue
        # A failed creation leaves nothing behind; tables that were in use are kept.
        for word, kept in (("DeletionPolicy", "RetainExceptOnCreate"), ("UpdateReplacePolicy", "Retain")):
            if resource.get(word) != kept:
                yield f"{name} has no {word}: {kept}"
    for name, table in of_type(document, "AWS::DynamoDB::Table").items():
        if table["Properties"].get("DeletionProtectionEnabled") != {"Fn::If": ["IsProtected", True, False]}:
            yield f"{name} has no deletion protection from the second deployment on"
    if document["Conditions"].get("IsProtected") != {"Fn::Equals": [{"Ref": "DeletionProtection"}, "ON"]}:
        yield "IsProtected does not say whether the tables are protected"
    if parameter(document, "DeletionProtection")["Default"] != "OFF":
        yield "a first deployment that fails leaves its tables behind"


@rule
def tables_have_a_limit(document: Document) -> Problems:
    limit = {"MaxReadRequestUnits": {"Ref": "MaxReadUnits"}, "MaxWriteRequestUnits": {"Ref": "MaxWriteUnits"}}
    for name, table in of_type(document, "AWS::DynamoDB::Table").items():
        if table["Properties"].get("OnDemandThroughput") != limit:
            yield f"{name} may cost without limit"
    for name in ("MaxReadUnits", "MaxWriteUnits"):
        if parameter(document, name)["Default"] >= DEFAULT_QUOTA:
            yield f"{name} is no less than what AWS itself allows a table"


@rule
def tables_of_sets_can_be_warmed(document: Document) -> Problems:
    """At the defaults, which every new table has, nothing is asked for: a table that has grown takes no lower value."""
    units = {"ReadUnitsPerSecond": {"Ref": "WarmReadUnits"}, "WriteUnitsPerSecond": {"Ref": "WarmWriteUnits"}}
    for name in ("StepLog", "Members", "Statuses"):
        given = document["Resources"][name]["Properties"].get("WarmThroughput")
        if given != {"Fn::If": ["IsWarm", units, {"Ref": "AWS::NoValue"}]}:
            yield f"{name} does not take the warm throughput"
    default = [{"Fn::Equals": [{"Ref": name}, units]} for name, units in WARM.items()]
    if document["Conditions"].get("IsWarm") != {"Fn::Not": [{"Fn::And": default}]}:
        yield "IsWarm does not say whether more is asked for than a new table has"
    for name, units_of_a_new_table in WARM.items():
        if parameter(document, name)["Default"] != units_of_a_new_table:
            yield f"{name} is charged by default"


@rule
def secrets_are_generated_once(document: Document) -> Problems:
    secrets = of_type(document, "AWS::SecretsManager::Secret")
    if set(secrets) != set(GENERATED):
        yield f"the secrets are {', '.join(secrets)}"
    for name in set(secrets) & set(GENERATED):
        if "SecretString" in secrets[name]["Properties"]:
            yield f"{name} stands in the template"
        if secrets[name]["Properties"].get("GenerateSecretString") != GENERATED[name]:
            yield f"{name} would be generated again at the next deployment"


# -------------------------------------------------------------------------------------------- functions
@rule
def functions_are_told_exactly_what_they_need(document: Document) -> Problems:
    if set(functions(document)) != set(ENVIRONMENT):
        yield f"the functions are {', '.join(functions(document))}"
    for name in FUNCTIONS:
        given, needed = environment(document, name), ENVIRONMENT[name]
        for variable in sorted(given.keys() | needed.keys()):
            if given.get(variable) != needed.get(variable):
                yield f"{name} is told {given.get(variable)} as {variable}, and not {needed.get(variable)}"


@rule
def functions_reserve_the_concurrency_of_their_own_parameter(document: Document) -> Problems:
    for name, function in functions(document).items():
        own, condition = {"Ref": f"{name}ReservedConcurrency"}, f"{name}IsReserved"
        if function.get("ReservedConcurrentExecutions") != {"Fn::If": [condition, own, {"Ref": "AWS::NoValue"}]}:
            yield f"{name} does not reserve what its parameter says"
        if document["Conditions"].get(condition) != {"Fn::Not": [{"Fn::Equals": [own, 0]}]}:
            yield f"{condition} does not depend on the parameter of {name}"


@rule
def environments_fit_into_4_kb(document: Document) -> Problems:
    for name in FUNCTIONS:
        size = sum(len(variable) + _longest(document, value) for variable, value in environment(document, name).items())
        if size > 4096:
            yield f"the environment of {name} may grow to {size} bytes"


def _longest(document: Document, value: object) -> int:
    """The length a variable can have; 170 is more than any ARN, URL or name in a stack whose name has 60 letters."""
    if isinstance(value, str):
        return len(value)
    named = target(value)
    if document["Resources"].get(named, {}).get("Type") == "AWS::DynamoDB::Table":
        return 60 + len(f"-{named}-") + 13  # the name of the stack, its own, and random letters
    given = document["Parameters"].get(named)
    if given is None:
        return 170
    return int(given.get("MaxLength", 30))


@rule
def parameters_have_defaults_and_descriptions(document: Document) -> Problems:
    for name, given in document["Parameters"].items():
        if "Default" not in given or not given.get("Description"):
            yield f"{name} has no default or no description"
        if "AllowedValues" in given and given["Default"] not in given["AllowedValues"]:
            yield f"the default of {name} is not allowed"
        if not {"AllowedValues", "AllowedPattern", "MaxLength", "MinValue"} & set(given):
            yield f"{name} takes any value"


# ----------------------------------------------------------------------------------------------- clocks
@rule
def clock_figures_fit_together_for_every_value_allowed(document: Document) -> Problems:
    grace, lease = parameter(document, "Grace"), parameter(document, "Lease")
    evaluate = properties(document, "Evaluate")["Timeout"]
    queue = properties(document, "Queue")
    for name in ("Join", "Query"):
        timeout = properties(document, name)["Timeout"]
        if timeout + CLOCK_SKEW >= grace["MinValue"]:
            yield f"{name} may write after its step is closed: timeout {timeout} s, grace {grace['MinValue']} s"
        integration = properties(document, f"{name}Integration")["TimeoutInMillis"]
        if not timeout * 1000 < integration <= 30_000:
            yield f"the gateway gives up before {name} does"
    if grace["MaxValue"] + CLOCK_SKEW > SCHEDULE_OFFSET:
        yield "the schedule may fire before the grace is over"
    if lease["MinValue"] <= evaluate:
        yield "a lease may end before its worker does"
    if lease["MaxValue"] >= queue["VisibilityTimeout"]:
        yield "a message may come back while the lease of its dead worker still holds"
    if queue["VisibilityTimeout"] < 6 * evaluate:
        yield "the queue hides a message for less than six times the function's timeout"
    redeliveries = queue["RedrivePolicy"]["maxReceiveCount"] - 1
    done = SCHEDULE_OFFSET + redeliveries * queue["VisibilityTimeout"] + evaluate
    if redeliveries < 2 or parameter(document, "PublishDelay")["Default"] < done:
        yield f"two redeliveries do not fit before the tick: they are done after {done} s"
    if parameter(document, "PublishMargin")["MinValue"] < 60:
        yield "a reader may see a write after its tick"
    if parameter(document, "OutageAllowance")["MinValue"] < 2 * 86_400:
        yield "the outage allowance leaves no day of reserve"
    for name, given in document["Parameters"].items():
        least, most = given.get("MinValue"), given.get("MaxValue", given["Default"])
        if least is not None and not least <= given["Default"] <= most:
            yield f"the default of {name} is out of range"


@rule
def the_schedule_fires_after_each_step(document: Document) -> Problems:
    periods = document["Mappings"]["Periods"]
    allowed = set(parameter(document, "Period")["AllowedValues"])
    if set(periods) != allowed:
        yield f"the periods {', '.join(sorted(set(periods) ^ allowed))} are not both allowed and mapped"
    for period, entry in periods.items():
        if 86_400 % int(period):
            yield f"steps of {period} s do not divide the day: no cron can follow them"
            continue
        expected = {(end + SCHEDULE_OFFSET) % 86_400 for end in range(0, 86_400, int(period))}
        if firing_times(entry["Cron"]) != expected:
            yield f"{entry['Cron']} does not fire {SCHEDULE_OFFSET} s after the ends of steps of {period} s"


def firing_times(cron: str) -> set[int]:
    """The seconds of a day at which ``cron(minutes hours * * ? *)`` fires."""
    minutes, hours, *rest = cron.removeprefix("cron(").removesuffix(")").split()
    if rest != ["*", "*", "?", "*"]:
        return set()
    return {h * 3600 + m * 60 for h in _field(hours, 24) for m in _field(minutes, 60)}


def _field(text: str, size: int) -> range:
    """``*``, ``3`` or ``3/15``."""
    if text == "*":
        return range(size)
    start, _, step = text.partition("/")
    return range(int(start), size, int(step)) if step else range(int(start), int(start) + 1)


@rule
def messages_are_taken_one_by_one_and_side_by_side(document: Document) -> Problems:
    for name, mapping in of_type(document, "AWS::Lambda::EventSourceMapping").items():
        if mapping["Properties"].get("BatchSize") != 1:
            yield f"{name} takes more than one slot at once"
        if mapping["Properties"].get("ScalingConfig") != {"MaximumConcurrency": {"Ref": "MaximumConcurrency"}}:
            yield f"{name} has no maximum concurrency"
    if parameter(document, "MaximumConcurrency")["MinValue"] < 2:
        yield "SQS takes no maximum concurrency below 2"
    if properties(document, "Evaluate").get("RecursiveLoop") != "Allow":
        yield "Lambda would stop a worker that sends itself the rest"


# ------------------------------------------------------------------------------------------------- HTTP
@rule
def path_segments_are_legal(document: Document) -> Problems:
    for name, route in of_type(document, "AWS::ApiGatewayV2::Route").items():
        path = route["Properties"]["RouteKey"].partition(" ")[2]
        for segment in path.removeprefix("/").split("/"):
            if not SEGMENT.fullmatch(segment):
                yield f"{name}: API Gateway refuses the segment {segment!r}"


@rule
def routes_ask_for_the_authorization_of_the_design(document: Document) -> Problems:
    routes = {}
    for route in of_type(document, "AWS::ApiGatewayV2::Route").values():
        given = route["Properties"]
        access = given.get("AuthorizationType")
        access = next((name for name, value in BY_TOKEN.items() if value == access), access)
        if given.get("AuthorizerId") != AUTHORIZER.get(str(access)):
            access = f"{access} by {given.get('AuthorizerId')}"
        text = strings(given["Target"])[0]
        routes[given["RouteKey"]] = (text.removeprefix("integrations/${").removesuffix("}"), access)
    for key in set(routes) | set(ROUTES):
        if routes.get(key) != ROUTES.get(key):
            yield f"{key} is {routes.get(key)}"
    for name, meaning in ACCESS.items():
        if document["Conditions"][name] != meaning:
            yield f"{name} is {document['Conditions'][name]}"
    for name in ("JoinAuth", "BatchAuth"):
        if parameter(document, name)["Default"] != "IAM":
            yield f"{name} is not IAM by default"
    if "OPEN" in parameter(document, "BatchAuth")["AllowedValues"]:
        yield "anybody may call the batch routes"
    token = {"Issuer": {"Ref": "JwtIssuer"}, "Audience": [{"Ref": "JwtAudience"}]}
    if properties(document, "Tokens").get("JwtConfiguration") != token:
        yield "tokens of other issuers or for other services are accepted"


@rule
def requests_are_throttled(document: Document) -> Problems:
    for name, stage in of_type(document, "AWS::ApiGatewayV2::Stage").items():
        given = stage["Properties"].get("DefaultRouteSettings", {})
        for word, own in (("ThrottlingRateLimit", "ThrottleRate"), ("ThrottlingBurstLimit", "ThrottleBurst")):
            if given.get(word) != {"Ref": own}:
                yield f"{name} is not throttled by {own}"
        own = {
            key: {"ThrottlingRateLimit": {"Ref": rate}, "ThrottlingBurstLimit": {"Ref": rate}}
            for key, rate in QUOTAS.items()
        }
        if stage["Properties"].get("RouteSettings") != own:
            yield f"{name} gives other routes a rate of their own than {', '.join(QUOTAS)}"
        keyed = {r["Properties"]["RouteKey"]: n for n, r in of_type(document, "AWS::ApiGatewayV2::Route").items()}
        if {keyed.get(key) for key in QUOTAS} - set(stage.get("DependsOn", [])):
            yield f"{name} names routes that do not exist yet"


@rule
def queries_leave_the_table_room(document: Document) -> Problems:
    """By default no group of callers can exhaust a table: neither those without a signature, nor all together."""
    default = {name: given["Default"] for name, given in document["Parameters"].items()}
    anonymous = 2 * default["AnonymousRate"] * default["AnonymousHashes"] * UNITS_OF_A_HASH
    signed = default["BatchQueryRate"] * MOST_HASHES * UNITS_OF_A_HASH
    single = default["ThrottleRate"] * UNITS_OF_A_HASH
    if anonymous > default["MaxReadUnits"] / 2:
        yield f"callers without a signature may use {anonymous:.0f} of {default['MaxReadUnits']} read units"
    if anonymous + signed + single > default["MaxReadUnits"]:
        yield f"queries may use {anonymous + signed + single:.0f} of {default['MaxReadUnits']} read units"


@rule
def an_edge_is_the_only_way_in(document: Document) -> Problems:
    """Every function that answers requests checks the header if there is an edge (see ENVIRONMENT for the values)."""
    conditions, off = document["Conditions"], {"Fn::Not": [{"Fn::Equals": [{"Ref": "Edge"}, "OFF"]}]}
    inside = {"Fn::Equals": [{"Ref": "Edge"}, "ON"]}
    if conditions["HasEdge"] != {"Fn::And": [{"Condition": "HasDomainName"}, off]}:
        yield "HasEdge does not say whether there is an edge"
    if conditions["HasEdgeInside"] != {"Fn::And": [{"Condition": "HasDomainName"}, inside]}:
        yield "HasEdgeInside does not say whether the edge is in this stack"
    if document["Resources"]["EdgeStack"].get("Condition") != "HasEdgeInside":
        yield "EdgeStack exists without being asked for"
    given = properties(document, "EdgeStack")["Parameters"]
    if given["OriginSecret"] != {"Ref": "EdgeSecret"} or target(given["Origin"]) != "Domain":
        yield "the edge sends another secret than the functions expect, or sends it elsewhere"
    record = properties(document, "DomainRecord")["AliasTarget"]
    if record.get("Fn::If", [None])[0] != "HasEdge":
        yield "the record leads past the edge"
    needed = {
        "EdgeHasDomainName",
        "EdgeInTheStackIsInUsEast1",
        "SeparateEdgeIsKnown",
        "TokensHaveAnIssuer",
        "SnapStartHasARuntime",
    }
    if missing := needed - set(document["Rules"]):
        yield f"nothing refuses what {', '.join(sorted(missing))} refused"


@rule
def snapshots_are_of_join_and_query_and_off_by_default(document: Document) -> Problems:
    if parameter(document, "SnapStart")["Default"] != "OFF":
        yield "snapshots cost money without being asked for"
    for name, function in functions(document).items():
        asked = {"ApplyOn": {"Fn::If": ["HasSnapStart", "PublishedVersions", "None"]}} if name != "Evaluate" else None
        if function.get("SnapStart") != asked:
            yield f"{name} starts from {function.get('SnapStart')}"
    if document["Conditions"]["HasSnapStart"] != {"Fn::Equals": [{"Ref": "SnapStart"}, "ON"]}:
        yield "HasSnapStart does not say whether snapshots are asked for"


@rule
def deployments_reach_the_stage(document: Document) -> Problems:
    for name, stage in of_type(document, "AWS::ApiGatewayV2::Stage").items():
        if stage["Properties"].get("AutoDeploy") is not True:
            yield f"{name} goes on with the routes of before"


@rule
def a_domain_is_the_only_way_in_and_speaks_tls_1_2(document: Document) -> Problems:
    for name, api in of_type(document, "AWS::ApiGatewayV2::Api").items():
        if api["Properties"].get("DisableExecuteApiEndpoint") != {"Fn::If": ["HasDomainName", True, False]}:
            yield f"{name} answers beside its domain, or nowhere"
    if document["Conditions"]["HasDomainName"] != {"Fn::Not": [{"Fn::Equals": [{"Ref": "DomainName"}, ""]}]}:
        yield "HasDomainName does not say whether there is a domain name"
    for name, domain in of_type(document, "AWS::ApiGatewayV2::DomainName").items():
        for settings in domain["Properties"]["DomainNameConfigurations"]:
            if settings.get("SecurityPolicy") != "TLS_1_2":
                yield f"{name} speaks an older TLS"
