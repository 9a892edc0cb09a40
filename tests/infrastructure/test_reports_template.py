"""infra/reports.yaml keeps every rule, every rule detects a change, and without reports the stack is unchanged."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kanon.local.template import Template
from kanon.reports.settings import (
    AggregateSettings,
    CollectSettings,
    DecryptSettings,
    JobsSettings,
    RotateSettings,
    StoreSettings,
)
from kanon.settings import Settings
from tests.infrastructure import reports_rules, template
from tests.infrastructure.reports_rules import FUNCTIONS, RULES, read
from tests.infrastructure.template import Document, functions, of_type, parameter, properties, strings
from tests.infrastructure.test_rules import OFF, ON, Mutation, drop, put, resource, unkept

SETTINGS: dict[str, type[Settings]] = {
    "Collect": CollectSettings,
    "Store": StoreSettings,
    "Jobs": JobsSettings,
    "Decrypt": DecryptSettings,
    "Aggregate": AggregateSettings,
    "Rotate": RotateSettings,
}
PARAMETERS = (
    *("Reports", "EpsilonCap", "DeltaCap", "ReportBuckets", "MapConcurrency", "AllowedOrigins"),
    "ReportsDeletionProtection",
)
"""The parameters of the parent that are for reports alone."""


# --------------------------------------------------------------------------------------------- the rules
@pytest.mark.parametrize("name", RULES)
def test_the_template_keeps_the_rule(name: str) -> None:
    assert list(RULES[name](read())) == []


def statement(document: Document, role: str, sid: str) -> Document:
    """One statement of a role, also under a condition of the template."""
    (found,) = [one for _, one in reports_rules.statements(document, role) if one["Sid"] == sid]
    return found


def permit(role: str, sid: str, action: str) -> Mutation:
    """Allow one action more."""

    def change(document: Document) -> None:
        found = statement(document, role, sid)
        found["Action"] = [*template.as_list(found["Action"]), action]

    return change


def aim(role: str, sid: str, where: object) -> Mutation:
    return lambda document: statement(document, role, sid).update(Resource=where)


def under(role: str, sid: str, condition: object) -> Mutation:
    return lambda document: statement(document, role, sid).update(Condition=condition)


def allow(role: str, action: str, where: object) -> Mutation:
    """A statement more."""

    def change(document: Document) -> None:
        (policy,) = properties(document, role)["Policies"]
        more = {"Sid": "More", "Effect": "Allow", "Action": action, "Resource": where}
        policy["PolicyDocument"]["Statement"].append(more)

    return change


def policy(bucket: str, number: int, **change: object) -> Mutation:
    """Change one statement of a bucket's policy."""
    return lambda document: properties(document, f"{bucket}Policy")["PolicyDocument"]["Statement"][number].update(
        change
    )


def description(word: str) -> Mutation:
    """Name the layer without one parameter."""

    def change(document: Document) -> None:
        (_, values) = properties(document, "ReportsLayer")["Description"]["Fn::Select"]
        values.remove({"Ref": word})

    return change


def arn(name: str) -> Document:
    return {"Fn::GetAtt": [name, "Arn"]}


def inside(name: str) -> Document:
    return {"Fn::Sub": f"${{{name}.Arn}}/*"}


def keys(*names: str) -> Document:
    return {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": list(names)}}


def by_the_common_key(document: Document) -> None:
    (given,) = properties(document, "WorkBucket")["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    given["ServerSideEncryptionByDefault"]["KMSMasterKeyID"] = {"Ref": "KeyArn"}


def trust(document: Document, role: str, principal: object) -> None:
    properties(document, role)["AssumeRolePolicyDocument"]["Statement"][0]["Principal"] = principal


def long_variable(document: Document) -> None:
    for number in range(30):
        properties(document, "Jobs")["Environment"]["Variables"][f"KANON_{number}"] = {"Ref": "Control"}


ROLES, BUDGET = "roles_allow_exactly_what_the_design_says", arn("Budgets")
TABLES, CLOSED = "tables_have_the_keys_of_the_design_and_forget", "buckets_are_closed_encrypted_and_forget"
REFUSE = "buckets_refuse_clear_text_and_the_work_bucket_everybody_else"
STATE, SECRET = "state_outlives_the_stack_unless_its_creation_fails", "the_noise_key_is_generated_once"
TOLD, VERSION = "functions_are_told_exactly_what_they_need", "a_version_pins_code_layers_and_parameters"
QUEUES, MAPPINGS = "queues_hide_and_keep_messages_for_long_enough", "messages_are_taken_as_the_design_says"
SCHEDULES = "schedules_and_lost_events_are_those_of_the_design"
ROUTES, NAMES = "routes_ask_for_the_authorization_of_the_design", "names_are_left_to_cloudformation"
GATEWAY = "only_the_gateway_may_call_collect_and_jobs"
PRIVATE = {"Fn::Sub": reports_rules.SECRETS}
ENCRYPTION = ("BucketEncryption", "ServerSideEncryptionConfiguration")
BY_S3: list[Document] = [{"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
VIA_EC2 = {"StringEquals": {"kms:ViaService": [{"Fn::Sub": "ec2.${AWS::Region}.${AWS::URLSuffix}"}]}}
VIOLATIONS: list[tuple[str, Mutation]] = [
    (ROLES, allow("DecryptRole", "dynamodb:GetItem", BUDGET)),
    (ROLES, allow("DecryptRole", "secretsmanager:GetSecretValue", {"Ref": "ReportNoiseKey"})),
    (ROLES, allow("AggregateRole", "secretsmanager:GetSecretValue", PRIVATE)),
    (ROLES, allow("AggregateRole", "s3:GetObject", inside("ReportsBucket"))),
    (ROLES, allow("JobsRole", "s3:GetObject", inside("WorkBucket"))),
    (ROLES, allow("JobsRole", "secretsmanager:GetSecretValue", {"Ref": "ReportNoiseKey"})),
    (ROLES, allow("JobsRole", "dynamodb:UpdateItem", BUDGET)),
    (ROLES, allow("StoreRole", "s3:GetObject", inside("ReportsBucket"))),
    (ROLES, allow("StoreRole", "s3:PutObject", inside("ReportsBucket"))),
    (ROLES, allow("CollectRole", "sqs:ReceiveMessage", arn("Arrivals"))),
    (ROLES, permit("CollectRole", "ReadPublicKeys", "dynamodb:UpdateItem")),
    (ROLES, under("CollectRole", "ReadPublicKeys", keys("reports#keys", "function#collect"))),
    (ROLES, under("CollectRole", "ReadPublicKeys", {"StringLike": {"dynamodb:LeadingKeys": ["*"]}})),
    (ROLES, under("AggregateRole", "ReadKeyRing", None)),
    (ROLES, permit("RotateRole", "MakeAndDestroyPrivateKeys", "secretsmanager:ListSecrets")),
    (ROLES, under("RotateRole", "WriteEpoch", None)),
    (ROLES, under("AggregateRole", "UseWorkKeyThroughS3", VIA_EC2)),
    (ROLES, under("DecryptRole", "UseWorkKeyThroughS3", None)),
    (ROLES, aim("DecryptRole", "KeepWork", "*")),
    (ROLES, permit("DecryptRole", "KeepWork", "s3:DeleteObject")),
    (ROLES, aim("JobsRole", "ReadOtherReports", "arn:aws:s3:::*")),
    (ROLES, aim("DecryptRole", "ReadPrivateKeys", {"Fn::Sub": reports_rules.SECRETS.replace("report-keys/", "")})),
    (ROLES, resource("Purge", {"Type": "AWS::IAM::Policy"})),
    ("no_arn_has_a_fixed_partition", aim("JobsRole", "ReadOtherReports", "arn:aws:s3:::a/*")),
    ("roles_have_no_managed_policies", put(["arn:aws:iam::aws:policy/Admin"], "StoreRole", "ManagedPolicyArns")),
    ("every_function_has_a_role_of_its_own", put(arn("JobsRole"), "Collect", "Role")),
    (GATEWAY, put("*", "CollectInvocation", "SourceArn")),
    (GATEWAY, put({"Ref": "Decrypt.Alias"}, "JobsInvocation", "FunctionName")),
    (GATEWAY, put({"AuthType": "NONE"}, "Store", "FunctionUrlConfig")),
    (TABLES, put({"PointInTimeRecoveryEnabled": True}, "ReportJobs", "PointInTimeRecoverySpecification")),
    (TABLES, put({"StreamViewType": "NEW_IMAGE"}, "ReportJobs", "StreamSpecification")),
    (TABLES, put({"Enabled": True}, "Budgets", "ContributorInsightsSpecification")),
    (TABLES, drop("Budgets", "TimeToLiveSpecification")),
    (TABLES, put({"SSEEnabled": False}, "Budgets", "SSESpecification")),
    (TABLES, put(ON, "Budgets", "DeletionProtectionEnabled")),
    (TABLES, drop("ReportJobs", "OnDemandThroughput")),
    (CLOSED, put(OFF, "WorkBucket", "PublicAccessBlockConfiguration", "BlockPublicAcls")),
    (CLOSED, put({"Status": "Enabled"}, "WorkBucket", "VersioningConfiguration")),
    (CLOSED, put({"Rules": [{"ObjectOwnership": "ObjectWriter"}]}, "ReportsBucket", "OwnershipControls")),
    (CLOSED, put(BY_S3, "SummariesBucket", *ENCRYPTION)),
    (CLOSED, by_the_common_key),
    (CLOSED, lambda document: properties(document, "ReportsBucket")["LifecycleConfiguration"]["Rules"].pop()),
    (CLOSED, put({"DestinationBucketName": "logs"}, "WorkBucket", "LoggingConfiguration")),
    (REFUSE, policy("ReportsBucket", 0, Effect="Allow")),
    (REFUSE, policy("SummariesBucket", 0, Condition={"Bool": {"aws:SecureTransport": "true"}})),
    (REFUSE, policy("WorkBucket", 1, Action="s3:PutObject")),
    (REFUSE, policy("WorkBucket", 1, Condition={"ArnNotEquals": {"aws:PrincipalArn": [arn("JobsRole")]}})),
    (REFUSE, lambda document: document["Resources"].pop("SummariesBucketPolicy")),
    (STATE, unkept("Budgets", "DeletionPolicy")),
    (STATE, unkept("WorkBucket", "UpdateReplacePolicy")),
    (STATE, unkept("ReportNoiseKey", "DeletionPolicy")),
    (STATE, put(OFF, "WorkKey", "EnableKeyRotation")),
    ("the_key_belongs_to_the_account_alone", put({"Statement": []}, "WorkKey", "KeyPolicy")),
    (SECRET, put(65, "ReportNoiseKey", "GenerateSecretString", "PasswordLength")),
    (SECRET, put("arn", "ReportNoiseKey", "KmsKeyId")),
    (TOLD, put({"Ref": "SummariesBucket"}, "Decrypt", "Environment", "Variables", "KANON_WORK_BUCKET")),
    (TOLD, put({"Ref": "DeltaCap"}, "Jobs", "Environment", "Variables", "KANON_EPSILON_CAP")),
    (TOLD, put({"Ref": "Budgets"}, "Decrypt", "Environment", "Variables", "KANON_BUDGETS_TABLE")),
    (TOLD, drop("Collect", "Environment", "Variables", "KANON_EDGE_SECRET")),
    ("nothing_traces", put("Active", "Aggregate", "Tracing")),
    (VERSION, description("EpsilonCap")),
    (VERSION, description("Shared")),
    (VERSION, put([{"Ref": "ReportsLayer"}], "Store", "Layers")),
    (VERSION, drop("Rotate", "VersionDescription")),
    (QUEUES, put(900, "Maps", "VisibilityTimeout")),
    (QUEUES, put(360, "Arrivals", "VisibilityTimeout")),
    (QUEUES, put(345600, "StagesDead", "MessageRetentionPeriod")),
    (QUEUES, drop("Maps", "RedrivePolicy")),
    (QUEUES, put(OFF, "Arrivals", "SqsManagedSseEnabled")),
    (MAPPINGS, put(10, "MapsMessages", "BatchSize")),
    (MAPPINGS, drop("StagesMessages", "ScalingConfig")),
    (MAPPINGS, drop("ArrivalsMessages", "FunctionResponseTypes")),
    (MAPPINGS, drop("Aggregate", "RecursiveLoop")),
    (SCHEDULES, drop("SweepSchedule", "Target", "DeadLetterConfig")),
    (SCHEDULES, put("rate(1 day)", "RotateSchedule", "ScheduleExpression")),
    (SCHEDULES, drop("RotateFailures", "DestinationConfig")),
    (SCHEDULES, lambda document: document["Resources"].pop("AggregateFailures")),
    ("schedules_have_no_fixed_names_and_no_flexible_window", put("sweep", "SweepSchedule", "Name")),
    ("callers_call_the_alias", put(arn("Decrypt"), "MapsMessages", "FunctionName")),
    ("every_function_has_a_log_group_with_retention", put(0, "DecryptLogs", "RetentionInDays")),
    (ROUTES, put("NONE", "CreateJobRoute", "AuthorizationType")),
    (ROUTES, put("AWS_IAM", "ReportRoute", "AuthorizationType")),
    (ROUTES, put({"Fn::Sub": "integrations/${CollectIntegration}"}, "BudgetRoute", "Target")),
    (ROUTES, put(30_000, "Jobs", "Timeout")),
    ("path_segments_are_legal", put("POST /v1/jobs/{id}:publish", "PublishRoute", "RouteKey")),
    (NAMES, put("reports", "ReportsBucket", "BucketName")),
    (NAMES, put("/kanon/collect", "CollectLogs", "LogGroupName")),
    ("roles_trust_one_service", lambda document: trust(document, "StoreRole", {"AWS": "*"})),
    ("environments_fit_into_4_kb", long_variable),
]


@pytest.mark.parametrize(("name", "change"), VIOLATIONS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(VIOLATIONS)])
def test_a_planted_violation_is_found(name: str, change: Callable[[Document], object]) -> None:
    document = read()
    change(document)
    assert document != read(), "the mutation changed nothing"
    assert list(RULES[name](document))


def test_every_rule_has_a_violation() -> None:
    assert {name for name, _ in VIOLATIONS} | {"nobody_sees_sums_and_keys_and_budgets_together"} == set(RULES)


@pytest.mark.parametrize(
    ("role", "where"),
    [("JobsRole", "WorkBucket/*"), ("DecryptRole", "Budgets"), ("DecryptRole", "ReportNoiseKey")],
)
def test_the_table_of_permissions_cannot_be_loosened(role: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reports_rules.PERMISSIONS[role], where, {"s3:GetObject"})
    assert list(reports_rules.nobody_sees_sums_and_keys_and_budgets_together(read()))


def test_aggregate_cannot_be_given_private_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reports_rules.PERMISSIONS["AggregateRole"], "report-keys/*", reports_rules.READ_SECRET)
    assert list(reports_rules.nobody_sees_sums_and_keys_and_budgets_together(read()))


# ---------------------------------------------------------------------------------- the parent's template
def without_reports(document: Document) -> Document:
    """The template as if there were no reports."""
    made = copy.deepcopy(document)
    del made["Resources"]["ReportsStack"]
    del made["Conditions"]["HasReports"]
    for name in PARAMETERS:
        del made["Parameters"][name]
    made["Outputs"] = {name: one for name, one in made["Outputs"].items() if one.get("Condition") != "HasReports"}
    return made


def resolved(document: Document, parameters: dict[str, str]) -> dict[str, Any]:
    """The resources that exist, with every intrinsic function that the parameters decide."""
    types = {one["Type"] for one in document["Resources"].values()}
    found = Template(unselected(document), parameters, "kanon", directory=template.ROOT).resources(*types)
    attributes = ("DependsOn", "DeletionPolicy", "UpdateReplacePolicy", "Metadata")
    return {
        one.logical_id: [one.properties, {word: document["Resources"][one.logical_id].get(word) for word in attributes}]
        for one in found
    }


def unselected(node: Any) -> Any:
    """A document without Fn::Select: what is left out of a list matters, too, in the description of the layer."""
    if isinstance(node, dict):
        return {name.replace("Fn::Select", "Select"): unselected(value) for name, value in node.items()}
    return [unselected(value) for value in node] if isinstance(node, list) else node


VARIANTS: list[dict[str, str]] = [
    {},
    {"DomainName": "a.example", "CertificateArn": "arn:aws:acm:us-east-1:123456789012:certificate/1", "Edge": "ON"},
    {"AlarmEmail": "a@example.org", "JoinAuth": "OPEN", "CorsOrigins": "*", "DeletionProtection": "ON"},
]


@pytest.mark.parametrize("parameters", VARIANTS)
def test_without_reports_every_resource_is_unchanged(parameters: dict[str, str]) -> None:
    document = template.read()
    off = resolved(document, parameters | {"Reports": "OFF"})
    assert off == resolved(without_reports(document), parameters)
    assert len(off) > 40


@pytest.mark.parametrize("parameters", VARIANTS)
def test_reports_add_one_resource_and_change_no_other(parameters: dict[str, str]) -> None:
    """No parameter of reports changes a resource of the gate or the layer's name."""
    document = template.read()
    given = {
        "EpsilonCap": "10",
        "DeltaCap": "1e-8",
        "ReportBuckets": "one,two",
        "MapConcurrency": "7",
        "AllowedOrigins": "https://a.example",
        "ReportsDeletionProtection": "ON",
    }
    assert {*given, "Reports"} == set(PARAMETERS)
    on = resolved(document, parameters | given | {"Reports": "ON"})
    del on["ReportsStack"]
    assert on == resolved(without_reports(document), parameters)


def named_by_the_gate(document: Document) -> set[str]:
    """What the resources and conditions of the gate name of reports."""
    kept = without_reports(document)
    words = re.findall(r"\w+", json.dumps([kept["Resources"], kept["Conditions"]]))
    return {"ReportsStack", "HasReports", *PARAMETERS} & set(words)


def test_the_gate_names_nothing_of_reports() -> None:
    assert named_by_the_gate(template.read()) == set()


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("Join", lambda join: join["Properties"]["Environment"]["Variables"].update(X={"Ref": "EpsilonCap"})),
        ("Shared", lambda shared: shared["Properties"]["Description"]["Fn::Select"][1].append({"Ref": "Reports"})),
        ("Queue", lambda queue: queue["Properties"].update(VisibilityTimeout={"Fn::If": ["HasReports", 1, 720]})),
        ("Query", lambda query: query.update(DependsOn=["ReportsStack"])),
    ],
)
def test_a_resource_of_the_gate_that_depends_on_reports_is_found(name: str, spoil: Mutation) -> None:
    spoiled = template.read()
    spoil(spoiled["Resources"][name])
    assert len(named_by_the_gate(spoiled)) == 1
    with_reports = resolved(spoiled, {"Reports": "ON"})
    expected = resolved(without_reports(template.read()), {})
    assert {one for one in expected if with_reports[one] != expected[one]} == {name}


def test_reports_are_off_by_default() -> None:
    assert parameter(template.read(), "Reports")["Default"] == "OFF"
    assert template.read()["Conditions"]["HasReports"] == {"Fn::Equals": [{"Ref": "Reports"}, "ON"]}
    assert template.read()["Resources"]["ReportsStack"]["Condition"] == "HasReports"
    assert parameter(template.read(), "ReportsDeletionProtection")["Default"] == "OFF"


def test_the_stack_gives_reports_every_parameter_by_its_name() -> None:
    given = properties(template.read(), "ReportsStack")["Parameters"]
    assert set(given) == set(read()["Parameters"])
    renamed = {
        "Deployment": {"Ref": "AWS::StackId"},
        "Name": {"Ref": "AWS::StackName"},
        "ControlArn": {"Fn::GetAtt": ["Control", "Arn"]},
        "KeyArn": {"Fn::GetAtt": ["Key", "Arn"]},
        "ApiId": {"Ref": "Api"},
        "EdgeSecret": {"Fn::If": ["HasEdge", {"Ref": "EdgeSecret"}, ""]},
        "LostEventsArn": {"Fn::GetAtt": ["LostEvents", "Arn"]},
        "AlarmTopic": {"Fn::If": ["HasAlarmTopic", {"Fn::GetAtt": ["Observability", "Outputs.Topic"]}, ""]},
        "DeletionProtection": {"Ref": "ReportsDeletionProtection"},
    }
    assert given == {name: {"Ref": name} for name in given} | renamed
    assert not [name for name, one in read()["Parameters"].items() if "Default" in one]


def test_the_stack_has_every_output_of_reports() -> None:
    told = {name: one for name, one in template.read()["Outputs"].items() if one.get("Condition") == "HasReports"}
    assert set(told) == set(read()["Outputs"])
    for name, one in told.items():
        assert one["Value"] == {"Fn::GetAtt": ["ReportsStack", f"Outputs.{name}"]}


def test_the_roles_name_each_of_the_other_buckets() -> None:
    given = dict.fromkeys(read()["Parameters"], "1") | {"ReportBuckets": "one,two.three"}
    document = Template(read(), given, "kanon")
    listed = document.resolve(statement(read(), "JobsRole", "ListOtherReports")["Resource"])
    opened = document.resolve(statement(read(), "JobsRole", "ReadOtherReports")["Resource"])
    assert listed == ["arn:*:s3:::one", "arn:*:s3:::two.three"]
    assert opened == ["arn:*:s3:::one/*", "arn:*:s3:::two.three/*"]


# ----------------------------------------------------------------------------------------------- settings
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_gets_exactly_the_variables_it_reads(function: str) -> None:
    variables = properties(read(), function)["Environment"]["Variables"]
    told = {name for name in variables if name.startswith("KANON_")}
    assert told == {f"KANON_{name.upper()}" for name in SETTINGS[function].model_fields}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_accepts_its_environment(function: str) -> None:
    given = {name: str(parameter(template.read(), name)["Default"]) for name in PARAMETERS}
    given |= {name: "1" for name in read()["Parameters"] if name not in given}
    document = Template(read(), {name: given[name] for name in read()["Parameters"]}, "kanon")
    variables = {
        name: str(document.resolve(value)).lower() if "Bucket" in str(value) else str(document.resolve(value))
        for name, value in properties(read(), function)["Environment"]["Variables"].items()
    }
    assert SETTINGS[function].from_environment(variables)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_code_of_a_function_is_where_the_template_looks_for_it(function: str) -> None:
    given = functions(read())[function]
    module, _, name = given["Handler"].partition(".")
    source = (reports_rules.PATH.parent / given["CodeUri"] / f"{module}.py").resolve()
    assert source == Path(template.ROOT, "functions", "reports", function.lower(), "app.py")
    assert f"\ndef {name}(event" in source.read_text()


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("DeltaCap", ["1e-7", "1.5e-9", "0.0000001"], ["0", "1", "1e-7 ", "one", "-1e-7"]),
        ("ReportBuckets", ["", "one", "one,two.three"], ["One", "one, two", "arn:aws:s3:::one", "o"]),
        ("AllowedOrigins", ["*", "https://a.example,https://b.example"], ["", "a.example", "https://a.example/"]),
        ("EpsilonCap", ["0.001", "10", "64"], ["0", "65"]),
        ("MapConcurrency", ["2", "1000"], ["1", "1001"]),
    ],
)
def test_a_parameter_accepts_valid_and_refuses_invalid_values(name: str, taken: list[str], refused: list[str]) -> None:
    for value in taken:
        assert Template(template.read(), {name: value}, "kanon").parameters[name] == value
    for value in refused:
        with pytest.raises(ValueError, match=name):
            Template(template.read(), {name: value}, "kanon")


def test_no_text_of_the_template_names_an_account_or_a_region() -> None:
    found = [text for text in strings(read()["Resources"]) if "123456789012" in text or "us-east-1" in text]
    assert found == []


def test_alarms_exist_only_if_asked_for() -> None:
    alarms = of_type(read(), "AWS::CloudWatch::Alarm")
    assert len(alarms) == 6
    assert {alarm["Condition"] for alarm in alarms.values()} == {"HasAlarms"}
    assert json.dumps(alarms).count("AlarmTopic") == 4 * len(alarms)
