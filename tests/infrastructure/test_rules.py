"""The templates keep every rule, and every rule finds a planted mistake. What is only added, no sweep can plant."""

from typing import Any

import pytest

from tests.infrastructure.rules import PERMISSIONS, RULES, firing_times, problems
from tests.infrastructure.template import (
    ANONYMOUS,
    CREDENTIALS,
    EDGE,
    GATE,
    OBSERVABILITY,
    REPORTS,
    SPENDING,
    Documents,
    properties,
)

REMOVED = object()
ANOTHER = object()
"""Put into a list beside the others."""
SOMEBODY = {"AWS": "arn:aws:iam::123456789012:root"}

DASHBOARD: str = properties(Documents()[OBSERVABILITY], "Dashboard")["DashboardBody"]["Fn::Sub"]

# By rule: the document and the place, and what is put there.
PLANTED: dict[str, list[tuple[str, str, Any]]] = {
    "nested_stacks_get_what_their_parameters_name": [
        (GATE, "Observability>Parameters>DeadLetters", {"Ref": "Queue"}),
        (GATE, "ReportsStack>Parameters>KeyArn", "alias/aws/secretsmanager"),
        (GATE, "EdgeStack>Parameters>OriginSecret", {"Ref": "SetPepper"}),
    ],
    "everything_that_is_named_exists_and_everything_declared_is_used": [
        (GATE, "Join>Timeout", {"Ref": "Unknown"}),
    ],
    "templates_have_only_resources_of_their_kinds": [
        (REPORTS, "+More", {"Type": "AWS::S3::AccessPoint"}),
    ],
    "parameters_take_valid_values_and_refuse_others": [
        (GATE, "!Parameters>JwtAudience>AllowedPattern", ".*"),
    ],
    "parameters_are_those_of_the_page": [
        (GATE, "!Parameters>Lease>Default", 151),
    ],
    "parameters_have_defaults_limits_and_descriptions": [
        (GATE, "!Parameters>Extra", {"Type": "String", "Default": ""}),
    ],
    "the_default_is_safe": [
        (GATE, "!Parameters>CorsOrigins>Default", "*"),
        (GATE, "!Parameters>BatchAuth>AllowedValues>+", "OPEN"),
    ],
    "rules_refuse_parameters_that_do_not_fit": [
        (GATE, "!Rules>SeparateEdgeIsKnown>RuleCondition", {"Fn::Equals": [1, 2]}),
        (GATE, "!Rules>OpenJoinUrlHasAnEdge", REMOVED),
        (GATE, "!Rules>RelayedJoinsAreAllowed>Assertions>0>Assert", {"Fn::Equals": [1, 1]}),
        (GATE, "!Rules>JoinUrlHasALimit>Assertions>0>Assert", {"Fn::Equals": [{"Ref": "Reservations"}, "ON"]}),
    ],
    "every_function_has_a_log_group_with_retention": [
        (REPORTS, "DecryptLogs>RetentionInDays", 0),
    ],
    "access_logs_tell_no_path_and_no_caller": [
        (GATE, "Stage>AccessLogSettings>Format", '{"path":"$context.path"}'),
    ],
    "nothing_traces_or_logs_requests": [
        (REPORTS, "Aggregate>Tracing", "Active"),
        (GATE, "Join>Environment>Variables>POWERTOOLS_LOGGER_LOG_EVENT", "true"),
    ],
    "queues_hide_keep_and_bury_messages": [
        (GATE, "EvaluateMessages>EventSourceArn", {"Fn::GetAtt": ["DeadLetters", "Arn"]}),
    ],
    "schedules_wake_their_function_and_lose_no_event": [
        (GATE, "EvaluateSchedule>Target>Input", '{"schedule": "true"}'),
        (REPORTS, "SweepSchedule>State", "DISABLED"),
        (GATE, "Query>Events", {"Timer": {"Type": "ScheduleV2"}}),
    ],
    "the_schedule_fires_after_each_step_of_every_period": [
        (GATE, "EvaluateSchedule>ScheduleExpression", "cron(3 * * * ? *)"),
        (GATE, "!Mappings>Periods>3600>Cron", "cron(3 * ? * MON-FRI *)"),
        (GATE, "StatesSchedule>ScheduleExpression", "cron(40 3 1 * ? *)"),
    ],
    "clock_figures_fit_together_for_every_value_allowed": [
        (GATE, "Join>Timeout", 25),
    ],
    "names_are_left_to_cloudformation_and_arns_have_no_partition": [
        (REPORTS, "ReportsBucket>BucketName", "reports"),
    ],
    "roles_trust_one_service_and_have_no_managed_policies": [
        (REPORTS, "StoreRole>ManagedPolicyArns", ["arn:aws:iam::aws:policy/Admin"]),
        (GATE, "JoinRole>AssumeRolePolicyDocument>Statement>0>Principal", SOMEBODY),
    ],
    "roles_allow_exactly_what_the_design_says": [
        (GATE, "Evaluate>FunctionUrlConfig", {"AuthType": "NONE"}),
        (
            REPORTS,
            "DecryptRole>Policies>0>PolicyDocument>Statement>+",
            {
                "Sid": "More",
                "Effect": "Allow",
                "Action": "dynamodb:GetItem",
                "Resource": {"Fn::GetAtt": ["Budgets", "Arn"]},
            },
        ),
        (GATE, "+More", {"Type": "AWS::Serverless::Connector"}),
        (ANONYMOUS, "GatewayRole>Policies>0>PolicyDocument>Statement>0>Resource", "*"),
        (ANONYMOUS, "GatewayRole>Policies>0>PolicyDocument>Statement>1>Resource>+", {"Ref": "Shared"}),
        (GATE, "EvaluateRole>Policies>0>PolicyDocument>Statement>2>Action>+", "s3:DeleteObject"),
    ],
    "a_function_url_is_of_join_if_asked_for": [
        (GATE, "JoinUrl>AuthType", "NONE"),
        (GATE, "JoinUrl#Condition", REMOVED),
        (GATE, "JoinUrlAccess#Condition", "HasJoinUrl"),
        (GATE, "+More", {"Type": "AWS::Lambda::Url", "Properties": {"TargetFunctionArn": {"Ref": "Query"}}}),
    ],
    "callers_call_the_alias": [
        (GATE, "JoinUrl>Qualifier", REMOVED),
        (GATE, "JoinIntegration>IntegrationUri", {"Fn::GetAtt": ["Join", "Arn"]}),
    ],
    "a_version_pins_code_layers_and_parameters": [
        (GATE, "Join>MemorySize", {"Fn::If": ["HasHostedZone", 512, 1024]}),
    ],
    "functions_and_layers_are_built_from_their_folder": [
        (REPORTS, "Store>CodeUri", "../functions/reports/collect/"),
    ],
    "functions_have_the_size_that_was_measured": [
        (REPORTS, "Decrypt>MemorySize", 1024),
        (GATE, "Evaluate>EphemeralStorage>Size", 512),
    ],
    "evaluate_switches_whole_and_first_and_the_others_in_parts": [
        (GATE, "Evaluate>DeploymentPreference", {"Type": "AllAtOnce"}),
    ],
    "snapshots_are_of_functions_that_clients_wait_for_if_asked_for": [
        (ANONYMOUS, "Gateway>SnapStart", REMOVED),
        (GATE, "Evaluate>SnapStart", {"ApplyOn": "PublishedVersions"}),
    ],
    "tables_have_their_keys_forget_and_have_a_limit": [
        (REPORTS, "ReportJobs>StreamSpecification", {"StreamViewType": "NEW_IMAGE"}),
        (GATE, "StepLog>GlobalSecondaryIndexes", []),
    ],
    "state_outlives_the_stack_unless_its_creation_fails": [
        (GATE, "StatesBucket#DeletionPolicy", "Delete"),
    ],
    "keys_belong_to_the_account_and_secrets_are_generated_once": [
        (GATE, "Key>KeyPolicy>Statement>+", {"Principal": SOMEBODY}),
        (GATE, "SetPepper>SecretString", "x"),
    ],
    "buckets_are_closed_encrypted_and_forget": [
        (REPORTS, "WorkBucket>VersioningConfiguration", {"Status": "Enabled"}),
        (REPORTS, "WorkBucketPolicy>PolicyDocument>Statement>1>Action", "s3:PutObject"),
        (GATE, "StatesBucket>LifecycleConfiguration>Rules>+", {"Status": "Enabled", "ExpirationInDays": 31}),
        (GATE, "StatesBucketPolicy>PolicyDocument>Statement>0>Resource>1", REMOVED),
    ],
    "variables_hold_what_their_names_say": [
        (REPORTS, "Rotate>Environment>Variables>KANON_KMS_KEY", ""),
        (ANONYMOUS, "Gateway>Environment>Variables>KANON_RELAY_SECRET", ""),
    ],
    "environments_fit_into_4_kb": [
        (GATE, "!Parameters>Types>MaxLength", 4000),
    ],
    "routes_ask_for_the_authorization_of_the_design": [
        (GATE, "Tokens>JwtConfiguration>Audience", REMOVED),
        (REPORTS, "CreateJobRoute>AuthorizationType", "NONE"),
        (ANONYMOUS, "GatewayRoute>RouteKey", "POST /v1/other"),
    ],
    "only_this_api_may_call_functions_and_waits_for_them": [
        (GATE, "JoinInvocation>SourceArn", {"Fn::Sub": "arn:${AWS::Partition}:execute-api:*:${AWS::AccountId}:*"}),
    ],
    "path_segments_are_legal": [
        (GATE, "JoinRoute>RouteKey", "POST /v1/types/{type}/sets/{set}:join"),
    ],
    "every_route_has_a_rate_and_exists_before_it": [
        (GATE, "Stage#DependsOn", REMOVED),
        (GATE, "Stage>Description", REMOVED),
    ],
    "anonymous_callers_leave_the_account_room": [
        (GATE, "!Parameters>OtherRate>Default", 1000),
    ],
    "queries_leave_the_table_room": [
        (GATE, "!Parameters>AnonymousHashes>Default", 1000),
    ],
    "public_functions_reserve_concurrency_unless_the_account_has_none": [
        (REPORTS, "Collect>ReservedConcurrentExecutions", 100),
    ],
    "an_edge_is_the_only_way_in": [
        (GATE, "!Conditions>HasEdge", {"Fn::Equals": [{"Ref": "Edge"}, "OFF"]}),
        (GATE, "Api>CorsConfiguration", {"AllowOrigins": ["*"]}),
    ],
    "relays_send_a_secret_unless_anybody_may_be_one": [
        (ANONYMOUS, "RelaySecret#Condition", REMOVED),
        (ANONYMOUS, "!Conditions>RelaysAuthenticate", {"Fn::Equals": [{"Ref": "RelayAuth"}, "OPEN"]}),
        (GATE, "!Conditions>HasRelaySecret", {"Fn::Equals": [1, 2]}),
    ],
    "deployments_reach_the_stage": [
        (GATE, "Stage>AutoDeploy", False),
    ],
    "the_edge_stores_nothing_and_is_recognised": [
        (EDGE, "Distribution>DistributionConfig>Logging", {"Bucket": "logs"}),
        (EDGE, "Distribution>DistributionConfig>CacheBehaviors", []),
        (EDGE, "Distribution>DistributionConfig>CustomErrorResponses>2", REMOVED),
    ],
    "jobs_knows_listed_types_where_there_are_lists": [(REPORTS, "!Conditions>HasLists", {"Fn::Equals": [1, 2]})],
    "the_edge_keeps_range_files_of_open_lists_and_nothing_else": [
        (EDGE, "Distribution>DistributionConfig>CacheBehaviors>Fn::If>1>1", REMOVED),
        (EDGE, "!Conditions>HasOpenLists", {"Fn::Equals": [1, 1]}),
        (GATE, "!Conditions>ListsOpen", {"Fn::Equals": [{"Ref": "ListAuth"}, "NONE"]}),
        (EDGE, "Distribution>DistributionConfig>DefaultCacheBehavior>CachePolicyId", {"Ref": "RangesKept"}),
        (EDGE, "RangesKept>CachePolicyConfig>MinTTL", 60),
        (EDGE, "RangesAsked>OriginRequestPolicyConfig>HeadersConfig>Headers>0", "authorization"),
    ],
    "the_edge_limits_each_address_except_signed_servers": [
        (
            EDGE,
            "Firewall>Rules>1>Statement>RateBasedStatement>ScopeDownStatement>NotStatement>Statement>RegexMatchStatement>RegexString",
            "^/v1",
        ),
        (EDGE, "Firewall>Rules>2>Fn::If>1>Statement>RateBasedStatement>AggregateKeyType", "IP"),
        (EDGE, "Firewall>Rules>0>Fn::If>1>Statement>AndStatement>Statements>1", REMOVED),
        (EDGE, "Firewall>Rules>0", {"Name": "relays"}),
    ],
    "spending_is_mailed_before_and_after_half_of_the_limit": [
        (SPENDING, "Spending>Budget>CostFilters", {"Service": ["S3"]}),
    ],
    "everything_that_fails_raises_an_alarm_that_notifies": [
        (REPORTS, "ReportsWaiting>AlarmActions", REMOVED),
        (OBSERVABILITY, "DeadLettersWaiting>Dimensions>0>Value", {"Ref": "Queue"}),
    ],
    "each_alarm_is_raised_by_each_loss_that_it_watches_and_by_nothing_else": [
        (OBSERVABILITY, "EvaluationLate>TreatMissingData", "notBreaching"),
    ],
    "filters_count_the_requests_that_their_metrics_name": [
        (OBSERVABILITY, "RequestsThrottledInLog>FilterPattern", '{ $.status = "500" }'),
    ],
    "the_dashboard_shows_every_function_and_the_bucket_of_lists": [
        (GATE, "+More", {"Type": "AWS::Serverless::Function"}),
        (OBSERVABILITY, "Dashboard>DashboardBody>Fn::Sub", DASHBOARD.replace("listbucket", "other")),
        (OBSERVABILITY, "Dashboard>DashboardBody>Fn::Sub", DASHBOARD.replace("ListsStack", "Other")),
        (OBSERVABILITY, "Dashboard>DashboardBody>Fn::Sub", DASHBOARD.replace('["...", "${Sweep}"], ', "")),
    ],
    "the_dashboard_shows_every_alarm": [
        (OBSERVABILITY, "+More", {"Type": "AWS::CloudWatch::Alarm"}),
    ],
    "outputs_hold_what_their_names_say": [
        (GATE, "!Outputs>QueueUrl>Value", {"Ref": "DeadLetters"}),
    ],
    "outputs_name_what_operators_need": [
        (REPORTS, "!Outputs>WorkKeyArn", REMOVED),
    ],
}


def planted(path: str, place: str, value: Any) -> Documents:
    """The documents with one mistake: ``>`` leads into properties, ``#`` beside them, ``!`` from the top, + adds."""
    documents = Documents()
    node: Any = documents[path]
    if place.startswith("+"):
        node, place = node["Resources"], place[1:]
    elif place.startswith("!"):
        place = place[1:]
    else:
        name = place.replace("#", ">").partition(">")[0]
        node = node["Resources"][name] if "#" in place else node["Resources"][name].setdefault("Properties", {})
        place = place[len(name) + 1 :]
    *way, last = place.split(">")
    for step in way:
        node = node[int(step) if isinstance(node, list) else step]
    if last == "+":
        node.append(value)
    elif value is REMOVED:
        del node[last]
    else:
        node[int(last) if isinstance(node, list) else last] = value
    assert documents != Documents(), "the mistake changes nothing"
    return documents


@pytest.mark.parametrize("name", RULES)
def test_the_templates_keep_the_rule(name: str) -> None:
    assert problems(name, Documents()) == []


@pytest.mark.parametrize(
    ("name", "path", "place", "value"),
    [pytest.param(name, *one, id=f"{name}-{one[1]}") for name, mistakes in PLANTED.items() for one in mistakes],
)
def test_the_rule_finds_a_planted_mistake(name: str, path: str, place: str, value: Any) -> None:
    try:
        found = problems(name, planted(path, place, value))
    except Exception as error:
        found = [repr(error)]
    assert found


def test_every_rule_has_a_planted_mistake() -> None:
    assert {*PLANTED, SUMS, STATES, ACCOUNTS} == set(RULES)


SUMS, STATES = "nobody_sees_sums_and_keys_and_budgets_together", "nobody_writes_and_deletes_states"
ACCOUNTS = "nobody_sees_accounts_and_joins_together"


@pytest.mark.parametrize(
    ("path", "rule", "role", "where", "action"),
    [
        (REPORTS, SUMS, "JobsRole", "WorkBucket/*", "s3:GetObject"),
        (REPORTS, SUMS, "DecryptRole", "Budgets", "dynamodb:GetItem"),
        (REPORTS, SUMS, "DecryptRole", "ReportNoiseKey", "secretsmanager:GetSecretValue"),
        (REPORTS, SUMS, "AggregateRole", "report-keys/*", "secretsmanager:GetSecretValue"),
        (GATE, STATES, "EvaluateRole", "StatesBucket/*", "s3:DeleteObject"),
        (GATE, STATES, "SweepRole", "StatesBucket/*", "s3:PutObject"),
        (GATE, STATES, "QueryRole", "StatesBucket/*", "s3:GetObject"),
        (GATE, STATES, "JoinRole", "StatesKey via s3", "kms:Decrypt"),
        (GATE, ACCOUNTS, "JoinRole", "Accounts", "dynamodb:GetItem"),
        (GATE, ACCOUNTS, "QueryRole", "IssuerKeySecret", "secretsmanager:GetSecretValue"),
        (ANONYMOUS, ACCOUNTS, "GatewayRole", "AccountKey", "secretsmanager:GetSecretValue"),
        (CREDENTIALS, ACCOUNTS, "IssuerRole", "StepLog", "dynamodb:Query"),
    ],
)
def test_the_table_of_permissions_cannot_be_loosened(
    path: str, rule: str, role: str, where: str, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PERMISSIONS[path][role], where, {action})
    assert problems(rule, Documents())


def test_a_cron_of_every_third_hour_fires_eight_times_a_day() -> None:
    assert firing_times("cron(3 0/3 * * ? *)") == {h * 3600 + 180 for h in range(0, 24, 3)}
