"""The template keeps every rule, and every rule detects a planted violation."""

import json
from collections.abc import Callable

import pytest

from tests.infrastructure.rules import RULES, firing_times
from tests.infrastructure.template import FUNCTIONS, ROOT, Document, environment, mutated, parameter, properties, read

Mutation = Callable[[Document], object]
ON, OFF = True, False
EDGE = "KANON_EDGE_SECRET"


def role(document: Document, name: str, sid: str) -> Document:
    """One statement of a role."""
    (policy,) = properties(document, name)["Policies"]
    (statement,) = [s for s in policy["PolicyDocument"]["Statement"] if s["Sid"] == sid]
    return statement


def put(value: object, *path: str) -> Mutation:
    """Set a property: resource, then the names on the way to it."""

    def change(document: Document) -> None:
        node = properties(document, path[0])
        for name in path[1:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = value

    return change


def drop(*path: str) -> Mutation:
    """Take a property away."""

    def change(document: Document) -> None:
        node = properties(document, path[0])
        for name in path[1:-1]:
            node = node[name]
        del node[path[-1]]

    return change


def resource(name: str, body: Document) -> Mutation:
    """Put a resource beside the others."""
    return lambda document: document["Resources"].update({name: body})


def unkept(name: str, word: str) -> Mutation:
    return lambda document: document["Resources"][name].pop(word)


def limit(name: str, word: str, value: object) -> Mutation:
    """Change a parameter's declaration."""
    return lambda document: parameter(document, name).update({word: value})


def variable(function: str, name: str, value: str = "x") -> Mutation:
    return put(value, function, "Environment", "Variables", name)


def permit(name: str, sid: str, action: str) -> Mutation:
    """Allow one action more."""

    def change(document: Document) -> None:
        statement = role(document, name, sid)
        actions = statement["Action"]
        statement["Action"] = [*(actions if isinstance(actions, list) else [actions]), action]

    return change


def aim(name: str, sid: str, where: object) -> Mutation:
    return lambda document: role(document, name, sid).update({"Resource": where})


def unconditional(name: str, sid: str) -> Mutation:
    return lambda document: role(document, name, sid).pop("Condition")


def trusting(name: str, **change: object) -> Mutation:
    def spoil(document: Document) -> None:
        trust = properties(document, name)["AssumeRolePolicyDocument"]["Statement"][0]
        for word, value in change.items():
            trust[word] = value

    return spoil


def open_by_condition(document: Document) -> None:
    document["Conditions"]["JoinsOpen"] = {"Fn::Not": [document["Conditions"]["JoinsOpen"]]}


def a_further_function(document: Document) -> None:
    properties(document, "Join")["LoggingConfig"] = {}
    document["Resources"]["Purge"] = json.loads(json.dumps(document["Resources"]["Join"]))


def cron(period: str, expression: str) -> Mutation:
    return lambda document: document["Mappings"]["Periods"][period].update(Cron=expression)


def unmapped(document: Document) -> None:
    document["Mappings"]["Periods"].pop("900")


def access_log(word: str) -> Mutation:
    def change(document: Document) -> None:
        settings = properties(document, "Stage")["AccessLogSettings"]
        settings["Format"] = settings["Format"].replace("$context.routeKey", word)

    return change


def told(function: str, name: str) -> Mutation:
    """Give a variable the value of the next one: the right name with the wrong parameter."""
    variables = environment(read(), function)
    names = list(variables)
    another = variables[names[(names.index(name) + 1) % len(names)]]
    return put(another, function, "Environment", "Variables", name)


def unhashed(name: str) -> Mutation:
    """A parameter that the layer's description does not name."""

    def change(document: Document) -> None:
        properties(document, "Shared")["Description"]["Fn::Select"][1].remove({"Ref": name})

    return change


def old_tls(document: Document) -> None:
    properties(document, "Domain")["DomainNameConfigurations"][0]["SecurityPolicy"] = "TLS_1_0"


def reserved(function: str, condition: str, name: str) -> Mutation:
    value = {"Fn::If": [condition, {"Ref": name}, {"Ref": "AWS::NoValue"}]}
    return put(value, function, "ReservedConcurrentExecutions")


def key_principal(principal: object) -> Mutation:
    return lambda document: properties(document, "Key")["KeyPolicy"]["Statement"][0].update(Principal=principal)


def key_statement(document: Document) -> None:
    policy = properties(document, "Key")["KeyPolicy"]["Statement"]
    policy.append({**policy[0], "Principal": {"Service": "logs.amazonaws.com"}})


VIOLATIONS: list[tuple[str, str, Mutation]] = [
    ("every_function_has_a_log_group_with_retention", "no group", drop("Query", "LoggingConfig")),
    ("every_function_has_a_log_group_with_retention", "forever", drop("JoinLogs", "RetentionInDays")),
    ("every_function_has_a_log_group_with_retention", "access", drop("AccessLogs", "RetentionInDays")),
    ("every_function_has_a_log_group_with_retention", "new function", a_further_function),
    ("every_function_has_a_log_group_with_retention", "each call", drop("Join", "LoggingConfig", "SystemLogLevel")),
    (
        "every_function_has_a_log_group_with_retention",
        "metrics filtered",
        put("WARN", "Query", "LoggingConfig", "ApplicationLogLevel"),
    ),
    ("access_logs_tell_no_path_and_no_caller", "path", access_log("$context.path")),
    ("access_logs_tell_no_path_and_no_caller", "address", access_log("$context.identity.sourceIp")),
    ("access_logs_tell_no_path_and_no_caller", "no JSON", access_log('"')),
    ("access_logs_tell_no_path_and_no_caller", "none", drop("Stage", "AccessLogSettings")),
    ("nothing_traces_or_logs_requests", "trace", put("Active", "Join", "Tracing")),
    ("nothing_traces_or_logs_requests", "event", variable("Join", "POWERTOOLS_LOGGER_LOG_EVENT")),
    (
        "nothing_traces_or_logs_requests",
        "level",
        limit("LogLevel", "AllowedValues", ["DEBUG", "INFO"]),
    ),
    ("nothing_traces_or_logs_requests", "key", put({"Ref": "Key"}, "Join", "KmsKeyArn")),
    (
        "nothing_traces_or_logs_requests",
        "execution log",
        put("INFO", "Stage", "DefaultRouteSettings", "LoggingLevel"),
    ),
    ("every_asynchronous_edge_has_a_dead_letter_queue", "queue", drop("Queue", "RedrivePolicy")),
    (
        "every_asynchronous_edge_has_a_dead_letter_queue",
        "schedule",
        drop("EvaluateSchedule", "Target", "DeadLetterConfig"),
    ),
    (
        "every_asynchronous_edge_has_a_dead_letter_queue",
        "schedule events among slot messages",
        put({"Arn": {"Fn::GetAtt": ["DeadLetters", "Arn"]}}, "EvaluateSchedule", "Target", "DeadLetterConfig"),
    ),
    (
        "every_asynchronous_edge_has_a_dead_letter_queue",
        "failed calls among slot messages",
        put(
            {"Fn::GetAtt": ["DeadLetters", "Arn"]}, "EvaluateFailures", "DestinationConfig", "OnFailure", "Destination"
        ),
    ),
    (
        "every_asynchronous_edge_has_a_dead_letter_queue",
        "no retry",
        drop("EvaluateSchedule", "Target", "RetryPolicy"),
    ),
    (
        "every_asynchronous_edge_has_a_dead_letter_queue",
        "invocation",
        drop("EvaluateFailures", "DestinationConfig"),
    ),
    (
        "every_asynchronous_edge_has_a_dead_letter_queue",
        "partial failures",
        drop("EvaluateMessages", "FunctionResponseTypes"),
    ),
    (
        "every_asynchronous_edge_has_a_dead_letter_queue",
        "another queue",
        resource("Mail", {"Type": "AWS::SQS::Queue", "Properties": {}}),
    ),
    (
        "every_asynchronous_edge_has_a_dead_letter_queue",
        "hidden event",
        put({"Timer": {"Type": "ScheduleV2"}}, "Query", "Events"),
    ),
    (
        "every_asynchronous_edge_has_a_dead_letter_queue",
        "reads dead letters",
        put({"Fn::GetAtt": ["DeadLetters", "Arn"]}, "EvaluateMessages", "EventSourceArn"),
    ),
    (
        "schedules_have_no_fixed_names_and_no_flexible_window",
        "name",
        put("hourly", "EvaluateSchedule", "Name"),
    ),
    (
        "schedules_have_no_fixed_names_and_no_flexible_window",
        "window",
        put("FLEXIBLE", "EvaluateSchedule", "FlexibleTimeWindow", "Mode"),
    ),
    (
        "schedules_have_no_fixed_names_and_no_flexible_window",
        "time zone",
        drop("EvaluateSchedule", "ScheduleExpressionTimezone"),
    ),
    ("names_are_left_to_cloudformation", "table", put("step-log", "StepLog", "TableName")),
    ("names_are_left_to_cloudformation", "secret", put("pepper", "SetPepper", "Name")),
    ("names_are_left_to_cloudformation", "log group", put("/kanon", "JoinLogs", "LogGroupName")),
    ("every_function_has_a_role_of_its_own", "none", drop("Join", "Role")),
    (
        "every_function_has_a_role_of_its_own",
        "shared",
        put({"Fn::GetAtt": ["EvaluateRole", "Arn"]}, "Join", "Role"),
    ),
    (
        "every_function_has_a_role_of_its_own",
        "policies",
        put(["AmazonDynamoDBFullAccess"], "Join", "Policies"),
    ),
    (
        "every_function_has_a_role_of_its_own",
        "policy beside",
        resource("More", {"Type": "AWS::IAM::Policy", "Properties": {}}),
    ),
    (
        "every_function_has_a_role_of_its_own",
        "connector",
        resource("More", {"Type": "AWS::Serverless::Connector", "Properties": {}}),
    ),
    (
        "roles_have_no_managed_policies",
        "managed",
        put(["arn:aws:iam::aws:policy/AdministratorAccess"], "JoinRole", "ManagedPolicyArns"),
    ),
    ("roles_have_no_wildcards", "action", permit("JoinRole", "LogJoins", "dynamodb:*")),
    ("roles_have_no_wildcards", "resource", aim("QueryRole", "ReadStatuses", "*")),
    (
        "roles_have_no_wildcards",
        "part of a resource",
        aim("QueryRole", "ReadStatuses", {"Fn::Sub": "${Statuses.Arn}/*"}),
    ),
    ("roles_have_no_wildcards", "any alias", aim("CanaryRole", "MoveAliases", "*")),
    ("roles_have_no_wildcards", "any alarm", permit("CanaryRole", "WatchAlarms", "cloudwatch:PutMetricData")),
    (
        "roles_have_no_wildcards",
        "the rest",
        lambda d: role(d, "JoinRole", "LogJoins").update({"NotAction": "dynamodb:Scan"}),
    ),
    ("roles_have_no_wildcards", "trust", trusting("JoinRole", Principal="*")),
    (
        "roles_allow_exactly_what_the_design_says",
        "join reads",
        permit("JoinRole", "LogJoins", "dynamodb:GetItem"),
    ),
    (
        "roles_allow_exactly_what_the_design_says",
        "query sees joins",
        aim("QueryRole", "ReadStatuses", {"Fn::GetAtt": ["StepLog", "Arn"]}),
    ),
    (
        "roles_allow_exactly_what_the_design_says",
        "evaluate sees clients",
        aim("EvaluateRole", "ReadNoiseKeys", [{"Ref": "NoiseKey"}, {"Ref": "ClientKey"}]),
    ),
    (
        "roles_allow_exactly_what_the_design_says",
        "evaluate deletes",
        permit("EvaluateRole", "KeepMembers", "dynamodb:DeleteItem"),
    ),
    (
        "roles_allow_exactly_what_the_design_says",
        "too little",
        lambda d: role(d, "EvaluateRole", "KeepMarks").update({"Action": "dynamodb:GetItem"}),
    ),
    (
        "roles_allow_exactly_what_the_design_says",
        "denial",
        lambda d: role(d, "JoinRole", "LogJoins").update({"Effect": "Deny"}),
    ),
    (
        "roles_allow_exactly_what_the_design_says",
        "another role",
        lambda d: d["Resources"].update(Other=json.loads(json.dumps(d["Resources"]["ScheduleRole"]))),
    ),
    (
        "join_and_query_touch_their_own_control_item_only",
        "any item",
        unconditional("JoinRole", "CompareOwnFingerprint"),
    ),
    (
        "join_and_query_touch_their_own_control_item_only",
        "another item",
        lambda d: role(d, "QueryRole", "CompareOwnFingerprint").update(
            {"Condition": role(d, "JoinRole", "CompareOwnFingerprint")["Condition"]}
        ),
    ),
    (
        "the_key_is_used_through_services_only",
        "directly",
        unconditional("QueryRole", "DecryptThroughServices"),
    ),
    (
        "the_key_is_used_through_services_only",
        "through another",
        lambda d: role(d, "JoinRole", "DecryptThroughServices").update(
            {"Condition": {"StringEquals": {"kms:ViaService": ["s3.eu-west-1.amazonaws.com"]}}}
        ),
    ),
    (
        "roles_trust_one_service",
        "account",
        trusting("JoinRole", Principal={"AWS": "123456789012"}),
    ),
    ("roles_trust_one_service", "any schedule", trusting("ScheduleRole", Condition={})),
    ("only_the_gateway_may_call_functions", "any api", drop("JoinInvocation", "SourceArn")),
    (
        "only_the_gateway_may_call_functions",
        "evaluate",
        put({"Ref": "Evaluate"}, "JoinInvocation", "FunctionName"),
    ),
    (
        "only_the_gateway_may_call_functions",
        "address",
        put({"AuthType": "NONE"}, "Evaluate", "FunctionUrlConfig"),
    ),
    (
        "tables_have_the_keys_of_the_design",
        "kind",
        put([{"AttributeName": "name", "AttributeType": "B"}], "Control", "AttributeDefinitions"),
    ),
    (
        "tables_have_the_keys_of_the_design",
        "order",
        lambda d: properties(d, "StepLog")["KeySchema"].reverse(),
    ),
    ("tables_have_the_keys_of_the_design", "no ttl", drop("Members", "TimeToLiveSpecification")),
    (
        "tables_have_the_keys_of_the_design",
        "marks expire",
        put({"AttributeName": "ttl", "Enabled": True}, "Control", "TimeToLiveSpecification"),
    ),
    (
        "tables_have_the_keys_of_the_design",
        "stream",
        put({"StreamViewType": "NEW_IMAGE"}, "StepLog", "StreamSpecification"),
    ),
    ("tables_have_the_keys_of_the_design", "provisioned", drop("StepLog", "BillingMode")),
    (
        "tables_have_the_keys_of_the_design",
        "another table",
        resource("Copies", {"Type": "AWS::DynamoDB::Table", "Properties": {}}),
    ),
    (
        "tables_forget",
        "recovery",
        put(ON, "Statuses", "PointInTimeRecoverySpecification", "PointInTimeRecoveryEnabled"),
    ),
    (
        "tables_forget",
        "35 days",
        put({"PointInTimeRecoveryEnabled": True}, "Members", "PointInTimeRecoverySpecification"),
    ),
    ("tables_forget", "insights", put(ON, "StepLog", "ContributorInsightsSpecification", "Enabled")),
    ("everything_at_rest_is_encrypted", "table", drop("StepLog", "SSESpecification")),
    (
        "everything_at_rest_is_encrypted",
        "AWS's key",
        drop("StepLog", "SSESpecification", "KMSMasterKeyId"),
    ),
    ("everything_at_rest_is_encrypted", "secret", drop("NoiseKey", "KmsKeyId")),
    ("everything_at_rest_is_encrypted", "queue", drop("DeadLetters", "SqsManagedSseEnabled")),
    ("everything_at_rest_is_encrypted", "rotation", put(OFF, "Key", "EnableKeyRotation")),
    ("state_outlives_the_stack", "table", unkept("StepLog", "DeletionPolicy")),
    ("state_outlives_the_stack", "key", unkept("Key", "UpdateReplacePolicy")),
    ("state_outlives_the_stack", "secret", unkept("NoiseKey", "DeletionPolicy")),
    ("state_outlives_the_stack", "protection", put(OFF, "Control", "DeletionProtectionEnabled")),
    ("state_outlives_the_stack", "a failed creation stays", put(ON, "Members", "DeletionProtectionEnabled")),
    ("state_outlives_the_stack", "protected at once", limit("DeletionProtection", "Default", "ON")),
    (
        "secrets_are_generated_once",
        "length",
        put(48, "NoiseKey", "GenerateSecretString", "PasswordLength"),
    ),
    (
        "secrets_are_generated_once",
        "by parameter",
        put({"Ref": "LogRetention"}, "SetPepper", "GenerateSecretString", "PasswordLength"),
    ),
    ("secrets_are_generated_once", "literal", put("hunter2", "ClientKey", "SecretString")),
    (
        "functions_are_told_exactly_what_they_need",
        "too much",
        variable("Query", "KANON_STEP_LOG_TABLE"),
    ),
    (
        "functions_are_told_exactly_what_they_need",
        "too little",
        drop("Evaluate", "Environment", "Variables", "KANON_GRACE"),
    ),
    (
        "functions_are_told_exactly_what_they_need",
        "name",
        variable("Query", "POWERTOOLS_SERVICE_NAME", "join"),
    ),
    ("functions_are_told_exactly_what_they_need", "new function", a_further_function),
    *(
        ("functions_are_told_exactly_what_they_need", f"{function} {name}", told(function, name))
        for function in FUNCTIONS
        for name in environment(read(), function)
    ),
    ("environments_fit_into_4_kb", "types", limit("Types", "MaxLength", 4000)),
    (
        "parameters_have_defaults_and_descriptions",
        "any value",
        lambda d: d["Parameters"].update(Extra={"Type": "String", "Default": "", "Description": "x"}),
    ),
    ("parameters_have_defaults_and_descriptions", "default", limit("Period", "Default", "77")),
    ("parameters_have_defaults_and_descriptions", "words", limit("Lease", "Description", "")),
    (
        "clock_figures_fit_together_for_every_value_allowed",
        "late write",
        put(25, "Join", "Timeout"),
    ),
    (
        "clock_figures_fit_together_for_every_value_allowed",
        "gateway",
        put(9000, "JoinIntegration", "TimeoutInMillis"),
    ),
    (
        "clock_figures_fit_together_for_every_value_allowed",
        "early schedule",
        limit("Grace", "MaxValue", 175),
    ),
    (
        "clock_figures_fit_together_for_every_value_allowed",
        "short lease",
        limit("Lease", "MinValue", 120),
    ),
    (
        "clock_figures_fit_together_for_every_value_allowed",
        "long lease",
        limit("Lease", "MaxValue", 720),
    ),
    (
        "clock_figures_fit_together_for_every_value_allowed",
        "visibility",
        put(700, "Queue", "VisibilityTimeout"),
    ),
    (
        "clock_figures_fit_together_for_every_value_allowed",
        "redeliveries",
        put(2, "Queue", "RedrivePolicy", "maxReceiveCount"),
    ),
    (
        "clock_figures_fit_together_for_every_value_allowed",
        "tick",
        limit("PublishDelay", "Default", 1700),
    ),
    (
        "clock_figures_fit_together_for_every_value_allowed",
        "margin",
        limit("PublishMargin", "MinValue", 5),
    ),
    (
        "clock_figures_fit_together_for_every_value_allowed",
        "outage",
        limit("OutageAllowance", "MinValue", 86_400),
    ),
    (
        "clock_figures_fit_together_for_every_value_allowed",
        "default",
        limit("Lease", "Default", 601),
    ),
    ("the_schedule_fires_after_each_step", "early", cron("3600", "cron(1 * * * ? *)")),
    ("the_schedule_fires_after_each_step", "rarely", cron("900", "cron(3 * * * ? *)")),
    ("the_schedule_fires_after_each_step", "weekdays", cron("3600", "cron(3 * ? * MON-FRI *)")),
    ("the_schedule_fires_after_each_step", "unmapped", unmapped),
    (
        "messages_are_taken_one_by_one_and_side_by_side",
        "batch",
        put(10, "EvaluateMessages", "BatchSize"),
    ),
    (
        "messages_are_taken_one_by_one_and_side_by_side",
        "unlimited",
        drop("EvaluateMessages", "ScalingConfig"),
    ),
    (
        "messages_are_taken_one_by_one_and_side_by_side",
        "one",
        limit("MaximumConcurrency", "MinValue", 1),
    ),
    (
        "messages_are_taken_one_by_one_and_side_by_side",
        "recursion",
        drop("Evaluate", "RecursiveLoop"),
    ),
    (
        "path_segments_are_legal",
        "text after a variable",
        put("POST /v1/types/{type}/sets/{set}:join", "JoinRoute", "RouteKey"),
    ),
    ("path_segments_are_legal", "empty", put("GET /v1//types", "TypesRoute", "RouteKey")),
    (
        "routes_ask_for_the_authorization_of_the_design",
        "open batch",
        put("NONE", "BatchJoinRoute", "AuthorizationType"),
    ),
    ("routes_ask_for_the_authorization_of_the_design", "condition", open_by_condition),
    (
        "routes_ask_for_the_authorization_of_the_design",
        "default",
        limit("JoinAuth", "Default", "OPEN"),
    ),
    (
        "routes_ask_for_the_authorization_of_the_design",
        "function",
        put({"Fn::Sub": "integrations/${JoinIntegration}"}, "QueryRoute", "Target"),
    ),
    (
        "routes_ask_for_the_authorization_of_the_design",
        "missing",
        lambda d: d["Resources"].pop("DocsRoute"),
    ),
    ("requests_are_throttled", "rate", drop("Stage", "DefaultRouteSettings", "ThrottlingRateLimit")),
    (
        "requests_are_throttled",
        "rate and burst exchanged",
        put({"Ref": "ThrottleRate"}, "Stage", "DefaultRouteSettings", "ThrottlingBurstLimit"),
    ),
    (
        "requests_are_throttled",
        "constant",
        put(100_000, "Stage", "DefaultRouteSettings", "ThrottlingRateLimit"),
    ),
    (
        "requests_are_throttled",
        "one route",
        put({"POST /v1:query": {"ThrottlingRateLimit": 100_000}}, "Stage", "RouteSettings"),
    ),
    (
        "requests_are_throttled",
        "one bucket for all",
        drop("Stage", "RouteSettings", "POST /v1:validateHashes"),
    ),
    ("requests_are_throttled", "too early", lambda d: d["Resources"]["Stage"].pop("DependsOn")),
    ("queries_leave_the_table_room", "many hashes", limit("AnonymousHashes", "Default", 1000)),
    ("queries_leave_the_table_room", "many queries", limit("AnonymousRate", "Default", 1000)),
    ("queries_leave_the_table_room", "signed", limit("BatchQueryRate", "Default", 80)),
    ("queries_leave_the_table_room", "small table", limit("MaxReadUnits", "Default", 10_000)),
    ("routes_ask_for_the_authorization_of_the_design", "open tokens", drop("Tokens", "JwtConfiguration", "Audience")),
    ("routes_ask_for_the_authorization_of_the_design", "no authorizer", drop("BatchQueryRoute", "AuthorizerId")),
    (
        "routes_ask_for_the_authorization_of_the_design",
        "anybody's batch",
        limit("BatchAuth", "AllowedValues", ["OPEN", "IAM", "JWT"]),
    ),
    (
        "routes_ask_for_the_authorization_of_the_design",
        "tokens by another condition",
        lambda d: d["Conditions"].update(BatchesByToken=d["Conditions"]["JoinsByToken"]),
    ),
    ("an_edge_is_the_only_way_in", "never", lambda d: d["Conditions"].update(HasEdge=d["Conditions"]["JoinsOpen"])),
    ("an_edge_is_the_only_way_in", "always", lambda d: d["Resources"]["EdgeStack"].pop("Condition")),
    (
        "an_edge_is_the_only_way_in",
        "another secret",
        put({"Ref": "SetPepper"}, "EdgeStack", "Parameters", "OriginSecret"),
    ),
    ("an_edge_is_the_only_way_in", "past it", put({"DNSName": "x"}, "DomainRecord", "AliasTarget")),
    ("an_edge_is_the_only_way_in", "region", lambda d: d["Rules"].pop("EdgeInTheStackIsInUsEast1")),
    ("functions_are_told_exactly_what_they_need", "no header", put("", "Join", "Environment", "Variables", EDGE)),
    (
        "roles_allow_exactly_what_the_design_says",
        "edge secret without an edge",
        aim("QueryRole", "ReadSecrets", [{"Ref": "SetPepper"}, {"Ref": "EdgeSecret"}]),
    ),
    ("snapshots_are_of_join_and_query_and_off_by_default", "on", limit("SnapStart", "Default", "ON")),
    (
        "snapshots_are_of_join_and_query_and_off_by_default",
        "of evaluate",
        put({"ApplyOn": "PublishedVersions"}, "Evaluate", "SnapStart"),
    ),
    ("snapshots_are_of_join_and_query_and_off_by_default", "never", drop("Query", "SnapStart")),
    ("a_version_pins_code_layer_and_parameters", "forgotten condition", unhashed("SnapStart")),
    ("deployments_reach_the_stage", "by hand", put(OFF, "Stage", "AutoDeploy")),
    ("deployments_reach_the_stage", "default", drop("Stage", "AutoDeploy")),
    (
        "a_domain_is_the_only_way_in_and_speaks_tls_1_2",
        "two ways in",
        put(OFF, "Api", "DisableExecuteApiEndpoint"),
    ),
    (
        "a_domain_is_the_only_way_in_and_speaks_tls_1_2",
        "the other way round",
        put({"Fn::If": ["HasDomainName", False, True]}, "Api", "DisableExecuteApiEndpoint"),
    ),
    (
        "a_domain_is_the_only_way_in_and_speaks_tls_1_2",
        "condition",
        lambda d: d["Conditions"].update(HasDomainName={"Fn::Equals": [{"Ref": "DomainName"}, ""]}),
    ),
    ("a_domain_is_the_only_way_in_and_speaks_tls_1_2", "old TLS", old_tls),
    ("queues_keep_messages_for_days", "queue", put(60, "Queue", "MessageRetentionPeriod")),
    ("queues_keep_messages_for_days", "dead letters", put(345_600, "DeadLetters", "MessageRetentionPeriod")),
    ("queues_keep_messages_for_days", "lost events", drop("LostEvents", "MessageRetentionPeriod")),
    (
        "retries_are_those_of_the_design",
        "schedule",
        put(86_400, "EvaluateSchedule", "Target", "RetryPolicy", "MaximumEventAgeInSeconds"),
    ),
    (
        "retries_are_those_of_the_design",
        "no attempt",
        put(0, "EvaluateSchedule", "Target", "RetryPolicy", "MaximumRetryAttempts"),
    ),
    ("retries_are_those_of_the_design", "no invocation again", put(0, "EvaluateFailures", "MaximumRetryAttempts")),
    ("retries_are_those_of_the_design", "invocation", drop("EvaluateFailures", "MaximumEventAgeInSeconds")),
    ("retries_are_those_of_the_design", "another version", put("$LATEST", "EvaluateFailures", "Qualifier")),
    ("callers_call_the_alias", "gateway", put({"Fn::GetAtt": ["Join", "Arn"]}, "JoinIntegration", "IntegrationUri")),
    ("callers_call_the_alias", "permission", put({"Ref": "Query"}, "QueryInvocation", "FunctionName")),
    ("callers_call_the_alias", "queue", put({"Ref": "Evaluate"}, "EvaluateMessages", "FunctionName")),
    (
        "callers_call_the_alias",
        "schedule",
        put({"Fn::GetAtt": ["Evaluate", "Arn"]}, "EvaluateSchedule", "Target", "Arn"),
    ),
    ("callers_call_the_alias", "own alias", resource("Live", {"Type": "AWS::Lambda::Alias", "Properties": {}})),
    (
        "a_version_pins_code_layer_and_parameters",
        "no alias",
        lambda d: d["Globals"]["Function"].pop("AutoPublishAlias"),
    ),
    ("a_version_pins_code_layer_and_parameters", "code alone", drop("Join", "AutoPublishAliasAllProperties")),
    ("a_version_pins_code_layer_and_parameters", "no layer", drop("Query", "VersionDescription")),
    ("a_version_pins_code_layer_and_parameters", "no values", put("Shared code", "Shared", "Description")),
    ("a_version_pins_code_layer_and_parameters", "forgotten", unhashed("NoiseKeys")),
    ("a_version_pins_code_layer_and_parameters", "forgotten for all", unhashed("LogLevel")),
    (
        "a_version_pins_code_layer_and_parameters",
        "new variable",
        put({"Ref": "ThrottleRate"}, "Join", "Environment", "Variables", "KANON_RATE"),
    ),
    (
        "a_version_pins_code_layer_and_parameters",
        "by a condition",
        put({"Fn::If": ["HasHostedZone", 512, 1024]}, "Join", "MemorySize"),
    ),
    ("evaluate_switches_whole_and_first", "in parts", put({"Type": "AllAtOnce"}, "Evaluate", "DeploymentPreference")),
    ("evaluate_switches_whole_and_first", "join first", lambda d: d["Resources"]["Join"].pop("DependsOn")),
    ("evaluate_switches_whole_and_first", "waits", lambda d: d["Resources"]["Evaluate"].update(DependsOn="Api")),
    ("join_and_query_switch_in_parts_and_back", "whole", drop("Join", "DeploymentPreference")),
    ("join_and_query_switch_in_parts_and_back", "no alarm", drop("Query", "DeploymentPreference", "Alarms")),
    ("join_and_query_switch_in_parts_and_back", "patient", put(50, "JoinFailing", "Threshold")),
    (
        "join_and_query_switch_in_parts_and_back",
        "blind",
        lambda d: properties(d, "QueryFailing")["Metrics"].pop(2),
    ),
    (
        "join_and_query_switch_in_parts_and_back",
        "never",
        lambda d: d["Mappings"]["Canaries"]["Canary10Percent5Minutes"].update(Enabled="false"),
    ),
    ("join_and_query_switch_in_parts_and_back", "default", limit("Canary", "Default", "AllAtOnce")),
    ("tables_have_a_limit", "none", drop("StepLog", "OnDemandThroughput")),
    (
        "tables_have_a_limit",
        "the other",
        put({"Ref": "MaxReadUnits"}, "Members", "OnDemandThroughput", "MaxWriteRequestUnits"),
    ),
    ("tables_have_a_limit", "AWS's own", limit("MaxWriteUnits", "Default", 40_000)),
    ("tables_of_sets_can_be_warmed", "one is left out", drop("Members", "WarmThroughput")),
    (
        "tables_of_sets_can_be_warmed",
        "the other units",
        lambda d: properties(d, "StepLog")["WarmThroughput"]["Fn::If"][1]["WriteUnitsPerSecond"].update(
            Ref="WarmReadUnits"
        ),
    ),
    (
        "tables_of_sets_can_be_warmed",
        "another condition",
        lambda d: d["Conditions"].update(IsWarm=d["Conditions"]["IsProtected"]),
    ),
    ("tables_of_sets_can_be_warmed", "charged by default", limit("WarmWriteUnits", "Default", 8_000)),
    (
        "functions_reserve_the_concurrency_of_their_own_parameter",
        "another's parameter",
        reserved("Join", "JoinIsReserved", "QueryReservedConcurrency"),
    ),
    (
        "functions_reserve_the_concurrency_of_their_own_parameter",
        "another's condition",
        reserved("Query", "JoinIsReserved", "QueryReservedConcurrency"),
    ),
    (
        "functions_reserve_the_concurrency_of_their_own_parameter",
        "never",
        drop("Evaluate", "ReservedConcurrentExecutions"),
    ),
    (
        "functions_reserve_the_concurrency_of_their_own_parameter",
        "condition",
        lambda d: d["Conditions"].update(JoinIsReserved=d["Conditions"]["QueryIsReserved"]),
    ),
    (
        "the_key_belongs_to_the_account_alone",
        "another account",
        key_principal({"AWS": "arn:aws:iam::123456789012:root"}),
    ),
    (
        "no_arn_has_a_fixed_partition",
        "of a key",
        key_principal({"AWS": {"Fn::Sub": "arn:aws:iam::${AWS::AccountId}:root"}}),
    ),
    (
        "no_arn_has_a_fixed_partition",
        "of China",
        put({"Fn::Sub": "arn:aws-cn:execute-api:*:*:${Api}/*"}, "JoinInvocation", "SourceArn"),
    ),
    ("the_key_belongs_to_the_account_alone", "everybody", key_principal("*")),
    ("the_key_belongs_to_the_account_alone", "one more", key_statement),
    ("the_key_belongs_to_the_account_alone", "default", drop("Key", "KeyPolicy")),
    ("the_key_belongs_to_the_account_alone", "a week", put(7, "Key", "PendingWindowInDays")),
]


@pytest.mark.parametrize("rule", RULES)
def test_the_template_keeps_the_rule(rule: str) -> None:
    assert list(RULES[rule](read())) == []


@pytest.mark.parametrize("name", ["edge.yaml", "observability.yaml"])
def test_the_other_templates_name_no_partition(name: str) -> None:
    assert list(RULES["no_arn_has_a_fixed_partition"](read(ROOT / "infra" / name))) == []


@pytest.mark.parametrize(
    ("rule", "violation"),
    [pytest.param(rule, change, id=f"{rule}-{name}") for rule, name, change in VIOLATIONS],
)
def test_the_rule_finds_a_planted_violation(rule: str, violation: Mutation) -> None:
    assert list(RULES[rule](mutated(violation)))


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for rule, _, _ in VIOLATIONS} == set(RULES)


def test_a_cron_of_every_third_hour_fires_eight_times_a_day() -> None:
    assert firing_times("cron(3 0/3 * * ? *)") == {h * 3600 + 180 for h in range(0, 24, 3)}
