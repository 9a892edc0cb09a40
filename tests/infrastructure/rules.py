"""The rules for the templates. Each yields what a template does wrong.

Most rules that take several documents together look at the stack as CloudFormation resolves it. `test_sweep.py` edits
every value of every template: some rule must see it.
"""

import json
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Any, NamedTuple

from kanon.gate.issuer_settings import IssuerSettings
from kanon.gate.settings import (
    EvaluateSettings,
    JoinSettings,
    ListSettings,
    QuerySettings,
    ReleasedSettings,
    StatesSettings,
)
from kanon.gateway.settings import GatewaySettings
from kanon.http.origin import HEADER, RELAY_HEADER
from kanon.local.template import ACCOUNT, STACK, TemplateError
from kanon.local.template import _check as check_parameter
from kanon.reports.settings import (
    AggregateSettings,
    CollectSettings,
    DecryptSettings,
    JobsSettings,
    RotateSettings,
    StoreSettings,
)
from kanon.settings import Settings
from tests.infrastructure import cloudwatch, pages
from tests.infrastructure.template import (
    ANONYMOUS,
    CREDENTIALS,
    EDGE,
    GATE,
    LISTS,
    OBSERVABILITY,
    PATHS,
    REPORTS,
    SPENDING,
    WITH_FUNCTIONS,
    Deployed,
    Document,
    Documents,
    as_list,
    environment,
    functions,
    of_type,
    parameter,
    properties,
    strings,
    table_key,
    target,
)
from tests.unit.test_cors import NO_ORIGINS, ORIGINS

Problems = Iterator[str]
Rule = Callable[[Any], Problems]


class Entry(NamedTuple):
    """A rule, the documents that it sees, and whether it takes them together."""

    paths: tuple[str, ...]
    together: bool
    check: Rule


RULES: dict[str, Entry] = {}


def rule(*paths: str, together: bool = False) -> Callable[[Rule], Rule]:
    """Enter a rule of each of these documents into the list, or one of all of them together."""

    def enter(check: Rule) -> Rule:
        RULES[check.__name__] = Entry(paths, together, check)
        return check

    return enter


def checks(path: str, documents: Documents) -> list[partial[Problems]]:
    """The rules that see one of the documents; those first that look at nothing else."""
    seen = sorted((entry for entry in RULES.values() if path in entry.paths), key=lambda entry: entry.together)
    return [partial(entry.check, documents if entry.together else documents[path]) for entry in seen]


def problems(name: str, documents: Documents) -> list[str]:
    """What a rule finds."""
    paths, together, check = RULES[name]
    return [found for given in ([documents] if together else map(documents.get, paths)) for found in check(given)]


# ------------------------------------------------------------------------------------------- parameters
CERTIFICATE = f"arn:aws:acm:us-east-1:{ACCOUNT}:certificate/1"
DOMAIN = {"DomainName": "a.example", "CertificateArn": CERTIFICATE, "HostedZoneId": "Z1"}
TOKENS = {"JwtIssuer": "https://issuer.example", "JwtAudience": "kanon"}
LISTER_SECRET = f"arn:aws:secretsmanager:us-east-1:{ACCOUNT}:secret:kanon/a/lister-key-AbCdEf"
LISTER = {"ListerKey": "k" * 43, "ListerKeySecret": LISTER_SECRET}
ISSUER_SECRET = f"arn:aws:secretsmanager:us-east-1:{ACCOUNT}:secret:kanon/a/issuer-key-1-AbCdEf"
VERIFIER = "arn:aws:lambda:us-east-1:000000000000:function:verifier:live"
ISSUER = {"IssuerKeySecret": ISSUER_SECRET}
MAIL = {"AlarmEmail": "a@b.example"}
SEPARATE = {**DOMAIN, "Edge": "SEPARATE", "EdgeDomainName": "d1.cloudfront.net"}
STACKS: dict[str, dict[str, str]] = {
    "defaults": {},
    "open": {"JoinAuth": "OPEN", "HostedZoneId": "Z1", "CorsOrigins": "https://a.example,https://b.example", **MAIL},
    "tokens": {"JoinAuth": "JWT", "BatchAuth": "IAM", **TOKENS, **DOMAIN},
    "batches by token": {"BatchAuth": "JWT", **TOKENS, "Canary": "AllAtOnce", "Alarms": "OFF"},
    "edge": {**DOMAIN, "Edge": "ON", "Reports": "ON", **MAIL, "ReportBuckets": "one,two.three"},
    "separate edge": {**SEPARATE, "HostedZoneId": "", "Reports": "ON"},
    "edge elsewhere": SEPARATE,
    "join url": {"JoinEndpoint": "FUNCTION_URL", "CorsOrigins": "https://a.example"},
    "open join url": {**DOMAIN, "Edge": "ON", "JoinAuth": "OPEN", "JoinEndpoint": "FUNCTION_URL", "EdgeJoinRate": "77"},
    "open join url elsewhere": {**SEPARATE, "JoinAuth": "OPEN", "JoinEndpoint": "FUNCTION_URL"},
    "edge without a domain": {"Edge": "ON", "Reports": "ON"},
    "reports": {"Reports": "ON", **MAIL},
    "reports without alarms": {
        "Reports": "ON",
        "Alarms": "OFF",
        "WarmReadUnits": "13000",
        **MAIL,
        "ReportsDeletionProtection": "ON",
    },
    "gateway": {"Gateway": "ON", **MAIL},
    "gateway of anybody": {**DOMAIN, "Edge": "ON", "Gateway": "ON", "RelayAuth": "OPEN", "JoinAuth": "OPEN"},
    "gateway behind an edge": {**DOMAIN, "Edge": "ON", "Gateway": "ON", "Reports": "ON", "SnapStart": "ON"},
    "listed types": LISTER,
    "listed types and open joins": {**LISTER, "JoinAuth": "OPEN", "ReviewSteps": "24"},
    "lists by token": {**LISTER, "ListAuth": "JWT", **TOKENS, **DOMAIN, "Edge": "ON", **MAIL},
    "listed types and reports": {**LISTER, "Reports": "ON"},
    "lists for anybody": {**LISTER, "ListAuth": "NONE", "ReviewSteps": "1", "ListDays": "7"},
    "credentials": {**ISSUER, "Gateway": "ON", **MAIL},
    "credentials by token": {**ISSUER, "JoinAuth": "OPEN", "EnrolAuth": "JWT", **TOKENS, **DOMAIN, "Edge": "ON"},
    "credentials by verifier": {**ISSUER, "Gateway": "ON", "EnrolAuth": "VERIFIER", "EnrolVerifier": VERIFIER},
    "credentials and listed types": {**ISSUER, **LISTER, "Gateway": "ON", "AccountsDeletionProtection": "ON"},
    "everything else": {
        "DeletionProtection": "ON",
        "SnapStart": "ON",
        "Reservations": "OFF",
        "WarmWriteUnits": "5000",
        "EvaluateReservedConcurrency": "20",
        "Reports": "ON",
    },
}
"""Parameters of stacks that the rules look at."""
EVERYTHING = {"Reports": "ON", "Gateway": "ON", **LISTER, **ISSUER}
"""Parameters of a stack with all functions."""

JOIN_URL = {"Fn::GetAtt": ["JoinUrl", "FunctionUrl"]}
GIVEN: dict[str, Document] = {
    "Deployment": {"Ref": "AWS::StackName"},
    "Name": {"Ref": "AWS::StackName"},
    "Namespace": {"Fn::Sub": "KANON/${AWS::StackName}"},
    "Origin": {"Fn::GetAtt": ["Domain", "RegionalDomainName"]},
    "OriginSecret": {"Ref": "EdgeSecret"},
    "OpenLists": {"Fn::If": ["ListsOpen", "ON", "OFF"]},
    "Words": {"Fn::Join": [" AND ", {"Fn::Split": ["-", {"Ref": "AWS::StackName"}]}]},
    "AddressRate": {"Ref": "EdgeAddressRate"},
    "JoinOrigin": {"Fn::If": ["HasJoinUrl", {"Fn::Select": [2, {"Fn::Split": ["/", JOIN_URL]}]}, ""]},
    "JoinRate": {"Ref": "EdgeJoinRate"},
    "RelaySecret": {"Fn::If": ["HasRelaySecret", {"Fn::GetAtt": ["AnonymousStack", "Outputs.RelaySecretArn"]}, ""]},
    "IssuerFunction": {"Fn::If": ["HasIssuerKey", {"Fn::GetAtt": ["CredentialsStack", "Outputs.IssuerFunction"]}, ""]},
    "JoinFunction": {"Ref": "Join.Alias"},
    "QueryFunction": {"Ref": "Query.Alias"},
    "ApiId": {"Ref": "Api"},
    "Tokens": {"Fn::If": ["HasListTokens", {"Ref": "Tokens"}, ""]},
    "ListBucket": {"Fn::If": ["HasListerKey", {"Fn::GetAtt": ["ListsStack", "Outputs.ListBucket"]}, ""]},
    "EdgeSecret": {"Fn::If": ["HasEdge", {"Ref": "EdgeSecret"}, ""]},
    "AlarmTopic": {"Fn::If": ["HasAlarmTopic", {"Fn::GetAtt": ["Observability", "Outputs.Topic"]}, ""]},
    "DeletionProtection": {"Ref": "ReportsDeletionProtection"},
    **{
        name: {"Fn::If": ["HasReservations", {"Ref": name}, 0]}
        for name in ("CollectReservedConcurrency", "JobsReservedConcurrency", "GatewayReservedConcurrency")
    },
}
"""Parameters of nested stacks that are not what their name says in the parent."""
OF_CREDENTIALS: dict[str, Document] = {
    "Tokens": {"Fn::If": ["EnrolsByToken", {"Ref": "Tokens"}, ""]},
    "DeletionProtection": {"Ref": "AccountsDeletionProtection"},
}
"""The same of one stack."""


@rule(*WITH_FUNCTIONS, OBSERVABILITY, EDGE, together=True)
def nested_stacks_get_what_their_parameters_name(documents: Documents) -> Problems:
    """Parameter X is the parameter, table or function X of the parent; XArn its ARN; a queue is given by its name."""
    parent = documents[GATE]
    for name, stack in of_type(parent, "AWS::CloudFormation::Stack").items():
        given, declared = stack["Properties"]["Parameters"], documents[stack["Properties"]["TemplateURL"]]["Parameters"]
        if set(given) != set(declared):
            yield f"{name} is given {set(given) ^ set(declared)}"
        for word, value in given.items():
            if word == "Deployment" and name in ("ReportsStack", "ListsStack", "CredentialsStack"):
                expected: Any = {"Ref": "AWS::StackId"}
            elif name == "CredentialsStack" and word in OF_CREDENTIALS:
                expected = OF_CREDENTIALS[word]
            elif word in GIVEN and (
                name in ("ReportsStack", "AnonymousStack", "ListsStack", "CredentialsStack")
                or word not in parent["Parameters"]
            ):
                expected = GIVEN[word]
            elif word in of_type(parent, "AWS::SQS::Queue"):
                expected = {"Fn::GetAtt": [word, "QueueName"]}
            elif word in parent["Parameters"] or word in parent["Resources"]:
                expected = {"Ref": word}
            else:
                expected = {"Fn::GetAtt": [word.removesuffix("Arn"), "Arn"]}
            if value != expected:
                yield f"{name} is given {value} as {word}"
        if {(stack.get(word)) for word in ("DeletionPolicy", "UpdateReplacePolicy")} != {"Delete"}:
            yield f"{name} is kept without the stack"


NAMES = {
    "name": r'"(?:Ref": "|Fn::GetAtt": \[")([\w:]+)|\$\{([\w:]+)',
    "Condition": r'"(?:Condition": "|Fn::If": \[")(\w+)',
    "Mapping": r'"Fn::FindInMap": \["(\w+)',
}
"""How a template names resources and parameters, conditions and mappings."""
VERSION = {"AWSTemplateFormatVersion": "2010-09-09", "Transform": "AWS::Serverless-2016-10-31"}
TYPES = {
    GATE: "ApiGatewayV2::Api ApiGatewayV2::ApiMapping ApiGatewayV2::Authorizer ApiGatewayV2::DomainName "
    "ApiGatewayV2::Integration ApiGatewayV2::Route ApiGatewayV2::Stage CloudFormation::Stack CloudWatch::Alarm "
    "DynamoDB::Table IAM::Role KMS::Key Lambda::EventInvokeConfig Lambda::EventSourceMapping Lambda::Permission "
    "Lambda::Url Logs::LogGroup Route53::RecordSet S3::Bucket S3::BucketPolicy SQS::Queue Scheduler::Schedule "
    "SecretsManager::Secret Serverless::Function Serverless::LayerVersion",
    REPORTS: "ApiGatewayV2::Integration ApiGatewayV2::Route CloudWatch::Alarm DynamoDB::Table IAM::Role KMS::Key "
    "Lambda::EventInvokeConfig Lambda::EventSourceMapping Lambda::Permission Logs::LogGroup S3::Bucket "
    "S3::BucketPolicy SQS::Queue Scheduler::Schedule SecretsManager::Secret Serverless::Function "
    "Serverless::LayerVersion",
    LISTS: "ApiGatewayV2::Integration ApiGatewayV2::Route CloudWatch::Alarm IAM::Role Lambda::EventInvokeConfig "
    "Lambda::Permission Logs::LogGroup S3::Bucket S3::BucketPolicy Scheduler::Schedule Serverless::Function "
    "Serverless::LayerVersion",
    CREDENTIALS: "ApiGatewayV2::Integration ApiGatewayV2::Route CloudWatch::Alarm DynamoDB::Table IAM::Role "
    "Lambda::EventInvokeConfig Lambda::Permission Logs::LogGroup Scheduler::Schedule SecretsManager::Secret "
    "Serverless::Function",
    ANONYMOUS: "ApiGatewayV2::Integration ApiGatewayV2::Route CloudWatch::Alarm IAM::Role Lambda::Permission "
    "Logs::LogGroup SecretsManager::Secret Serverless::Function Serverless::LayerVersion",
    OBSERVABILITY: "CloudWatch::Alarm CloudWatch::Dashboard Logs::MetricFilter SNS::Topic",
    EDGE: "CloudFront::CachePolicy CloudFront::Distribution CloudFront::OriginRequestPolicy WAFv2::WebACL",
    SPENDING: "Budgets::Budget",
}
"""The resources that a template may have. Others could copy rows, keep requests or grant permissions."""


@rule(*PATHS)
def everything_that_is_named_exists_and_everything_declared_is_used(document: Document) -> Problems:
    text = json.dumps(document)
    used = {kind: {"".join(one) for one in re.findall(form, text)} for kind, form in NAMES.items()}
    parameters = document.get("Parameters", {})
    known = {*parameters, *document["Resources"], *(name for name in used["name"] if name.startswith("AWS::"))}
    needed = {one for body in document["Resources"].values() for one in as_list(body.get("DependsOn", []))}
    unknown = (used["name"] - known) | (set(parameters) - used["name"])
    unknown |= needed - known - {f"{name}Aliaslive" for name in functions(document)}
    unknown |= used["Condition"] ^ set(document.get("Conditions", {}))
    unknown |= used["Mapping"] ^ set(document.get("Mappings", {}))
    if unknown:
        yield f"{', '.join(sorted(unknown))} does not exist, or has no effect"
    for name, one in parameters.items():
        if one.get("Type") not in ("String", "Number"):
            yield f"{name} has the type {one.get('Type')}"


@rule(*PATHS, together=True)
def templates_have_only_resources_of_their_kinds(documents: Documents) -> Problems:
    for path, document in documents.items():
        types = {body["Type"] for body in document["Resources"].values()}
        if types != {f"AWS::{name}" for name in TYPES[path].split()}:
            yield f"{path} has {types}"
        version = {word: document[word] for word in VERSION if word in document}
        if version != (VERSION if path in WITH_FUNCTIONS else {"AWSTemplateFormatVersion": "2010-09-09"}):
            yield f"{path} is of the version {version}"


@rule(GATE)
def parameters_have_defaults_limits_and_descriptions(document: Document) -> Problems:
    for name, given in document["Parameters"].items():
        if "Default" not in given or not given.get("Description"):
            yield f"{name} has no default or no description"
        if "AllowedValues" in given and given["Default"] not in given["AllowedValues"]:
            yield f"the default of {name} is not allowed"
        if not {"AllowedValues", "AllowedPattern", "MaxLength", "MinValue"} & set(given):
            yield f"{name} takes any value"
        least, most = given.get("MinValue"), given.get("MaxValue", given["Default"])
        if least is not None and not least <= given["Default"] <= most:
            yield f"the default of {name} is out of range"


VALUES = {
    "Types": (["{}"], [""]),
    "Slots": (
        ["4", '[{"slots":16,"partitions":16,"from_step":0}]', '[{"slots":1,"from_step":0},{"slots":2,"from_step":9}]'],
        ["", "3", "512", "[]", '[{"slots": 1,"from_step":0}]', '[{"slots":1}]', '{"slots":1,"from_step":0}', "16x"],
    ),
    "NoiseKeys": (["[]"], ["["]),
    "LogGenerations": (["[]"], ["["]),
    "JwtIssuer": (["", "https://a.example/b"], ["http://a.example", "https://a.example/", "a", "https://a.example/b/"]),
    "JwtAudience": (["", "kanon"], ["a b", "a,b"]),
    "EdgeDomainName": (["", "d1.cloudfront.net"], ["d1.example.net", "x.d1.cloudfront.net", "d1.cloudfront.netx"]),
    "CorsOrigins": (
        ["", "*", "https://a.example,http://b.example", *ORIGINS],
        [
            *("https://a.example, https://b.example", "https://a.example,*", "**", ","),
            *("https://a.example,", ",https://a.example", "https://a.example,,https://b.example"),
            *NO_ORIGINS,
        ],
    ),
    "DomainName": (["", "a.example"], ["https://a.example", "A.example", "a.example/"]),
    "CertificateArn": (["", CERTIFICATE], ["arn:aws:acm:us-east-1:1:certificate/1", "x", f"x{CERTIFICATE}"]),
    "HostedZoneId": (["", "Z1"], ["z1", "/hostedzone/Z1"]),
    "EpsilonCap": (["0.001", "10", "64"], ["0", "65"]),
    "DeltaCap": (["1e-7", "1.5e-9", "0.0000001"], ["0", "1", "1e-7 ", "one", "-1e-7", "1e-7x"]),
    "ReportBuckets": (["", "one", "one,two.three"], ["One", "one, two", "arn:aws:s3:::one", "o"]),
    "AllowedOrigins": (["*", "https://a.example,https://b.example"], ["", "a.example", "https://a.example/", "**"]),
    "MapConcurrency": (["2", "1000"], ["1", "1001"]),
    "AlarmEmail": (["", "a@b.example"], ["a", "a b@c", "@"]),
    "ListerKey": (["", "a-_Z" * 10 + "abc"], ["a" * 42, "a" * 44, "+" * 43, "a" * 42 + "="]),
    "ListerKeySecret": (["", LISTER_SECRET], ["kanon/lister-key", f"{LISTER_SECRET}*", f"x{LISTER_SECRET}"]),
    "IssuerKeySecret": (["", ISSUER_SECRET], ["kanon/issuer-key", f"{ISSUER_SECRET}*", f"x{ISSUER_SECRET}"]),
    "EnrolVerifier": (["", VERIFIER, VERIFIER.removesuffix(":live")], ["verifier", f"{VERIFIER}*", f"x{VERIFIER}"]),
    "ReviewSteps": (["0", "65535"], ["-1", "65536"]),
}
"""Values that a text parameter takes, and values that it refuses."""


@rule(GATE)
def parameters_take_valid_values_and_refuse_others(document: Document) -> Problems:
    text = {name for name, one in document["Parameters"].items() if {"AllowedPattern", "MaxLength"} & set(one)}
    if text - set(VALUES):
        yield f"nobody knows what {text - set(VALUES)} may be"
    for name, (taken, refused) in VALUES.items():
        for value in (*taken, *refused):
            if accepts(name, document["Parameters"][name], value) is not (value in taken):
                yield f"{name} takes {value!r}, or does not"


def accepts(name: str, declared: Document, value: str) -> bool:
    """Whether CloudFormation takes a value."""
    try:
        check_parameter(name, value, declared)
    except TemplateError:
        return False
    return True


@rule(GATE)
def parameters_are_those_of_the_page(document: Document) -> Problems:
    declared = document["Parameters"]
    if set(declared) != set(DESCRIBED):
        yield f"the page and the template differ in {set(declared) ^ set(DESCRIBED)}"
    for name, one in declared.items():
        said_default, said_allowed = DESCRIBED[name]
        if (said_default, said_allowed) != (pages.default(one), pages.allowed(one) or said_allowed):
            yield f"the page says {said_default} and {said_allowed} of {name}"
        said = re.search(r"up to ([\d,]+) characters", said_allowed)
        if name != "DeltaCap" and (said and said[1]) != (f"{one['MaxLength']:,}" if "MaxLength" in one else None):
            yield f"the page does not say how long {name} may be"


DESCRIBED = pages.rows(pages.CONFIGURATION.read_text())
OFF_OR_SAFE = {
    "JoinAuth": "IAM",
    "JoinEndpoint": "API",
    "BatchAuth": "IAM",
    "Reports": "OFF",
    "Gateway": "OFF",
    "RelayAuth": "SECRET",
    "ListAuth": "IAM",
    "ListerKey": "",
    "ListerKeySecret": "",
    "SnapStart": "OFF",
    "Edge": "OFF",
    "Alarms": "ON",
    "DeletionProtection": "OFF",
    "ReportsDeletionProtection": "OFF",
    "Reservations": "ON",
    "CorsOrigins": "",
    "WarmReadUnits": 12_000,
    "WarmWriteUnits": 4_000,
    "LogLevel": "INFO",
    "Canary": "Canary10Percent5Minutes",
}
"""Defaults: closed to strangers, observed, no cost that nobody asked for, and a failed first deployment that leaves
nothing."""


@rule(GATE)
def the_default_is_safe(document: Document) -> Problems:
    for name, value in OFF_OR_SAFE.items():
        if (given := parameter(document, name)["Default"]) != value:
            yield f"{name} is {given} by default"
    if "OPEN" in parameter(document, "BatchAuth")["AllowedValues"]:
        yield "anybody may call the batch routes"
    if set(parameter(document, "LogLevel")["AllowedValues"]) - {"INFO", "WARNING", "ERROR"}:
        yield "LogLevel offers a level that logs requests"
    for name in ("MaxReadUnits", "MaxWriteUnits"):
        if parameter(document, name)["Default"] >= 40_000:  # what AWS itself allows an on-demand table
            yield f"{name} limits nothing"


AT_URL = {"JoinEndpoint": "FUNCTION_URL"}
# The smallest set of parameters that each rule of the template refuses.
REFUSED = {
    "DomainNameHasCertificate": {"DomainName": "a.example"},
    "SnapStartHasARuntime": {"SnapStart": "ON", "Runtime": "python3.11"},
    "EdgeHasDomainName": {"Edge": "SEPARATE", "EdgeDomainName": "d1.cloudfront.net"},
    "EdgeInTheStackIsInUsEast1": {**DOMAIN, "Edge": "ON", "AWS::Region": "eu-west-1"},
    "SeparateEdgeIsKnown": {"Edge": "SEPARATE", **DOMAIN},
    "TokensHaveAnIssuer": {"JoinAuth": "JWT", "JwtIssuer": "https://issuer.example"},
    "JoinUrlTakesNoTokens": {**AT_URL, "JoinAuth": "JWT", **TOKENS},
    "OpenJoinUrlHasAnEdge": {**AT_URL, "JoinAuth": "OPEN"},
    "SignedJoinUrlHasNoEdge": {**AT_URL, **DOMAIN, "Edge": "ON"},
    "JoinUrlHasALimit": {**AT_URL, "Reservations": "OFF"},
    "RelayedJoinsAreAllowed": {"Gateway": "ON", "RelayAuth": "OPEN"},
    "ListerKeyIsAPair": {"ListerKey": "k" * 43},
    "ListedValuesAreReviewed": {**LISTER, "ListAuth": "NONE"},
    "CredentialsNameNobody": ISSUER,
    "VerifierIsNamed": {**ISSUER, "Gateway": "ON", "EnrolAuth": "VERIFIER"},
    "VerifierIsAsked": {**ISSUER, "Gateway": "ON", "EnrolVerifier": VERIFIER},
}


@rule(GATE, together=True)
def rules_refuse_parameters_that_do_not_fit(documents: Documents) -> Problems:
    given = documents[GATE]["Rules"]
    if set(given) != set(REFUSED):
        yield f"the rules are {', '.join(given)}"
    others = {
        "TokensHaveAnIssuer": {"BatchAuth": "JWT", "JwtAudience": "a"},
        "JoinUrlHasALimit": {**AT_URL, "JoinReservedConcurrency": "0"},
        "SignedJoinUrlHasNoEdge": {**AT_URL, **SEPARATE},
        "RelayedJoinsAreAllowed": {"Gateway": "ON", "RelayAuth": "OPEN", "JoinAuth": "JWT", **TOKENS},
        "ListedValuesAreReviewed": {**LISTER, "JoinAuth": "OPEN"},
        "ListerKeyIsAPair": {"ListerKeySecret": LISTER_SECRET},
        "CredentialsNameNobody": {**ISSUER, "JoinAuth": "JWT", **TOKENS},
    }
    by_token = ("TokensHaveAnIssuer", {**LISTER, "ListAuth": "JWT", "JwtIssuer": "https://issuer.example"})
    enrolled = ("TokensHaveAnIssuer", {**ISSUER, "EnrolAuth": "JWT", "JwtAudience": "a"})
    for name, parameters in (*REFUSED.items(), *others.items(), by_token, enrolled):
        if not _refuses(documents, given[name], parameters):
            yield f"{name} accepts {parameters}"
    for name, one in given.items():
        for accepted in STACKS.keys() - {"edge without a domain"}:
            if _refuses(documents, one, STACKS[accepted]):
                yield f"{name} refuses the stack {accepted}"
        if not all(each.get("AssertDescription") for each in one["Assertions"]):
            yield f"{name} does not say what to do"


def _refuses(documents: Documents, given: Document, parameters: dict[str, str]) -> bool:
    stack = documents.deployed(**{name: value for name, value in parameters.items() if "::" not in name})
    stack._pseudo["AWS::Region"] = parameters.get("AWS::Region", "us-east-1")
    asserted = all(stack._holds(one["Assert"]) for one in given["Assertions"])
    return bool(stack._holds(given["RuleCondition"])) and not asserted


# ------------------------------------------------------------------------------------------------- logs
LOGGED = {
    "$context.requestId",
    "$context.requestTime",
    "$context.routeKey",
    "$context.status",
    "$context.integrationStatus",
    "$context.responseLatency",
    "$context.responseLength",
}
"""The allowed fields of an access log: none of a path, a query, a header, a body or a caller."""


@rule(*WITH_FUNCTIONS)
def every_function_has_a_log_group_with_retention(document: Document) -> Problems:
    groups = of_type(document, "AWS::Logs::LogGroup")
    for name, function in functions(document).items():
        logging = dict(function.get("LoggingConfig", {}))
        if target(logging.pop("LogGroup", None)) != f"{name}Logs" or f"{name}Logs" not in groups:
            yield f"{name} has no log group of its own in LoggingConfig"
        if logging != {"LogFormat": "JSON", "ApplicationLogLevel": "INFO", "SystemLogLevel": "WARN"}:
            yield f"{name} pays for platform lines of every call, or loses its metrics"
    for name, group in groups.items():
        if group["Properties"].get("RetentionInDays") != {"Ref": "LogRetention"}:
            yield f"{name} does not keep its logs for LogRetention days"
        (own,) = strings(group["Properties"].get("LogGroupName", ""))
        folder = "/aws/vendedlogs/kanon" if name == "AccessLogs" else "/kanon"
        if own not in {f"{folder}/${{{n}}}/{name.removesuffix('Logs').lower()}" for n in ("AWS::StackName", "Name")}:
            yield f"{name} is not named after the stack and the function"


@rule(GATE)
def access_logs_tell_no_path_and_no_caller(document: Document) -> Problems:
    for name, stage in of_type(document, "AWS::ApiGatewayV2::Stage").items():
        settings = stage["Properties"].get("AccessLogSettings", {})
        if not settings:
            yield f"{name} has no access log"
            continue
        logged = set(re.findall(r"\$context[\w.]*", settings["Format"]))
        if logged != LOGGED:
            yield f"{name} logs {', '.join(sorted(logged ^ LOGGED))}, or does not"
        (group,) = strings(settings["DestinationArn"])
        if not group.endswith(":log-group:${AccessLogs}"):
            yield f"{name} logs to {group}"
        try:
            json.loads(settings["Format"])
        except ValueError:
            yield f"{name} writes lines that are not JSON"
        if "LoggingLevel" in json.dumps(stage) or "DataTraceEnabled" in json.dumps(stage):
            yield f"{name} logs executions"


@rule(*WITH_FUNCTIONS)
def nothing_traces_or_logs_requests(document: Document) -> Problems:
    for name, function in functions(document).items():
        if function.get("Tracing") != "PassThrough":
            yield f"{name} may trace: a trace keeps URLs and names of objects"
        if "KmsKeyArn" in function:
            yield f"{name} has a key for its environment that no role may use"
        for variable in environment(document, name):
            if re.search("LOG_EVENT|DEBUG|TRACE", variable):
                yield f"{name} sets {variable}"


# ------------------------------------------------------------------------------- messages and schedules
DAY = 86_400
KEPT = {"Arrivals": 10 * DAY, "Queue": 4 * DAY, "Maps": 4 * DAY, "Stages": 4 * DAY}
"""Seconds that a queue with a reader keeps a message. Others keep it for 14 days, which count from its first queue."""
RECEIVES = {"Queue": 3}
"""How often a message is tried, if not 5 times. Two redeliveries of a slot fit before its tick."""
BATCHES: dict[str, Document] = {
    "Queue": {"BatchSize": 1, "MaximumConcurrency": {"Ref": "MaximumConcurrency"}},
    "Arrivals": {"BatchSize": 10_000, "MaximumBatchingWindowInSeconds": 60, "MaximumConcurrency": 10},
    "Maps": {"BatchSize": 1, "MaximumConcurrency": {"Ref": "MapConcurrency"}},
    "Stages": {"BatchSize": 1, "MaximumConcurrency": {"Ref": "MapConcurrency"}},
}
READERS = {"Queue": "Evaluate", "Arrivals": "Store", "Maps": "Decrypt", "Stages": "Aggregate"}
RESENT = {"Evaluate", "Decrypt", "Aggregate"}
"""Functions that send messages which come back to them."""


@rule(GATE, REPORTS)
def queues_hide_keep_and_bury_messages(document: Document) -> Problems:
    queues = of_type(document, "AWS::SQS::Queue")
    mappings = of_type(document, "AWS::Lambda::EventSourceMapping")
    read = {target(one["Properties"]["EventSourceArn"]): one["Properties"] for one in mappings.values()}
    if read.keys() != READERS.keys() & queues.keys():
        yield f"read are {', '.join(map(str, read))}"
    for name, queue in queues.items():
        given = queue["Properties"]
        if given.get("SqsManagedSseEnabled") is not True:
            yield f"{name} is not encrypted"
        if given.get("MessageRetentionPeriod") != KEPT.get(name, 14 * DAY):
            yield f"{name} keeps messages for {given.get('MessageRetentionPeriod')} s"
        if name not in read:
            if "RedrivePolicy" in given:
                yield f"{name} gives messages up that nobody has read"
            continue
        reader = function_of(read[name]["FunctionName"])
        if reader != READERS.get(name):
            yield f"{name} is read by {reader}"
        dead = name.replace("Queue", "DeadLetters") if name == "Queue" else f"{name}Dead"
        redrive = {"deadLetterTargetArn": {"Fn::GetAtt": [dead, "Arn"]}, "maxReceiveCount": RECEIVES.get(name, 5)}
        if given.get("RedrivePolicy") != redrive or dead not in queues:
            yield f"{name} gives up as {given.get('RedrivePolicy')} says"
        window = read[name].get("MaximumBatchingWindowInSeconds", 0)
        if given["VisibilityTimeout"] != 6 * properties(document, READERS[name])["Timeout"] + window:
            yield f"{name} does not hide a message for six times its function's timeout and its window"
    for name, mapping in mappings.items():
        given = dict(mapping["Properties"])
        queue = target(given.pop("EventSourceArn"))
        del given["FunctionName"]
        if given.pop("FunctionResponseTypes", None) != ["ReportBatchItemFailures"]:
            yield f"{name} does not report failures one by one"
        scaling = given.pop("ScalingConfig", {})
        if {**given, **scaling} != BATCHES.get(str(queue)):
            yield f"{name} takes messages as {given} and {scaling} say"
    for name in functions(document).keys() & RESENT:
        if properties(document, name).get("RecursiveLoop") != "Allow":
            yield f"Lambda would stop {name} in the middle of its work"


RETRIES = {"MaximumRetryAttempts": 2, "MaximumEventAgeInSeconds": 1800}
"""Half an hour of attempts: after that the event goes to the lost events, where an alarm sees it."""
RETRIES_OF_LISTS = {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": 300}
"""The next event does the same."""
SCHEDULES: dict[str, tuple[str, Document]] = {
    "EvaluateSchedule": ("Evaluate", {"MaximumRetryAttempts": 10, "MaximumEventAgeInSeconds": 1800}),
    "StatesSchedule": ("Sweep", {"MaximumRetryAttempts": 10, "MaximumEventAgeInSeconds": 1800}),
    "SweepSchedule": ("Aggregate", {"MaximumRetryAttempts": 2, "MaximumEventAgeInSeconds": 300}),
    "RotateSchedule": ("Rotate", {"MaximumRetryAttempts": 2, "MaximumEventAgeInSeconds": 300}),
    "AccountsSchedule": ("Issuer", {"MaximumRetryAttempts": 10, "MaximumEventAgeInSeconds": 1800}),
    "ListSchedule": ("List", {"MaximumRetryAttempts": 2, "MaximumEventAgeInSeconds": 300}),
}
EVERY_FIVE_MINUTES = {"SweepSchedule": 0, "RotateSchedule": 120, "ListSchedule": 60}
"""First second of the day at which a schedule of reports or lists fires."""
STATES_SWEPT, ACCOUNTS_FORGOTTEN = 3 * 3600 + 40 * 60, 4 * 3600 + 20 * 60
"""Seconds of the day at which states are swept, and accounts that are free are deleted."""
LOST = ({"Fn::GetAtt": ["LostEvents", "Arn"]}, {"Ref": "LostEventsArn"})


@rule(GATE, REPORTS, LISTS, CREDENTIALS)
def schedules_wake_their_function_and_lose_no_event(document: Document) -> Problems:
    schedules = of_type(document, "AWS::Scheduler::Schedule")
    woken = set()
    for name, schedule in schedules.items():
        given, goal = schedule["Properties"], schedule["Properties"]["Target"]
        function, retries = SCHEDULES[name]
        woken.add(function)
        if function_of(goal["Arn"]) != function or json.loads(goal["Input"]).get("schedule") is not True:
            yield f"{name} wakes {goal['Arn']} with {goal['Input']}: the function would do nothing"
        if goal.get("DeadLetterConfig", {}).get("Arn") not in LOST or goal.get("RetryPolicy") != retries:
            yield f"{name} loses events"
        if goal.get("RoleArn") != {"Fn::GetAtt": ["ScheduleRole", "Arn"]}:
            yield f"{name} may not call"
        if given["FlexibleTimeWindow"] != {"Mode": "OFF"} or given.get("ScheduleExpressionTimezone") != "UTC":
            yield f"{name} fires late, or at another hour"
        if "State" in given or "StartDate" in given or "EndDate" in given or "Name" in given:
            yield f"{name} may be off, or has a fixed name"
    kept = set()
    for name, config in of_type(document, "AWS::Lambda::EventInvokeConfig").items():
        given = config["Properties"]
        kept.add(target(given["FunctionName"]))
        if given.get("Qualifier") != document["Globals"]["Function"]["AutoPublishAlias"]:
            yield f"{name} is not for the version that the schedule calls"
        if given.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination") not in LOST:
            yield f"{name} loses events"
        retries = RETRIES_OF_LISTS if name == "ListFailures" else RETRIES
        if {word: given.get(word) for word in RETRIES} != retries:
            yield f"{name} retries otherwise"
        if config.get("DependsOn") != f"{target(given['FunctionName'])}Aliaslive":
            yield f"{name} is created before the alias"
    if kept != woken:
        yield f"events of {kept ^ woken} are lost"
    for name, resource in document["Resources"].items():
        if resource["Type"] == "AWS::Serverless::Function" and "Events" in resource["Properties"]:
            yield f"{name} has events of its own: make them resources, so that these rules see them"


SCHEDULE_OFFSET = 180
"""Seconds after the end of a step at which the schedule fires."""


@rule(GATE, REPORTS, LISTS, CREDENTIALS, together=True)
def the_schedule_fires_after_each_step_of_every_period(documents: Documents) -> Problems:
    periods = parameter(documents[GATE], "Period")["AllowedValues"]
    if set(documents[GATE]["Mappings"]["Periods"]) != set(periods):
        yield "the periods are not both allowed and mapped"
    for period in periods:
        stack = documents.deployed(Reports="ON", Period=period)
        cron = stack.of_type("AWS::Scheduler::Schedule")["EvaluateSchedule"]["ScheduleExpression"]
        if firing_times(cron) != {(end + SCHEDULE_OFFSET) % DAY for end in range(0, DAY, int(period))}:
            yield f"{cron} does not fire {SCHEDULE_OFFSET} s after the ends of steps of {period} s"
    cron = documents.deployed().of_type("AWS::Scheduler::Schedule")["StatesSchedule"]["ScheduleExpression"]
    if firing_times(cron) != {STATES_SWEPT}:
        yield f"the states are swept at {cron}"
    cron = documents.deployed(**ISSUER).of_type("AWS::Scheduler::Schedule")["AccountsSchedule"]["ScheduleExpression"]
    if firing_times(cron) != {ACCOUNTS_FORGOTTEN}:
        yield f"accounts are forgotten at {cron}"
    for name, second in EVERY_FIVE_MINUTES.items():
        stack = documents.deployed(Reports="ON", **LISTER)
        cron = stack.of_type("AWS::Scheduler::Schedule")[name]["ScheduleExpression"]
        if firing_times(cron) != set(range(second, DAY, 300)):
            yield f"{name} fires at {cron}"


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


CLOCK_SKEW = 10
"""Seconds by which two of AWS's clocks may differ, generously."""


@rule(GATE)
def clock_figures_fit_together_for_every_value_allowed(document: Document) -> Problems:
    grace, lease = parameter(document, "Grace"), parameter(document, "Lease")
    evaluate = properties(document, "Evaluate")["Timeout"]
    queue = properties(document, "Queue")
    for name in ("Join", "Query"):
        timeout = properties(document, name)["Timeout"]
        if timeout + CLOCK_SKEW >= grace["MinValue"]:
            yield f"{name} may write after its step is closed: timeout {timeout} s, grace {grace['MinValue']} s"
    if grace["MaxValue"] + CLOCK_SKEW > SCHEDULE_OFFSET:
        yield "the schedule may fire before the grace is over"
    if lease["MinValue"] <= evaluate:
        yield "a lease may end before its worker does"
    if lease["MaxValue"] >= queue["VisibilityTimeout"]:
        yield "a message may come back while the lease of its dead worker still holds"
    redeliveries = queue["RedrivePolicy"]["maxReceiveCount"] - 1
    done = SCHEDULE_OFFSET + redeliveries * queue["VisibilityTimeout"] + evaluate
    if redeliveries < 2 or parameter(document, "PublishDelay")["Default"] < done:
        yield f"two redeliveries do not fit before the tick: they are done after {done} s"
    if parameter(document, "PublishMargin")["MinValue"] < 60:
        yield "a reader may see a write after its tick"
    if parameter(document, "OutageAllowance")["MinValue"] < 2 * DAY:
        yield "the outage allowance leaves no day of reserve"
    if (
        parameter(document, "MaximumConcurrency")["MinValue"] < 2
        or parameter(document, "MapConcurrency")["MinValue"] < 2
    ):
        yield "SQS takes no maximum concurrency below 2"


# ------------------------------------------------------------------------------------------------ names
FIXED = {"TableName", "QueueName", "FunctionName", "RoleName", "LayerName", "AliasName", "BucketName", "AlarmName"}


@rule(*PATHS)
def names_are_left_to_cloudformation_and_arns_have_no_partition(document: Document) -> Problems:
    for name, resource in document["Resources"].items():
        given = resource.get("Properties", {})
        for word in FIXED & given.keys():
            if not isinstance(given[word], dict):
                yield f"{name} has a fixed {word}: a second stack could not be deployed"
        if resource["Type"] == "AWS::SecretsManager::Secret" and "Name" in given:
            yield f"{name} has a fixed name: a retained secret would block the next stack"
    for text in re.findall(r"arn:aws[a-z-]*:|\b\d{12}\b", json.dumps(document["Resources"])):
        yield f"{text} is of one partition, or of one account"


# ------------------------------------------------------------------------------------------------ roles
RECEIVE = {
    f"sqs:{call}" for call in ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes", "ChangeMessageVisibility")
}
ROWS = {f"dynamodb:{call}" for call in ("GetItem", "Query", "PutItem", "UpdateItem", "DeleteItem")}
LOGS = {"logs:CreateLogStream", "logs:PutLogEvents"}
READ_SECRET = {"secretsmanager:GetSecretValue"}
SEND, INVOKE, UPDATE = {"sqs:SendMessage"}, {"lambda:InvokeFunction"}, {"dynamodb:UpdateItem"}
BOTH_WAYS = {"kms:Decrypt", "kms:GenerateDataKey"}
MOVE_ALIAS = {"lambda:GetAlias", "lambda:UpdateAlias", "lambda:GetProvisionedConcurrencyConfig"}
DESCRIBE = {"dynamodb:DescribeTable"}

# By role, then resource with the condition on its use: the allowed actions, and no others.
PERMISSIONS: dict[str, dict[str, dict[str, set[str]]]] = {
    GATE: {
        "JoinRole": {
            "StepLog": {"dynamodb:PutItem", "dynamodb:BatchWriteItem"},
            "Control [function#join]": UPDATE,
            "SetPepper": READ_SECRET,
            "ClientKey": READ_SECRET,
            "IssuerKeySecret if HasIssuerKey": READ_SECRET,
            "EdgeSecret if HasEdge": READ_SECRET,
            "Key via dynamodb, secretsmanager": {"kms:Decrypt"},
            "JoinLogs": LOGS,
        },
        "QueryRole": {
            "Statuses": {"dynamodb:BatchGetItem"},
            "StatesBucket/true/*": {"s3:GetObject"},
            "Control [function#query]": UPDATE,
            "SetPepper": READ_SECRET,
            "EdgeSecret if HasEdge": READ_SECRET,
            "Key via dynamodb, s3, secretsmanager": {"kms:Decrypt"},
            "QueryLogs": LOGS,
        },
        "EvaluateRole": {
            "StepLog": {"dynamodb:Query", *DESCRIBE},
            "StatesBucket": {"s3:ListBucket"},
            "StatesBucket/*": {"s3:GetObject", "s3:PutObject"},
            "StatesKey via s3": BOTH_WAYS,
            "Key via s3": BOTH_WAYS,
            "Statuses": UPDATE | DESCRIBE,
            "Control": {"dynamodb:GetItem"} | UPDATE | DESCRIBE,
            "NoiseKey": READ_SECRET,
            "Key via dynamodb, secretsmanager": {"kms:Decrypt"},
            "Queue": SEND | RECEIVE,
            "LostEvents": SEND,
            "EvaluateLogs": LOGS,
        },
        "SweepRole": {
            "StatesBucket": {"s3:ListBucket"},
            "StatesBucket/*": {"s3:GetObject", "s3:DeleteObject"},
            "StatesKey via s3": {"kms:Decrypt"},
            "Control": {f"dynamodb:{call}" for call in ("GetItem", "Scan", "UpdateItem", "ConditionCheckItem")},
            "Key via dynamodb": {"kms:Decrypt"},
            "LostEvents": SEND,
            "SweepLogs": LOGS,
        },
        "ScheduleRole": {"Evaluate.Alias": INVOKE, "Sweep.Alias": INVOKE, "LostEvents": SEND},
        "CanaryRole": {
            **dict.fromkeys(("Join", "Query", "Join:live", "Query:live"), MOVE_ALIAS),
            "*": {"cloudwatch:DescribeAlarms"},  # the action knows no single alarm; alarms tell nothing about a set
        },
    },
    REPORTS: {
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
            "Key via s3": {"kms:GenerateDataKey"},
            "StoreLogs": LOGS,
        },
        "JobsRole": {
            "ReportJobs": {"dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:UpdateItem"},
            "Budgets": {"dynamodb:BatchGetItem", "dynamodb:Query"},
            "Control [function#jobs]": {"dynamodb:UpdateItem"},
            "Control [list#*] if HasLists": {"dynamodb:GetItem"},
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
            "ListBucket if HasLists": {"s3:ListBucket"},
            "ListBucket/current/* if HasLists": {"s3:GetObject"},
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
    },
}

PERMISSIONS[ANONYMOUS] = {
    "GatewayRole": {
        "JoinFunction": INVOKE,
        "QueryFunction": INVOKE,
        "IssuerFunction if HasIssuer": INVOKE,
        "GatewayKey": READ_SECRET,
        "RelaySecret if RelaysAuthenticate": READ_SECRET,
        "EdgeSecret if HasEdge": READ_SECRET,
        "Key via secretsmanager": {"kms:Decrypt"},
        "GatewayLogs": LOGS,
    },
}
"""The gateway sees no table and neither pepper nor client key."""

PERMISSIONS[LISTS] = {
    "ListRole": {
        "Statuses": {"dynamodb:BatchGetItem"},
        "Control [slot#*, types, lists, list#*]": {"dynamodb:GetItem"},
        "Control [list#*]": {"dynamodb:UpdateItem"},
        "Control [lists]": {"dynamodb:ConditionCheckItem"},
        "StatesBucket/*.listed": {"s3:GetObject"},
        "ListBucket/current/*": {"s3:GetObject", "s3:PutObject", "s3:DeleteObject"},
        "ListBucket/lists/*": {"s3:GetObject", "s3:PutObject"},
        "ListBucket/opened/*": {"s3:GetObject", "s3:PutObject", "s3:DeleteObject"},
        "ListBucket": {"s3:ListBucket"},
        "ListerKeySecret": READ_SECRET,
        "Key via dynamodb, s3": {"kms:Decrypt"},
        "Key via s3": {"kms:GenerateDataKey"},
        "StatesKey via s3": {"kms:Decrypt"},
        "LostEvents": SEND,
        "ListLogs": LOGS,
    },
    "ReleasedRole": {
        "Control [list#*]": {"dynamodb:GetItem"},
        "ListBucket/current/*": {"s3:GetObject"},
        "ListBucket": {"s3:ListBucket"},
        "EdgeSecret if HasEdge": READ_SECRET,
        "Key via dynamodb, s3, secretsmanager": {"kms:Decrypt"},
        "ReleasedLogs": LOGS,
    },
    "ScheduleRole": {"List.Alias": {"lambda:InvokeFunction"}, "LostEvents": SEND},
}
"""The lister alone opens values. It sees neither the log, nor parts, nor the noise key; `released` opens nothing."""

PERMISSIONS[CREDENTIALS] = {
    "IssuerRole": {
        "Accounts": {f"dynamodb:{call}" for call in ("GetItem", "PutItem", "UpdateItem", "Scan", "DeleteItem")}
        | DESCRIBE,
        "Control [credentials]": {"dynamodb:GetItem", "dynamodb:UpdateItem"},
        "Control [function#issuer]": UPDATE,
        "AccountKey": READ_SECRET,
        "IssuerKeySecret": READ_SECRET,
        "EdgeSecret if HasEdge": READ_SECRET,
        "EnrolVerifier if EnrolsByVerifier": INVOKE,
        "Key via dynamodb, secretsmanager": {"kms:Decrypt"},
        "LostEvents": SEND,
        "IssuerLogs": LOGS,
    },
    "ScheduleRole": {"Issuer.Alias": INVOKE, "LostEvents": SEND},
}
"""The issuer sees neither joins nor pepper, and nobody else accounts. Only `join` has its key too: it verifies."""

SECRETS = "arn:${AWS::Partition}:secretsmanager:${AWS::Region}:${AWS::AccountId}:secret:${Name}/report-keys/*"
LISTS_OF_THE_GATE = "arn:${AWS::Partition}:s3:::${ListBucket}"
OTHER = "arn:*:s3:::"
LISTED = {"Fn::Split": [",", {"Ref": "ReportBuckets"}]}


def statements(document: Document, role: str) -> list[tuple[str | None, Any]]:
    """The statements of a role, each with the condition of the template under which it exists."""
    found = [one for policy in properties(document, role)["Policies"] for one in policy["PolicyDocument"]["Statement"]]
    return [
        (one["Fn::If"][0], one["Fn::If"][1])
        if "Fn::If" in one and one["Fn::If"][2] == {"Ref": "AWS::NoValue"}
        else (None, one)
        for one in found
    ]


def permitted(resource: Any) -> str:
    """The resource of a statement, in one word; the JSON of an unexpected one."""
    match resource:
        case "*":
            return "*"
        case {"Ref": str(name)}:
            return name.removesuffix("Arn")
        case {"Fn::GetAtt": [name, "Arn"]}:
            return str(name)
        case {"Fn::If": [condition, one, {"Ref": "AWS::NoValue"}]}:
            return f"{permitted(one)} if {condition}"
        case {"Fn::Sub": str(text)} if found := re.fullmatch(r"\$\{(\w+?)\.?Arn\}([:/][\w/]*\*?(?:\.listed)?)", text):
            return f"{found[1]}{found[2]}"
        case {"Fn::Sub": str(text)} if text.startswith(LISTS_OF_THE_GATE):
            return f"ListBucket{text.removeprefix(LISTS_OF_THE_GATE)}"
        case {"Fn::Sub": str(text)} if text == SECRETS:
            return "report-keys/*"
        case {"Fn::Split": [",", {"Fn::Join": ["", [first, {"Fn::Join": [between, names]}, *end]]}]} if names == LISTED:
            after = "".join(end)
            return f"others{after}" if (first, between) == (OTHER, f"{after},{OTHER}") else json.dumps(resource)
    return json.dumps(resource)


def under(statement: Document) -> str:
    """The condition of a statement, in short; the JSON of anything unexpected."""
    match statement.get("Condition"):
        case None:
            return ""
        case {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": keys, **more}, **rest} if not more and not rest:
            return f" [{', '.join(keys)}]"
        case {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": keys, **more}, **rest} if not more and not rest:
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


@rule(*WITH_FUNCTIONS, together=True)
def roles_allow_exactly_what_the_design_says(documents: Documents) -> Problems:
    for path, wanted in PERMISSIONS.items():
        document = documents[path]
        if set(of_type(document, "AWS::IAM::Role")) != set(wanted):
            yield f"the roles are {', '.join(of_type(document, 'AWS::IAM::Role'))}"
        for name in wanted:
            allowed: dict[str, set[str]] = {}
            for condition, statement in statements(document, name):
                if statement["Effect"] != "Allow" or {"NotAction", "NotResource", "Principal"} & set(statement):
                    yield f"{name} says what is not allowed instead of what is"
                    continue
                for resource in as_list(statement["Resource"]):
                    where = f"{permitted(resource)}{under(statement)}{f' if {condition}' if condition else ''}"
                    allowed.setdefault(where, set()).update(as_list(statement["Action"]))
            for where in allowed.keys() | wanted[name].keys():
                if difference := allowed.get(where, set()) ^ wanted[name].get(where, set()):
                    yield f"{name} may {', '.join(sorted(difference))} on {where}, or may no longer"
        for name, resource in document["Resources"].items():
            if resource["Type"] in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy", "AWS::IAM::RolePolicy"):
                yield f"{name} is a policy beside the roles: say it in a role"
            if resource["Type"] == "AWS::Serverless::Connector" or "Connectors" in resource:
                yield f"{name} is a connector: say it in a role"
        for name, function in functions(document).items():
            if function.get("Role") != {"Fn::GetAtt": [f"{name}Role", "Arn"]}:
                yield f"{name} has no role of its own"
            if {"Policies", "ManagedPolicyArns", "FunctionUrlConfig"} & set(function):
                yield f"{name} has more permissions, or an address of its own"


@rule(GATE, REPORTS, together=True)
def nobody_sees_sums_and_keys_and_budgets_together(_: Documents) -> Problems:
    """A rule for the table of permissions itself."""
    granted = {role: " ".join(where) for role, where in PERMISSIONS[REPORTS].items()}
    seen = {
        "WorkBucket": {"DecryptRole", "AggregateRole"},
        "ReportNoiseKey": {"AggregateRole"},
        "Budgets": {"JobsRole", "AggregateRole", "RotateRole"},
    }
    for what, roles in seen.items():
        if {role for role, where in granted.items() if what in where} != roles:
            yield f"{what} is seen by other roles than {', '.join(sorted(roles))}"
    opens = {role for role, where in PERMISSIONS[REPORTS].items() if READ_SECRET & where.get("report-keys/*", set())}
    if opens != {"DecryptRole", "RotateRole"}:  # rotate reads a key that it made and has not published yet
        yield f"private keys are read by {', '.join(sorted(opens))}"


@rule(GATE, CREDENTIALS, together=True)
def nobody_sees_accounts_and_joins_together(_: Documents) -> Problems:
    """A rule for the table of permissions itself."""
    granted = [(role, " ".join(where)) for roles in PERMISSIONS.values() for role, where in roles.items()]
    for what, roles in {
        "Accounts": {"IssuerRole"},
        "AccountKey": {"IssuerRole"},
        "IssuerKeySecret": {"IssuerRole", "JoinRole"},
    }.items():
        if {role for role, where in granted if what in where} != roles:
            yield f"{what} is seen by other roles than {', '.join(sorted(roles))}"
    if any(word in dict(granted)["IssuerRole"] for word in ("StepLog", "Statuses", "States", "SetPepper", "ClientKey")):
        yield "the issuer sees joins, or who joined"


@rule(GATE, together=True)
def nobody_writes_and_deletes_states(_: Documents) -> Problems:
    """A rule for the table of permissions itself: a name that was deleted is never written again."""
    for word, role in (("s3:PutObject", "EvaluateRole"), ("s3:DeleteObject", "SweepRole")):
        found = {name for name, where in PERMISSIONS[GATE].items() if word in where.get("StatesBucket/*", set())}
        if found != {role}:
            yield f"{word} is allowed to {', '.join(sorted(found))}"
    true_sets = "StatesBucket/true/*"
    named = {name: {one for one in where if one.startswith("States")} for name, where in PERMISSIONS[GATE].items()}
    seen = {name for name, found in named.items() if found - {true_sets}}
    if seen != {"EvaluateRole", "SweepRole"}:
        yield f"states are seen by {', '.join(sorted(seen))}"
    readers = {name: where[true_sets] for name, where in PERMISSIONS[GATE].items() if true_sets in where}
    if readers != {"QueryRole": {"s3:GetObject"}}:
        yield f"true sets alone are open to {readers}"


TRUSTED = {"ScheduleRole": "scheduler", "CanaryRole": "codedeploy"}
"""The service that takes a role, if it is not Lambda."""
THIS_ACCOUNT = {"Ref": "AWS::AccountId"}
OF_THE_ACCOUNT = {
    "StringEquals": {
        "aws:SourceAccount": THIS_ACCOUNT,
        "aws:SourceArn": {
            "Fn::Sub": "arn:${AWS::Partition}:scheduler:${AWS::Region}:${AWS::AccountId}:schedule-group/default"
        },
    }
}


@rule(*WITH_FUNCTIONS)
def roles_trust_one_service_and_have_no_managed_policies(document: Document) -> Problems:
    for name, role in of_type(document, "AWS::IAM::Role").items():
        (statement,) = role["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        service = TRUSTED.get(name, "lambda")
        trusted = {key: value for key, value in statement.items() if key != "Condition"}
        by = {"Service": f"{service}.amazonaws.com"}
        if trusted != {"Effect": "Allow", "Principal": by, "Action": "sts:AssumeRole"}:
            yield f"{name} trusts {trusted}"
        if service == "scheduler" and statement.get("Condition") != OF_THE_ACCOUNT:
            yield f"{name} can be taken by schedules of other accounts"
        if service == "codedeploy" and statement.get("Condition") != {
            "StringEquals": {"aws:SourceAccount": THIS_ACCOUNT}
        }:
            yield f"{name} can be taken by deployments of other accounts"
        if set(role["Properties"]) != {"AssumeRolePolicyDocument", "Policies"}:
            yield f"{name} has more policies"
        for policy in (role["Properties"]["AssumeRolePolicyDocument"], *(
            one["PolicyDocument"] for one in role["Properties"]["Policies"]
        )):  # fmt: skip
            if policy.get("Version") != "2012-10-17":
                yield f"{name} has a policy in the old language, which knows no variables"


# ------------------------------------------------------------------------------------------ deployments
def function_of(value: object) -> str | None:
    """The function whose name, ARN or alias a value is."""
    name = target(value)
    return None if name is None else name.removesuffix(".Alias")


@rule(*WITH_FUNCTIONS)
def callers_call_the_alias(document: Document) -> Problems:
    called = {
        **{n: r["Properties"]["IntegrationUri"] for n, r in of_type(document, INTEGRATION).items()},
        **{n: r["Properties"]["FunctionName"] for n, r in of_type(document, "AWS::Lambda::Permission").items()},
        **{n: r["Properties"]["FunctionName"] for n, r in of_type(document, "AWS::Lambda::EventSourceMapping").items()},
        **{n: r["Properties"]["Target"]["Arn"] for n, r in of_type(document, "AWS::Scheduler::Schedule").items()},
    }
    for name, url in of_type(document, "AWS::Lambda::Url").items():
        function, alias = url["Properties"]["TargetFunctionArn"], url["Properties"].get("Qualifier")
        called[name] = {"Ref": f"{target(function)}.Alias" if alias == "live" else function}
    for name, value in called.items():
        if value != {"Ref": f"{function_of(value)}.Alias"}:
            yield f"{name} calls the unpublished version: code, layer and variables change there one after the other"
    for name in of_type(document, "AWS::Lambda::Alias", "AWS::Lambda::Version"):
        yield f"{name} stands beside what SAM publishes"


LAYERS = {
    GATE: ["Shared"],
    REPORTS: ["Shared", "ReportsLayer"],
    ANONYMOUS: ["Shared", "GatewayLayer"],
    LISTS: ["Shared", "ListsLayer"],
    CREDENTIALS: ["Shared", "CredentialsLayer"],
}
SEALING = {"Fn::If": ["HasListerKey", {"Ref": "SealingLayer"}, {"Ref": "AWS::NoValue"}]}
CREDENTIAL = {"Fn::If": ["HasIssuerKey", {"Ref": "CredentialsLayer"}, {"Ref": "AWS::NoValue"}]}
"""The layers of `join` beside those of Globals."""


def _both(*more: str) -> Document:
    return {"Fn::Join": [" ", [{"Ref": layer} for layer in ("Shared", *more)]]}


WITH_SEALING = {"Fn::If": ["HasIssuerKey", _both("SealingLayer", "CredentialsLayer"), _both("SealingLayer")]}
WITHOUT_SEALING = {"Fn::If": ["HasIssuerKey", _both("CredentialsLayer"), {"Ref": "Shared"}]}
ALL_LAYERS = {"Fn::If": ["HasListerKey", WITH_SEALING, WITHOUT_SEALING]}
OF_THE_STACK = {"Deployment", "Name", "Control", "KeyArn", "Statuses", "StatesBucket"}
"""Parameters of nested stacks that never change."""


@rule(*WITH_FUNCTIONS, together=True)
def a_version_pins_code_layers_and_parameters(documents: Documents) -> Problems:
    for parameters, more in (({}, {}), (LISTER, {"SealingLayer"}), (ISSUER, {"CredentialsLayer"})):
        stack = documents.deployed(**parameters)
        layers = {"Shared", *more}
        found = set(stack.of_type("AWS::Serverless::LayerVersion")) - {"ListsLayer"}
        if found != layers or len(stack.of_type(FUNCTION)["Join"]["Layers"]) != len(layers):
            yield f"with {parameters} there are other layers than {layers}"
    for path, layers in LAYERS.items():
        document, own = documents[path], layers[-1]
        for name, function in functions(document).items():
            if function.get("AutoPublishAlias") != "live" or function.get("AutoPublishAliasAllProperties") is not True:
                yield f"{name} publishes no version when a property changes"
            sealing = name == "Join"
            if function.get("Layers") != ([SEALING, CREDENTIAL] if sealing else [{"Ref": layer} for layer in layers]):
                yield f"{name} has the layers {function.get('Layers')}"
            if function.get("VersionDescription") != (ALL_LAYERS if sealing else {"Ref": own}):
                yield f"{name} publishes no version when a layer changes"
        at = documents[GATE] if path == CREDENTIALS else document
        match properties(at, own)["Description"]:
            case {"Fn::Select": [0, [str(), *values]]}:
                hashed = {target(value) for value in values}
            case _:
                yield f"{own} is not named after the values of parameters"
                continue
        known = versioned_parameters(document) - (set() if path == GATE else OF_THE_STACK)
        if path == CREDENTIALS:  # its layer is one of the gate's, which has what Shared is named after
            known = (known | {"Shared"}) - versioned_parameters(documents[GATE]) - {"CredentialsLayer", "EdgeSecret"}
        if missing := sorted(known - hashed):
            yield f"a change of {', '.join(missing)} alone reaches no version"
        if more := sorted(str(name) for name in hashed - known):
            yield f"a change of {', '.join(more)} publishes versions for nothing"


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


@rule(*WITH_FUNCTIONS)
def functions_and_layers_are_built_from_their_folder(document: Document) -> Problems:
    folder = "" if "Shared" in document["Resources"] else "../"
    reports = "reports/" if "ReportsLayer" in document["Resources"] else ""
    for name, resource in of_type(document, "AWS::Serverless::Function").items():
        own = f"{folder}functions/{reports}{name.lower()}/"
        given = {**document["Globals"]["Function"], **resource["Properties"]}
        if given["CodeUri"] != own or given["Handler"] != "app.handler":
            yield f"{name} is built from {given['CodeUri']}"
        if resource["Metadata"] != {"BuildMethod": "python-uv"} or given["Runtime"] != {"Ref": "Runtime"}:
            yield f"{name} is built otherwise than its layer"
        if given["Architectures"] != [{"Ref": "Architecture"}]:
            yield f"{name} runs on {given['Architectures']}"
    for name, layer in of_type(document, "AWS::Serverless::LayerVersion").items():
        given = {word: value for word, value in layer["Properties"].items() if word != "Description"}
        if layer["Metadata"] != {"BuildMethod": "makefile", "BuildArchitecture": {"Ref": "Architecture"}}:
            yield f"{name} is built as {layer['Metadata']} says"
        if given != {
            "ContentUri": f"{folder}shared/",
            "CompatibleRuntimes": [{"Ref": "Runtime"}],
            "CompatibleArchitectures": [{"Ref": "Architecture"}],
            "RetentionPolicy": "Delete",
        }:
            yield f"{name} is made of {given}"


SIZES = {
    "Join": (512, 10),
    "Query": (512, 10),
    "Evaluate": (1769, 120),
    "Sweep": (512, 900),
    "Collect": (512, 10),
    "Store": (1769, 60),
    "Jobs": (1769, 28),
    "Decrypt": (3008, 900),
    "Aggregate": (3008, 900),
    "Rotate": (512, 60),
    "Gateway": (512, 20),
    "List": (1769, 280),
    "Released": (512, 10),
    "Issuer": (512, 900),
}
"""MB of memory and seconds of the longest call. ``docs/evidence/performance.md`` and `kanon cost` assume them."""
TEMPORARY = {"Evaluate": {"Size": 2048}, "List": {"Size": 2048}}
"""MB of files, if they are more than Lambda gives to everybody: joins beyond those in memory, and values of lists."""


@rule(*WITH_FUNCTIONS)
def functions_have_the_size_that_was_measured(document: Document) -> Problems:
    for name, function in functions(document).items():
        if (given := (function.get("MemorySize"), function.get("Timeout"))) != SIZES.get(name):
            yield f"{name} has {given}"
        if function.get("EphemeralStorage") != TEMPORARY.get(name):
            yield f"{name} has {function.get('EphemeralStorage')} for files"


@rule(GATE, together=True)
def evaluate_switches_whole_and_first_and_the_others_in_parts(documents: Documents) -> Problems:
    document = documents[GATE]
    if "DeploymentPreference" in properties(document, "Evaluate"):
        yield "two versions of evaluate may work on one slot in turns"
    for name in ("Join", "Query"):
        if document["Resources"][name].get("DependsOn") != "EvaluateAliaslive":
            yield f"{name} may write rows that the running evaluate cannot read"
    if "DependsOn" in document["Resources"]["Evaluate"]:
        yield "Evaluate waits for another resource"
    for canary in parameter(document, "Canary")["AllowedValues"]:
        stack = documents.deployed(Canary=canary)
        gradual = canary != "AllAtOnce"
        if ("CanaryRole" in stack.of_type("AWS::IAM::Role")) is not gradual:
            yield f"the role of {canary} is missing, or stays"
        for name in ("Join", "Query"):
            given = stack.of_type("AWS::Serverless::Function")[name]["DeploymentPreference"]
            by = {"Role": "arn:aws:iam:us-east-1:123456789012:kanon-CanaryRole", "Alarms": [f"kanon-{name}Failing"]}
            enabled = {"Enabled": str(gradual).lower(), "Type": canary}
            if given != {**enabled, **(by if gradual else {"Alarms": []})}:
                yield f"{name} switches as {given} says"
            if (f"{name}Failing" in stack.of_type(ALARM)) is not gradual:
                yield f"{name} is watched without need, or not watched"


@rule(*WITH_FUNCTIONS, together=True)
def snapshots_are_of_functions_that_clients_wait_for_if_asked_for(documents: Documents) -> Problems:
    for choice, applied in (("ON", "PublishedVersions"), ("OFF", "None")):
        stack = documents.deployed(SnapStart=choice, **EVERYTHING)
        for name, function in stack.of_type("AWS::Serverless::Function").items():
            if function.get("SnapStart") != ({"ApplyOn": applied} if name in ("Join", "Query", "Gateway") else None):
                yield f"with {choice} {name} starts from {function.get('SnapStart')}"


# ---------------------------------------------------------------------------------------------- storage
TABLES = {
    "Accounts": [("account", "B", "HASH")],
    "StepLog": [("step_slot", "B", "HASH"), ("set_token", "B", "RANGE")],
    "Statuses": [("set_key", "B", "HASH")],
    "Control": [("name", "S", "HASH")],
    "Budgets": [("row", "B", "HASH"), ("part", "S", "RANGE")],
    "ReportJobs": [("job", "S", "HASH"), ("part", "S", "RANGE")],
}
LASTING, WARMED = {"Control", "Accounts"}, {"StepLog", "Statuses"}
"""The tables whose rows do not expire, and those with a warm throughput."""


@rule(GATE, REPORTS, CREDENTIALS, together=True)
def tables_have_their_keys_forget_and_have_a_limit(documents: Documents) -> Problems:
    for name, parameters in STACKS.items():
        stack = documents.deployed(**parameters)
        tables, given = stack.of_type("AWS::DynamoDB::Table"), stack.parameters
        reports = {"Budgets", "ReportJobs"} if given["Reports"] == "ON" else set()
        accounts = {"Accounts"} if given["IssuerKeySecret"] else set()
        if set(tables) != {"StepLog", "Statuses", "Control"} | reports | accounts:
            yield f"{name}: the tables are {', '.join(tables)}"
        for table, found in tables.items():
            own = "Reports" if table in reports else "Accounts" if table in accounts else ""
            protected = given[f"{own}DeletionProtection"] == "ON"
            expected: Document = {
                "BillingMode": "PAY_PER_REQUEST",
                "SSESpecification": {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": KEY_ARN},
                "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": False},
                "ContributorInsightsSpecification": {"Enabled": False},
                "DeletionProtectionEnabled": protected,
                "OnDemandThroughput": {
                    "MaxReadRequestUnits": given["MaxReadUnits"],
                    "MaxWriteRequestUnits": given["MaxWriteUnits"],
                },
            }
            if table not in LASTING:
                expected["TimeToLiveSpecification"] = {"AttributeName": "ttl", "Enabled": True}
            if table in WARMED and (given["WarmReadUnits"], given["WarmWriteUnits"]) != ("12000", "4000"):
                warm = {"ReadUnitsPerSecond": given["WarmReadUnits"], "WriteUnitsPerSecond": given["WarmWriteUnits"]}
                expected["WarmThroughput"] = warm
            if table_key(found) != TABLES[table]:
                yield f"{name}: {table} has the key {table_key(found)}"
            for word in (expected.keys() | found.keys()) - {"AttributeDefinitions", "KeySchema"}:
                if found.get(word) != expected.get(word):
                    yield f"{name}: {table} has the {word} {found.get(word)}"


KEY_ARN = "arn:aws:kms:us-east-1:123456789012:kanon-Key"
KEYS_OF_BUCKETS = {
    "StatesBucket": "arn:aws:kms:us-east-1:123456789012:kanon-StatesKey",
    "WorkBucket": "arn:aws:kms:us-east-1:123456789012:kanon-ReportsStack-WorkKey",
}
"""Buckets with a key of their own."""
STATEFUL = ("AWS::DynamoDB::Table", "AWS::KMS::Key", "AWS::SecretsManager::Secret", "AWS::S3::Bucket")
FLEETING = ("AWS::SQS::Queue", "AWS::Logs::LogGroup", "AWS::Budgets::Budget")
KEY_STATEMENT = {
    "Sid": "AccountDecidesByIdentityPolicies",
    "Effect": "Allow",
    "Principal": {"AWS": {"Fn::Sub": "arn:${AWS::Partition}:iam::${AWS::AccountId}:root"}},
    "Action": "kms:*",
    "Resource": "*",
}
"""The only statement of a key's policy: no other account, no service and nobody without a role's permission."""
ONE_KEY = {"SecretStringTemplate": "{}", "PasswordLength": 64, "ExcludePunctuation": True}
GENERATED = {
    "SetPepper": {"PasswordLength": 64, "ExcludePunctuation": True},
    "ClientKey": {"PasswordLength": 64, "ExcludePunctuation": True},
    "NoiseKey": {**ONE_KEY, "GenerateStringKey": "1"},
    "ReportNoiseKey": {**ONE_KEY, "GenerateStringKey": "1"},
    "EdgeSecret": {**ONE_KEY, "GenerateStringKey": "current"},
    "RelaySecret": {**ONE_KEY, "GenerateStringKey": "current"},
    "GatewayKey": {"PasswordLength": 64, "ExcludePunctuation": True},
    "AccountKey": {"PasswordLength": 64, "ExcludePunctuation": True},
}
OUTLIVING_NOTHING = ("EdgeSecret", "RelaySecret", "GatewayKey")
"""Secrets that protect nothing that outlives the stack."""
"""A change makes CloudFormation generate another value at the next deployment, and every function refuses a changed
key: these may never change. ``rotate`` makes the private keys of reports."""


@rule(*WITH_FUNCTIONS, SPENDING)
def state_outlives_the_stack_unless_its_creation_fails(document: Document) -> Problems:
    for name, resource in of_type(document, *STATEFUL, *FLEETING).items():
        fleeting = resource["Type"] in FLEETING or name in OUTLIVING_NOTHING
        kept = ("Delete", "Delete") if fleeting else ("RetainExceptOnCreate", "Retain")
        if (resource.get("DeletionPolicy"), resource.get("UpdateReplacePolicy")) != kept:
            yield f"{name} is not kept as {kept} says"


@rule(*WITH_FUNCTIONS)
def keys_belong_to_the_account_and_secrets_are_generated_once(document: Document) -> Problems:
    for name, key in of_type(document, "AWS::KMS::Key").items():
        given = {word: value for word, value in key["Properties"].items() if word != "Description"}
        policy = {"Version": "2012-10-17", "Statement": [KEY_STATEMENT]}
        if given != {"EnableKeyRotation": True, "PendingWindowInDays": 30, "KeyPolicy": policy}:
            yield f"{name} may be used by others, lost within less than 30 days, or is not rotated"
    for name, secret in of_type(document, "AWS::SecretsManager::Secret").items():
        given = {word: value for word, value in secret["Properties"].items() if word != "Description"}
        key = {"Fn::GetAtt": ["Key", "Arn"]} if "Key" in document["Resources"] else {"Ref": "KeyArn"}
        if given != {"KmsKeyId": key, "GenerateSecretString": GENERATED.get(name)}:
            yield f"{name} has another key, stands in the template, or would be generated again"


CLOSED = dict.fromkeys(("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"), True)
LIFETIMES = {"StatesBucket": None, "ReportsBucket": 97, "WorkBucket": 31, "SummariesBucket": None, "ListBucket": "7"}
"""Days that a bucket keeps an object; a report may be aggregated for 90 days, and a job takes one. `sweep` deletes
states when no recovery needs them."""
OWNERS = {"StatesBucket": (GATE, "kanon"), "ListBucket": (LISTS, "kanon-ListsStack")}
WORKERS = ["arn:aws:iam:us-east-1:123456789012:kanon-ReportsStack-" + name for name in ("DecryptRole", "AggregateRole")]


@rule(GATE, REPORTS, LISTS, CREDENTIALS, together=True)
def buckets_are_closed_encrypted_and_forget(documents: Documents) -> Problems:
    stack = documents.deployed(Reports="ON", **LISTER, ListDays="7")
    buckets = stack.of_type("AWS::S3::Bucket")
    if set(buckets) != set(LIFETIMES):
        yield f"the buckets are {', '.join(buckets)}"
    for name, bucket in buckets.items():
        by_key = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": KEYS_OF_BUCKETS.get(name, KEY_ARN)}
        uploads = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}
        lives = {"unfinished-uploads": uploads}
        if days := LIFETIMES.get(name):
            lives["forget"] = {**({"Prefix": "lists/"} if name == "ListBucket" else {}), "ExpirationInDays": days}
        rules = [{"Id": one, "Status": "Enabled", **what} for one, what in lives.items()]
        encryption = [{"BucketKeyEnabled": True, "ServerSideEncryptionByDefault": by_key}]
        if bucket != {
            "PublicAccessBlockConfiguration": CLOSED,
            "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
            "BucketEncryption": {"ServerSideEncryptionConfiguration": encryption},
            "LifecycleConfiguration": {"Rules": rules},
        }:
            yield f"{name} is open, clear, or keeps objects for another time: {bucket}"
    for others in ("", "one,two.three"):
        roles = json.dumps(documents.deployed(Reports="ON", ReportBuckets=others).of_type("AWS::IAM::Role"))
        wanted = {f"arn:*:s3:::{name}{end}" for name in others.split(",") if name for end in ("", "/*")}
        if set(re.findall(r"arn:\*:s3:::[^\"]*", roles)) != wanted:
            yield f"the roles do not name {wanted}, or others"
    policies = stack.of_type("AWS::S3::BucketPolicy")
    for name in buckets:
        path, owner = OWNERS.get(name, (REPORTS, "kanon-ReportsStack"))
        bucket = f"arn:aws:s3:us-east-1:123456789012:{owner}-{name}"
        clear = {"Resource": [bucket, f"{bucket}/*"], "Condition": {"Bool": {"aws:SecureTransport": "false"}}}
        others = {"Resource": f"{bucket}/*", "Condition": {"ArnNotEquals": {"aws:PrincipalArn": WORKERS}}}
        refused = {"RefuseClearText": clear, **({"RefuseEverybodyElse": others} if name == "WorkBucket" else {})}
        given = policies.get(f"{name}Policy", {})
        found = given.get("PolicyDocument", {}).get("Statement", [])
        denied = {"Effect": "Deny", "Principal": "*", "Action": "s3:*"}
        if found != [{"Sid": sid, **denied, **one} for sid, one in refused.items()]:
            yield f"{name} has the policy {found}"
        if target(documents[path]["Resources"][f"{name}Policy"]["Properties"]["Bucket"]) != name:
            yield f"the policy of {name} is another bucket's"
        if given.get("PolicyDocument", {}).get("Version") != "2012-10-17":
            yield f"the policy of {name} is in the old language"


# -------------------------------------------------------------------------------------------- functions
SETTINGS: dict[str, type[Settings]] = {
    "Join": JoinSettings,
    "Evaluate": EvaluateSettings,
    "Query": QuerySettings,
    "Sweep": StatesSettings,
    "Collect": CollectSettings,
    "Store": StoreSettings,
    "Jobs": JobsSettings,
    "Decrypt": DecryptSettings,
    "Aggregate": AggregateSettings,
    "Rotate": RotateSettings,
    "Gateway": GatewaySettings,
    "List": ListSettings,
    "Released": ReleasedSettings,
    "Issuer": IssuerSettings,
}
TOLD: dict[str, Document] = {
    "KANON_DEPLOYMENT": {"Ref": "AWS::StackId"},
    "KANON_REPORT_KEY_PREFIX": {"Fn::Sub": "${Name}/report-keys/"},
    "KANON_KMS_KEY": {"Ref": "KeyArn"},
    "KANON_LISTED_TYPES": {"Fn::If": ["HasLists", {"Ref": "Types"}, ""]},
    "KANON_LISTER_KEY": {"Ref": "ListerKey"},
    "KANON_LISTER_KEY_SECRET": {"Ref": "ListerKeySecret"},
    "KANON_ISSUER_KEY_SECRET": {"Ref": "IssuerKeySecret"},
    "KANON_RELAY_SECRET": {"Fn::If": ["RelaysAuthenticate", {"Ref": "RelaySecret"}, ""]},
    "POWERTOOLS_LOG_LEVEL": {"Ref": "LogLevel"},
}
"""Variables whose names do not say what they hold."""


@rule(GATE, REPORTS, LISTS, together=True)
def jobs_knows_listed_types_where_there_are_lists(documents: Documents) -> Problems:
    for lister in (LISTER, {}):
        jobs = documents.deployed(**lister, Reports="ON").of_type(FUNCTION)["Jobs"]
        if bool(jobs["Environment"]["Variables"]["KANON_LISTED_TYPES"]) is not bool(lister):
            yield f"jobs knows lists that are not there, or not those that are: {lister}"


@rule(*WITH_FUNCTIONS)
def variables_hold_what_their_names_say(document: Document) -> Problems:
    """KANON_STEP_LOG_TABLE holds StepLog, KANON_WORK_BUCKET WorkBucket, KANON_EPSILON_CAP the parameter EpsilonCap."""
    own = "Name" in document["Parameters"]
    namespace = {"Fn::Sub": "KANON/${Name}" if own else "KANON/${AWS::StackName}"}
    edge = {"Ref": "EdgeSecret"} if own else {"Fn::If": ["HasEdge", {"Ref": "EdgeSecret"}, ""]}
    for function in functions(document):
        special = {
            **TOLD,
            **({"KANON_DEPLOYMENT": {"Ref": "Deployment"}} if own else {}),
            "POWERTOOLS_SERVICE_NAME": function.lower(),
            "POWERTOOLS_METRICS_NAMESPACE": namespace,
            "KANON_EDGE_SECRET": edge,
        }
        given = environment(document, function)
        if missing := {name for name in special if name.startswith("POWERTOOLS")} - set(given):
            yield f"{function} is not told {missing}"
        read = {f"KANON_{name.upper()}" for name in SETTINGS[function].model_fields}
        if {name for name in given if name.startswith("KANON_")} != read:
            yield f"{function} is told {set(given)}, and reads something else"
        for variable, value in given.items():
            words = variable.removeprefix("KANON_").split("_")
            if words[-1] in ("TABLE", "URL", "SECRET"):
                words.pop()
            if value != special.get(variable, {"Ref": "".join(map(str.capitalize, words))}):
                yield f"{function} is told {value} as {variable}"


OF_AN_ARN = 170
"""More than any ARN or URL has in a stack whose name has 60 letters."""


@rule(*WITH_FUNCTIONS, together=True)
def environments_fit_into_4_kb(documents: Documents) -> Problems:
    longest = {name: int(one.get("MaxLength", 30)) for name, one in documents[GATE]["Parameters"].items()}
    for name in of_type(documents[GATE], "AWS::DynamoDB::Table"):
        longest[name] = 60 + len(f"-{name}-") + 13  # the name of the stack, its own, and random letters
    for path in WITH_FUNCTIONS:
        for name in functions(documents[path]):
            size = sum(
                len(variable) + (len(value) if isinstance(value, str) else longest.get(str(target(value)), OF_AN_ARN))
                for variable, value in environment(documents[path], name).items()
            )
            if size > 4096:
                yield f"the environment of {name} may grow to {size} bytes"


# ------------------------------------------------------------------------------------------------- HTTP
INTEGRATION, ROUTE = "AWS::ApiGatewayV2::Integration", "AWS::ApiGatewayV2::Route"
# Route key: (function, authorization). "join" stands for the parameter JoinAuth, "batch" for BatchAuth.
ROUTES = {
    "POST /v1/types/{type}/sets/{set}": ("Join", "join"),
    "POST /v1:batchJoin": ("Join", "batch"),
    "POST /v1:batchQuery": ("Query", "batch"),
    "GET /v1/types/{type}/sets/{set}": ("Query", "NONE"),
    "POST /v1:query": ("Query", "NONE"),
    "POST /v1:validateHashes": ("Query", "NONE"),
    "GET /v1/types": ("Query", "NONE"),
    "GET /v1/types/{type}": ("Query", "NONE"),
    "GET /openapi.json": ("Query", "NONE"),
    "GET /docs": ("Query", "NONE"),
}
COLLECTED = {
    *("POST /.well-known/attribution-reporting/report-aggregate-attribution",),
    *("POST /.well-known/private-aggregation/report-shared-storage",),
    *("POST /.well-known/private-aggregation/report-protected-audience", "POST /v1/reports"),
    *("POST /.well-known/attribution-reporting/debug/report-aggregate-attribution",),
    *("POST /.well-known/private-aggregation/debug/report-shared-storage",),
    *("POST /.well-known/private-aggregation/debug/report-protected-audience", "POST /v1/debug/reports"),
    *("GET /.well-known/aggregation-service/v1/public-keys",),
}
OF_JOBS = {
    *("POST /v1alpha/createJob", "GET /v1alpha/getJob", "POST /stage/v1alpha/createJob", "GET /stage/v1alpha/getJob"),
    *("POST /v1/jobs:preflight", "POST /v1/jobs:publish", "GET /v1/budget"),
}
OF_REPORTS = dict.fromkeys(COLLECTED, ("Collect", "NONE")) | dict.fromkeys(OF_JOBS, ("Jobs", "AWS_IAM"))
OF_LISTS = {
    "GET /v1/types/{type}/released": ("Released", "list"),
    "GET /v1/types/{type}/ranges": ("Released", "list"),
    "GET /v1/types/{type}/ranges/{step}/{prefix}": ("Released", "list"),
}
OF_ACCOUNTS = {
    "GET /v1/credentials/keys": ("Issuer", "NONE"),
    "POST /v1/credentials": ("Issuer", "enrol"),
    "GET /v1/credentials": ("Issuer", "enrol"),
    "DELETE /v1/credentials": ("Issuer", "enrol"),
}
OF_RELAYS = dict.fromkeys(("POST /v1/gateway", "GET /v1/proxy/keys"), ("Gateway", "NONE"))
AUTHORIZATION = {"OPEN": "NONE", "NONE": "NONE", "IAM": "AWS_IAM", "JWT": "JWT", "VERIFIER": "NONE"}
SEGMENT = re.compile(r"\{[\w.:-]+\+?\}|[a-zA-Z0-9.:_-]+")


@rule(*WITH_FUNCTIONS, together=True)
def routes_ask_for_the_authorization_of_the_design(documents: Documents) -> Problems:
    for name, parameters in STACKS.items():
        stack = documents.deployed(**parameters)
        by = {"join": stack.parameters["JoinAuth"], "batch": stack.parameters["BatchAuth"]}
        if stack.parameters["ListerKey"]:
            by["list"] = stack.parameters["ListAuth"]
        if stack.parameters["IssuerKeySecret"]:
            by["enrol"] = stack.parameters["EnrolAuth"]
        tokens = stack.of_type("AWS::ApiGatewayV2::Authorizer")
        if bool(tokens) is not ("JWT" in by.values()):
            yield f"{name}: there are authorizers {tokens}"
        for each in tokens.values():
            token = {"Issuer": TOKENS["JwtIssuer"], "Audience": [TOKENS["JwtAudience"]]}
            if each["JwtConfiguration"] != token or each["AuthorizerType"] != "JWT" or each["ApiId"] != "kanon-Api":
                yield f"{name}: tokens of other issuers or for other services are accepted"
            if each["IdentitySource"] != ["$request.header.Authorization"]:
                yield f"{name}: the token is read from {each['IdentitySource']}"
        served = {
            f"integrations/{part.resolve({'Ref': one.logical_id})}": one.properties["IntegrationUri"]
            for part, one in stack.every_resource(INTEGRATION)
        }
        found = {}
        for given in stack.of_type(ROUTE).values():
            function = re.fullmatch(r"arn:.*-(\w+):live", served.get(given["Target"], ""))
            access = given["AuthorizationType"]
            if given.get("AuthorizerId") != ("kanon-Tokens" if access == "JWT" else None):
                access += f" by {given.get('AuthorizerId')}"
            found[given["RouteKey"]] = (function and function[1], access)
            if given["ApiId"] != "kanon-Api":
                yield f"{given['RouteKey']} is a route of another API"
        wanted = ROUTES | (OF_REPORTS if stack.parameters["Reports"] == "ON" else {})
        wanted |= OF_LISTS if "list" in by else {}
        wanted |= OF_ACCOUNTS if "enrol" in by else {}
        wanted |= OF_RELAYS if stack.parameters["Gateway"] == "ON" else {}
        expected = {key: (one, AUTHORIZATION.get(by.get(how, ""), how)) for key, (one, how) in wanted.items()}
        for key in found.keys() | expected.keys():
            if found.get(key) != expected.get(key):
                yield f"{name}: {key} is {found.get(key)}, and not {expected.get(key)}"


@rule(*WITH_FUNCTIONS, together=True)
def only_this_api_may_call_functions_and_waits_for_them(documents: Documents) -> Problems:
    stack = documents.deployed(**EVERYTHING)
    called = set()
    for name, given in stack.of_type("AWS::Lambda::Permission").items():
        called.add(given["FunctionName"].rpartition("-")[2].removesuffix(":live"))
        if given != {
            "FunctionName": given["FunctionName"],
            "Action": "lambda:InvokeFunction",
            "Principal": "apigateway.amazonaws.com",
            "SourceAccount": ACCOUNT,
            "SourceArn": f"arn:aws:execute-api:us-east-1:{ACCOUNT}:kanon-Api/*",
        }:
            yield f"{name} lets others call: {given}"
    if called != ANSWERING:
        yield f"the gateway may call {called}"
    sizes = stack.of_type("AWS::Serverless::Function")
    for name, given in stack.of_type(INTEGRATION).items():
        kind = {word: given[word] for word in ("ApiId", "IntegrationType", "PayloadFormatVersion")}
        if kind != {"ApiId": "kanon-Api", "IntegrationType": "AWS_PROXY", "PayloadFormatVersion": "2.0"}:
            yield f"{name} sends other events than the functions read"
        longest = sizes[name.removesuffix("Integration")]["Timeout"] * 1000
        if name == "IssuerIntegration":  # only its schedule takes long
            longest = 10_000
        if not longest < given["TimeoutInMillis"] <= 30_000:
            yield f"the gateway gives up before the function of {name} does"


@rule(GATE, together=True)
def a_function_url_is_of_join_if_asked_for(documents: Documents) -> Problems:
    """It checks signatures, or anybody may call it: then only the edge knows the header that the function expects."""
    for name, parameters in STACKS.items():
        stack = documents.deployed(**parameters)
        given = stack.parameters
        wanted, is_open = given["JoinEndpoint"] == "FUNCTION_URL", given["JoinAuth"] == "OPEN"
        expected: Document = {
            "TargetFunctionArn": "kanon-Join",
            "Qualifier": "live",
            "AuthType": "NONE" if is_open else "AWS_IAM",
        }
        if given["CorsOrigins"]:
            api = stack.of_type("AWS::ApiGatewayV2::Api")["Api"]["CorsConfiguration"]
            expected["Cors"] = {**api, "AllowMethods": ["POST"]}
        if stack.of_type("AWS::Lambda::Url") != ({"JoinUrl": expected} if wanted else {}):
            yield f"{name}: the function URLs are {stack.of_type('AWS::Lambda::Url')}"
        found = stack.of_type("AWS::Lambda::Permission")
        anybody = {one: allowed for one, allowed in found.items() if allowed["Principal"] == "*"}
        if anybody != (ANYBODY if wanted and is_open else {}):
            yield f"{name}: anybody may call {anybody}"
        if is_open and wanted and not stack.of_type(FUNCTION)["Join"]["Environment"]["Variables"]["KANON_EDGE_SECRET"]:
            yield f"{name}: anybody may join past the edge"
    cors = (properties(documents[GATE], "JoinUrl")["Cors"], properties(documents[GATE], "Api")["CorsConfiguration"])
    url, api = (found["Fn::If"][1]["AllowOrigins"] for found in cors)
    if url != api:
        yield "the function URL allows other origins than the API"
    if of_type(documents[GATE], "AWS::Lambda::Url")["JoinUrl"].get("DependsOn") != "JoinAliaslive":
        yield "the URL is made before the alias"


FUNCTION = "AWS::Serverless::Function"
JOIN_ALIAS = "arn:aws:serverless:us-east-1:123456789012:kanon-Join:live"
ANYBODY = {
    "JoinUrlAccess": {
        "FunctionName": JOIN_ALIAS,
        "Action": "lambda:InvokeFunctionUrl",
        "Principal": "*",
        "FunctionUrlAuthType": "NONE",
    },
    "JoinUrlInvocation": {
        "FunctionName": JOIN_ALIAS,
        "Action": "lambda:InvokeFunction",
        "Principal": "*",
        "InvokedViaFunctionUrl": True,
    },
}
"""Both are needed since October 2025."""


@rule(*WITH_FUNCTIONS)
def path_segments_are_legal(document: Document) -> Problems:
    for name, route in of_type(document, ROUTE).items():
        path = route["Properties"]["RouteKey"].partition(" ")[2]
        for segment in path.removeprefix("/").split("/"):
            if not SEGMENT.fullmatch(segment):
                yield f"{name}: API Gateway refuses the segment {segment!r}"


MOST_HASHES, UNITS_OF_A_HASH = 1_000, 0.5
"""Hashes of a signed query, and the read units of one status, read eventually consistent."""
ACCOUNT_RATE, ACCOUNT_CONCURRENCY, UNRESERVED = 10_000, 1_000, 100
"""Quotas of an account: requests a second to all its APIs, concurrent calls, and those that nothing may reserve."""
RATES = {
    **dict.fromkeys(("POST /v1:query", "POST /v1:validateHashes"), ("AnonymousRate", "AnonymousRate")),
    "POST /v1:batchQuery": ("BatchQueryRate", "BatchQueryRate"),
    "POST /v1/types/{type}/sets/{set}": ("ThrottleRate", "ThrottleBurst"),
    "POST /v1:batchJoin": ("ThrottleRate", "ThrottleBurst"),
    "GET /v1/types/{type}/sets/{set}": ("ThrottleRate", "ThrottleBurst"),
    "POST /v1/gateway": ("ThrottleRate", "ThrottleBurst"),
}
"""The rate and the burst of a route, if not OtherRate: what strangers can use up, others do not need."""


def rates(stack: Deployed) -> dict[str, tuple[str, str]]:
    """The requests per second, and at once, that each route of a stack accepts."""
    (stage,) = stack.of_type("AWS::ApiGatewayV2::Stage").values()
    other, own = stage["DefaultRouteSettings"], stage["RouteSettings"]
    figures = {one["RouteKey"]: own.get(one["RouteKey"], other) for one in stack.of_type(ROUTE).values()}
    return {key: (one["ThrottlingRateLimit"], one["ThrottlingBurstLimit"]) for key, one in figures.items()}


@rule(*WITH_FUNCTIONS, together=True)
def every_route_has_a_rate_and_exists_before_it(documents: Documents) -> Problems:
    """An unknown route gets the low rate: it is the default of the stage."""
    words = ("ThrottleRate", "ThrottleBurst", "OtherRate", "AnonymousRate", "BatchQueryRate")
    given = {word: str(100 + number) for number, word in enumerate(words)}
    found = rates(documents.deployed(**EVERYTHING, **given))
    for key, figures in found.items():
        if figures != tuple(given[word] for word in RATES.get(key, ("OtherRate", "OtherRate"))):
            yield f"{key} accepts {figures}"
    stage = documents[GATE]["Resources"]["Stage"]
    keyed = {r["Properties"]["RouteKey"]: n for n, r in of_type(documents[GATE], ROUTE).items()}
    named = stage["Properties"]["RouteSettings"].keys() - {"POST /v1/gateway"}
    nested = {"Fn::GetAtt": ["AnonymousStack", "Outputs.GatewayFunction"]}  # so the stage waits for this stack
    waits = {"Fn::If": ["HasGateway", nested, {"Ref": "AWS::NoValue"}]}
    if {keyed.get(key) for key in named} != set(stage.get("DependsOn", [])) or (
        stage["Properties"].get("Description") != waits
    ):
        yield "the stage names routes that do not exist yet"
    if "POST /v1/gateway" in documents.deployed().of_type("AWS::ApiGatewayV2::Stage")["Stage"]["RouteSettings"]:
        yield "without a gateway the stage names its route"


@rule(*WITH_FUNCTIONS, together=True)
def anonymous_callers_leave_the_account_room(documents: Documents) -> Problems:
    """At the defaults, and if everybody may join, all routes without a signature take less than half of the quota."""
    stack = documents.deployed(**EVERYTHING, JoinAuth="OPEN", ListAuth="NONE")
    anonymous = {one["RouteKey"] for one in stack.of_type(ROUTE).values() if one["AuthorizationType"] == "NONE"}
    found = {key: float(rate) for key, (rate, _) in rates(stack).items()}
    total = sum(rate for key, rate in found.items() if key in anonymous)
    if total >= ACCOUNT_RATE / 2:
        yield f"callers without a signature may send {total:.0f} requests a second"
    if sum(found.values()) >= ACCOUNT_RATE:
        yield f"all routes accept {sum(found.values()):.0f} requests a second"


@rule(GATE, together=True)
def queries_leave_the_table_room(documents: Documents) -> Problems:
    """By default no group of callers can exhaust a table: neither those without a signature, nor all together."""
    default = {name: given["Default"] for name, given in documents[GATE]["Parameters"].items()}
    anonymous = 2 * default["AnonymousRate"] * default["AnonymousHashes"] * UNITS_OF_A_HASH
    signed = default["BatchQueryRate"] * MOST_HASHES * UNITS_OF_A_HASH
    single = default["ThrottleRate"] * UNITS_OF_A_HASH
    if anonymous > default["MaxReadUnits"] / 2:
        yield f"callers without a signature may use {anonymous:.0f} of {default['MaxReadUnits']} read units"
    if anonymous + signed + single > default["MaxReadUnits"]:
        yield f"queries may use {anonymous + signed + single:.0f} of {default['MaxReadUnits']} read units"


PUBLIC = {"Join", "Query", "Collect", "Jobs", "Gateway"}
ANSWERING = PUBLIC | {"Released", "Issuer"}
"""The functions that answer requests. The low rate of their routes limits `released` and `issuer`."""


@rule(*WITH_FUNCTIONS, together=True)
def public_functions_reserve_concurrency_unless_the_account_has_none(documents: Documents) -> Problems:
    def reserved(**parameters: str) -> dict[str, int]:
        given = {"Reports": "ON", "Gateway": "ON", **parameters}
        found = documents.deployed(**given).of_type("AWS::Serverless::Function")
        key = "ReservedConcurrentExecutions"
        return {name: int(one[key]) for name, one in found.items() if key in one}

    default = reserved()
    if set(default) != PUBLIC:
        yield f"by default {set(default)} reserve concurrency"
    shared = {name: parameter(documents[GATE], name)["Default"] for name in ("MapConcurrency", "MaximumConcurrency")}
    needed = UNRESERVED + 2 * shared["MapConcurrency"] + shared["MaximumConcurrency"]
    if sum(default.values()) > ACCOUNT_CONCURRENCY - needed:
        yield f"{sum(default.values())} reserved calls leave the others too few"
    own = {name: 7 + number for number, name in enumerate(sorted(PUBLIC | {"Evaluate"}))}
    given = {f"{name}ReservedConcurrency": str(number) for name, number in own.items()}
    if (found := reserved(**given)) != own:
        yield f"asked for {own}, the functions reserve {found}"
    if found := reserved(**given, Reservations="OFF"):
        yield f"an account without a quota is asked for {found}"
    if found := reserved(**dict.fromkeys(given, "0")):
        yield f"0 reserves {found}"


@rule(*WITH_FUNCTIONS, EDGE, together=True)
def an_edge_is_the_only_way_in(documents: Documents) -> Problems:
    """Every function that answers requests checks the header exactly if there is an edge."""
    for name, parameters in STACKS.items():
        stack = documents.deployed(**parameters)
        given = stack.parameters
        edge = given["Edge"] != "OFF" and given["DomainName"] != ""
        secret = "kanon-EdgeSecret" if edge else ""
        for function, one in stack.of_type("AWS::Serverless::Function").items():
            wanted = secret if function in ANSWERING else None
            if one["Environment"]["Variables"].get("KANON_EDGE_SECRET") != wanted:
                yield f"{name}: {function} does not look for the header, or looks without need"
            role = json.dumps(stack.of_type("AWS::IAM::Role")[f"{function}Role"])
            if ("kanon-EdgeSecret" in role) is not (edge and function in ANSWERING) or '""' in role:
                yield f"{name}: {function} may not read the secret of the edge, or need not"
        if ("EdgeStack" in stack.nested) is not (given["Edge"] == "ON" and given["DomainName"] != ""):
            yield f"{name}: there is an edge without being asked for, or none"
        if ("EdgeSecret" in stack.of_type("AWS::SecretsManager::Secret")) is not (given["DomainName"] != ""):
            yield f"{name}: there is no secret for an edge, or one too many"
        (api,) = stack.of_type("AWS::ApiGatewayV2::Api").values()
        if api["DisableExecuteApiEndpoint"] is not (given["DomainName"] != "") or api["ProtocolType"] != "HTTP":
            yield f"{name}: the API answers beside its domain, or nowhere"
        cors = api.get("CorsConfiguration", {}).get("AllowOrigins", [])
        if cors != ([one for one in given["CorsOrigins"].split(",") if one]):
            yield f"{name}: pages of {cors} may call"
        yield from (f"{name}: {problem}" for problem in _domain(stack, given, edge))


@rule(GATE, ANONYMOUS, LISTS, CREDENTIALS, EDGE, together=True)
def relays_send_a_secret_unless_anybody_may_be_one(documents: Documents) -> Problems:
    """The function, its role and an edge in the stack know the secret exactly if there is one."""
    for name, parameters in STACKS.items():
        stack = documents.deployed(**parameters)
        given = stack.parameters
        asked = given["Gateway"] == "ON"
        secret = "kanon-AnonymousStack-RelaySecret" if asked and given["RelayAuth"] == "SECRET" else ""
        if "EdgeStack" in stack.nested and stack.nested["EdgeStack"].parameters["RelaySecret"] != secret:
            yield f"{name}: the edge admits relays by another secret"
        if ("AnonymousStack" in stack.nested) is not asked:
            yield f"{name}: there is a gateway without being asked for, or none"
        if not asked:
            continue
        told = stack.of_type("AWS::Serverless::Function")["Gateway"]["Environment"]["Variables"]["KANON_RELAY_SECRET"]
        role = json.dumps(stack.of_type("AWS::IAM::Role")["GatewayRole"])
        exists = "RelaySecret" in stack.of_type("AWS::SecretsManager::Secret")
        if told != secret or not (exists == ("RelaySecret" in role) == bool(secret)):
            yield f"{name}: the gateway compares {told}, or may not read it"


def _domain(stack: Deployed, given: dict[str, str], edge: bool) -> Problems:
    """What is wrong with the domain name."""
    named = given["DomainName"] != ""
    domains = stack.of_type("AWS::ApiGatewayV2::DomainName")
    records = stack.of_type("AWS::Route53::RecordSet")
    mappings = stack.of_type("AWS::ApiGatewayV2::ApiMapping")
    if (len(domains), len(mappings), len(records)) != (named, named, named and given["HostedZoneId"] != ""):
        yield "the domain is not mapped, or there is one too many"
    for one in domains.values():
        tls = {"CertificateArn": CERTIFICATE, "EndpointType": "REGIONAL", "SecurityPolicy": "TLS_1_2"}
        if one != {"DomainName": given["DomainName"], "DomainNameConfigurations": [tls]}:
            yield f"the domain is {one}"
    for one in mappings.values():
        if one != {"ApiId": "kanon-Api", "DomainName": "kanon-Domain", "Stage": "kanon-Stage"}:
            yield f"the domain leads to {one}"
    for one in records.values():
        alias = {"DNSName": "kanon-Domain.RegionalDomainName", "HostedZoneId": "kanon-Domain.RegionalHostedZoneId"}
        if edge:
            inside = stack.nested["EdgeStack"].output("DistributionDomainName") if given["Edge"] == "ON" else ""
            there = inside or given["EdgeDomainName"]
            alias = {"DNSName": there, "HostedZoneId": "Z2FDTNDATAQYW2"}  # the zone of every distribution
        if one["AliasTarget"] != alias:
            yield f"the record leads to {one['AliasTarget']}"
        if (one["HostedZoneId"], one["Name"], one["Type"]) != (given["HostedZoneId"], given["DomainName"], "A"):
            yield f"the record is {one}"


@rule(GATE)
def deployments_reach_the_stage(document: Document) -> Problems:
    stage = properties(document, "Stage")
    if (stage["ApiId"], stage["StageName"], stage.get("AutoDeploy")) != ({"Ref": "Api"}, "$default", True):
        yield "the stage goes on with the routes of before"
    cors = properties(document, "Api")["CorsConfiguration"]["Fn::If"][1]
    methods = {"Fn::If": ["HasIssuerKey", ["GET", "POST", "DELETE"], ["GET", "POST"]]}
    if cors["AllowMethods"] != methods or "AllowCredentials" in cors or cors.get("MaxAge") != 3600:
        yield "pages may do more than call"
    signed = ["content-type", "authorization", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256"]
    if cors["AllowHeaders"] != signed:
        yield "pages cannot sign, or may send other headers"
    if cors["ExposeHeaders"] != ["retry-after"]:
        yield "pages do not see when to try again, or read other headers"


NO_CACHE = "4135ea2d-6df8-44a3-9df3-4b5a84be39ad"
ALL_OF_THE_VIEWER = "216adef6-5c7f-47e4-b989-5492eafa07d3"
ALL_BUT_THE_HOST = "b689b0a8-53d0-40ab-baf2-68738e2966ac"
"""Ids of AWS's managed policies CachingDisabled, AllViewer and AllViewerExceptHostHeader, the same in every account."""
UNSEEN = {"SampledRequestsEnabled": False, "CloudWatchMetricsEnabled": True}


ERRORS_OF_THE_EDGE = (400, 403, 404, 405, 414, 416, 500, 501, 502, 503, 504)
"""The status codes whose answers CloudFront keeps for ten seconds, unless it is told not to."""


def if_given(parameter: str) -> Document:
    return {"Fn::Not": [{"Fn::Equals": [{"Ref": parameter}, ""]}]}


def if_joins_go_to_a_url(given: Any) -> Document:
    return {"Fn::If": ["HasJoinOrigin", given, {"Ref": "AWS::NoValue"}]}


def if_lists_are_open(given: Any) -> Document:
    return {"Fn::If": ["HasOpenLists", given, {"Ref": "AWS::NoValue"}]}


@rule(EDGE)
def the_edge_stores_nothing_and_is_recognised(document: Document) -> Problems:
    """Nothing of a request: no cache but that of range files, no log and no sample."""
    if set(document["Resources"]) != {"Firewall", "Distribution", "RangesKept", "RangesAsked"}:
        yield "there is more than a firewall and a distribution, and what range files need"
    given = dict(properties(document, "Distribution")["DistributionConfig"])
    secret = {"Fn::Sub": "{{resolve:secretsmanager:${OriginSecret}:SecretString:current}}"}
    api = {
        "Id": "api",
        "DomainName": {"Ref": "Origin"},
        "CustomOriginConfig": {"OriginProtocolPolicy": "https-only", "OriginSSLProtocols": ["TLSv1.2"]},
        "OriginCustomHeaders": [{"HeaderName": HEADER, "HeaderValue": secret}],
    }
    behaviour = {
        "TargetOriginId": "api",
        "ViewerProtocolPolicy": "https-only",
        "AllowedMethods": ["GET", "HEAD", "OPTIONS", "PUT", "POST", "PATCH", "DELETE"],
        "CachePolicyId": NO_CACHE,
        "OriginRequestPolicyId": ALL_OF_THE_VIEWER,  # signatures cover the host
        "Compress": False,
    }
    at_url = {**behaviour, "TargetOriginId": "join", "OriginRequestPolicyId": ALL_BUT_THE_HOST}  # a URL has its own
    url = {**api, "Id": "join", "DomainName": {"Ref": "JoinOrigin"}}
    kept = {
        **behaviour,
        "AllowedMethods": ["GET", "HEAD", "OPTIONS"],
        "CachePolicyId": {"Ref": "RangesKept"},
        "OriginRequestPolicyId": {"Ref": "RangesAsked"},
    }
    behaviours = [
        if_joins_go_to_a_url({"PathPattern": "/v1/types/*/sets/*:join", **at_url}),
        if_lists_are_open({"PathPattern": "/v1/types/*/sets/*", **behaviour}),
        if_lists_are_open({"PathPattern": "/v1/types/*/ranges", **kept}),
        if_lists_are_open({"PathPattern": "/v1/types/*/ranges/*", **kept}),
    ]
    tls = {"SslSupportMethod": "sni-only", "MinimumProtocolVersion": "TLSv1.2_2021"}
    given.pop("Comment", None)
    expected = {
        "Enabled": True,
        "Aliases": [{"Ref": "DomainName"}],
        "HttpVersion": "http2and3",
        "IPV6Enabled": True,
        "WebACLId": {"Fn::GetAtt": ["Firewall", "Arn"]},
        "ViewerCertificate": {"AcmCertificateArn": {"Ref": "CertificateArn"}, **tls},
        "Origins": [api, if_joins_go_to_a_url(url)],
        "CacheBehaviors": {"Fn::If": ["HasBehaviors", behaviours, {"Ref": "AWS::NoValue"}]},
        "CustomErrorResponses": [{"ErrorCode": code, "ErrorCachingMinTTL": 0} for code in ERRORS_OF_THE_EDGE],
        "DefaultCacheBehavior": behaviour,
    }
    for word in given.keys() | expected.keys():
        if given.get(word) != expected.get(word):
            yield f"requests are stored, shown, or not recognised: {word} is {given.get(word)}"
    if document["Parameters"]["RelaySecret"].get("Default") != "":
        yield "without a gateway the edge asks for the secret of relays"
    if document["Outputs"]["DistributionDomainName"]["Value"] != {"Fn::GetAtt": ["Distribution", "DomainName"]}:
        yield "the record would lead elsewhere"
    for name in ("CertificateArn", "OriginSecret", "RelaySecret"):
        if ":us-east-1:" not in document["Parameters"][name].get("AllowedPattern", ""):
            yield f"{name} may be of a region that CloudFront does not read"


NEITHER = {"CookiesConfig": {"CookieBehavior": "none"}, "QueryStringsConfig": {"QueryStringBehavior": "none"}}
RANGES_KEPT = {
    "MinTTL": 0,
    "DefaultTTL": 0,
    "MaxTTL": 86_400,
    "ParametersInCacheKeyAndForwardedToOrigin": {
        "EnableAcceptEncodingBrotli": False,
        "EnableAcceptEncodingGzip": False,
        "HeadersConfig": {"HeaderBehavior": "whitelist", "Headers": ["origin"]},
        **NEITHER,
    },
}
"""How long the edge keeps range files: as long as they say; and what tells them apart."""
PREFLIGHT = ["access-control-request-headers", "access-control-request-method"]
RANGES_ASKED = {"HeadersConfig": {"HeaderBehavior": "whitelist", "Headers": ["host", *PREFLIGHT]}, **NEITHER}
OPEN_LISTS = {"Type": "String", "Description": "", "Default": "OFF", "AllowedValues": ["ON", "OFF"]}


@rule(*WITH_FUNCTIONS, EDGE, together=True)
def the_edge_keeps_range_files_of_open_lists_and_nothing_else(documents: Documents) -> Problems:
    """Of every route: which behaviour takes it, whatever its ids are, and whether that one keeps answers.

    What is kept is told apart by path and origin alone, so no credential may reach the API there.
    """
    cases = [("IAM", True, LISTER), ("JWT", False, LISTER), ("NONE", True, LISTER), ("NONE", False, LISTER)]
    for auth, by_url, lister in (*cases, ("NONE", False, {})):
        opened = auth == "NONE" and bool(lister)
        joins = {"JoinAuth": "OPEN", "JoinEndpoint": "FUNCTION_URL"} if by_url else {}
        given = {**DOMAIN, "Edge": "ON", "Reports": "ON", "Gateway": "ON", **lister, "ListAuth": auth, **joins}
        stack = documents.deployed(**given, ReviewSteps="24", **(TOKENS if auth == "JWT" else {}))
        (edge,) = stack.of_type("AWS::CloudFront::Distribution").values()
        behaviours = edge["DistributionConfig"].get("CacheBehaviors", [])
        default = edge["DistributionConfig"]["DefaultCacheBehavior"]
        patterns = [each["PathPattern"].removeprefix("/v1/types/*/") for each in behaviours]
        if patterns != ["sets/*:join"] * by_url + ["sets/*", "ranges", "ranges/*"] * opened:
            yield f"{auth}: paths that go another way than the rest: {patterns}"
        for one in stack.of_type(ROUTE).values():
            key = one["RouteKey"]
            for path in _paths(key.partition(" ")[2]):
                taken = (each for each in behaviours if fnmatchcase(path, each["PathPattern"]))
                kept = next(taken, default)["CachePolicyId"] != NO_CACHE
                if kept is not (opened and "/ranges" in key):
                    yield f"{auth}: answers at {path} of {key} are kept, or are not"
        policies = stack.of_type("AWS::CloudFront::CachePolicy"), stack.of_type("AWS::CloudFront::OriginRequestPolicy")
        if not opened:
            yield from (f"{auth}: there is a policy to keep answers: {each}" for each in policies if each)
            continue
        (policy,), (asked,) = (list(each.values()) for each in policies)
        for found, wanted in (
            (policy["CachePolicyConfig"], RANGES_KEPT),
            (asked["OriginRequestPolicyConfig"], RANGES_ASKED),
        ):
            if {name: value for name, value in found.items() if name != "Name"} != wanted:
                yield f"other headers reach the API, or answers are kept for longer or told apart by less: {found}"
    if {**documents[EDGE]["Parameters"]["OpenLists"], "Description": ""} != OPEN_LISTS:
        yield "range files are kept unless somebody says no"


def _paths(template: str) -> Iterator[str]:
    """Paths of a route, also with ids that look like those of other routes."""
    for word in ("x", "sets", "ranges", "ranges:join", "0"):
        yield re.sub(r"\{\w+\}", word, template.replace("{step}", "7").replace("{prefix}", "01"))


@rule(*WITH_FUNCTIONS, EDGE, together=True)
def the_edge_limits_each_address_except_signed_servers(documents: Documents) -> Problems:
    """The rate does not apply to a path exactly if API Gateway itself refuses every stranger there."""
    firewall = properties(documents[EDGE], "Firewall")
    relays, limit, joins = firewall["Rules"]
    rate = dict(limit["Statement"]["RateBasedStatement"])
    scope = rate.pop("ScopeDownStatement")["NotStatement"]["Statement"]["RegexMatchStatement"]
    if rate != {"Limit": {"Ref": "AddressRate"}, "EvaluationWindowSec": 300, "AggregateKeyType": "IP"}:
        yield f"addresses are limited by {rate}"
    if limit["Action"] != {"Block": {"CustomResponse": {"ResponseCode": 429}}} or limit["Priority"] != 1:
        yield "the limit does not refuse"
    as_sent = {"FieldToMatch": {"UriPath": {}}, "TextTransformations": [{"Priority": 0, "Type": "NONE"}]}
    if {word: scope.get(word) for word in as_sent} != as_sent:
        yield "the firewall compares something else than the path as it was sent"
    if (
        firewall["Scope"] != "CLOUDFRONT"
        or firewall["DefaultAction"] != {"Allow": {}}
        or "DataProtectionConfig" in firewall
    ):
        yield "the firewall is of another kind"
    for part in (firewall, limit):
        if {word: part["VisibilityConfig"].get(word) for word in UNSEEN} != UNSEEN:
            yield "sampled requests show paths"
    stack = documents.deployed(**EVERYTHING, JoinAuth="OPEN", ListAuth="NONE", EnrolAuth="VERIFIER")
    paths: dict[str, set[bool]] = {}
    for one in stack.of_type(ROUTE).values():
        path = one["RouteKey"].partition(" ")[2]
        paths.setdefault(path, set()).add(one["AuthorizationType"] != "NONE")
    for path, signed in paths.items():
        free = re.search(scope["RegexString"], path) is not None
        if free is not (signed == {True}):
            yield f"{path} is limited, or is not"
        if any(re.search(scope["RegexString"], other) for other in (f"{path}/", f"/x{path}", path.upper())):
            yield f"the neighbours of {path} are not limited"
    yield from _relays(documents, relays)
    yield from _join_rate(documents, joins)
    for word in ("AddressRate", "JoinRate"):
        own = documents[EDGE]["Parameters"][word]
        if own != {**parameter(documents[GATE], f"Edge{word}"), "Description": own["Description"]}:
            yield "an edge in a stack of its own has another default"


def _relays(documents: Documents, given: Document) -> Problems:
    """What is wrong with the rule that admits relays: those that send the secret, to the gateway alone."""
    secret = {"Fn::Sub": "{{resolve:secretsmanager:${RelaySecret}:SecretString:current}}"}
    compared: list[tuple[Any, Document]] = [
        ("/v1/gateway", {"UriPath": {}}),
        (secret, {"SingleHeader": {"Name": RELAY_HEADER}}),
    ]
    exactly = {"PositionalConstraint": "EXACTLY", "TextTransformations": [{"Priority": 0, "Type": "NONE"}]}
    matches = [{"ByteMatchStatement": {"SearchString": a, "FieldToMatch": b, **exactly}} for a, b in compared]
    expected = {
        "Name": "relays",
        "Priority": 0,
        "Action": {"Allow": {}},
        "Statement": {"AndStatement": {"Statements": matches}},
        "VisibilityConfig": {**UNSEEN, "MetricName": "relays"},
    }
    if given != {"Fn::If": ["HasRelaySecret", expected, {"Ref": "AWS::NoValue"}]}:
        yield f"relays are admitted by {given}"
    if documents[EDGE]["Conditions"].get("HasRelaySecret") != if_given("RelaySecret"):
        yield "relays are admitted without a secret, or never"


def _join_rate(documents: Documents, given: Document) -> Problems:
    """What is wrong with the rate of the joins of all addresses, which a function URL does not limit itself."""
    path = {"FieldToMatch": {"UriPath": {}}, "TextTransformations": [{"Priority": 0, "Type": "NONE"}]}
    joins = {"RegexMatchStatement": {"RegexString": "^/v1/types/.*/sets/.*:join$", **path}}
    rate = {"Limit": {"Ref": "JoinRate"}, "EvaluationWindowSec": 60, "AggregateKeyType": "CONSTANT"}
    expected = {
        "Name": "join-rate",
        "Priority": 2,
        "Action": {"Block": {"CustomResponse": {"ResponseCode": 429}}},
        "Statement": {"RateBasedStatement": {**rate, "ScopeDownStatement": joins}},
        "VisibilityConfig": {**UNSEEN, "MetricName": "join-rate"},
    }
    if given != if_joins_go_to_a_url(expected):
        yield f"joins at a function URL are limited by {given}"
    if documents[EDGE]["Parameters"]["JoinOrigin"].get("Default") != "":
        yield "without a function URL the edge has an origin for joins"
    if documents[EDGE]["Conditions"].get("HasJoinOrigin") != if_given("JoinOrigin"):
        yield "the limit of joins at a function URL is left out, or is there without one"
    for host, taken in {"": True, "abc1.lambda-url.eu-west-1.on.aws": True, "a.example": False, "x/y": False}.items():
        if accepts("JoinOrigin", documents[EDGE]["Parameters"]["JoinOrigin"], host) is not taken:
            yield f"the edge would send joins to {host}, or would not"


@rule(SPENDING)
def spending_is_mailed_before_and_after_half_of_the_limit(document: Document) -> Problems:
    given = properties(document, "Spending")
    limit = {"Amount": {"Ref": "MonthlyLimit"}, "Unit": "USD"}
    if given["Budget"] != {"BudgetType": "COST", "TimeUnit": "MONTHLY", "BudgetLimit": limit}:
        yield "the budget leaves out some costs"
    mailed = [{"SubscriptionType": "EMAIL", "Address": {"Ref": "Email"}}]
    told = {
        (one["Notification"]["NotificationType"], one["Notification"]["Threshold"])
        for one in given["NotificationsWithSubscribers"]
        if one["Subscribers"] == mailed
        and one["Notification"]["ComparisonOperator"] == "GREATER_THAN"
        and one["Notification"]["ThresholdType"] == "PERCENTAGE"
    }
    if told != {("ACTUAL", 50), ("FORECASTED", 100)}:
        yield f"mails are sent at {told}"


# ----------------------------------------------------------------------------------------------- alarms
ALARM, FILTER = "AWS::CloudWatch::Alarm", "AWS::Logs::MetricFilter"
OF_THE_CANARY = {"JoinFailing", "QueryFailing"}
"""Alarms that CodeDeploy reads; the deployment that they end tells its operator."""


def counted(function: str, *names: str) -> list[cloudwatch.Metric]:
    """Metrics that a function emits."""
    return [("KANON/kanon", name, frozenset({("service", function)})) for name in names]


def of_aws(namespace: str, dimension: str, value: str, *names: str) -> list[cloudwatch.Metric]:
    """Metrics of AWS about one function, table, queue or API."""
    return [(f"AWS/{namespace}", name, frozenset({(dimension, value)})) for name in names]


LOSSES = {
    *counted("join", "JoinsRefused"),
    *counted("query", "QueriesRefused"),
    *counted("evaluate", "StepsBehind", "PublishLag", "EvaluationStopped", "SlotsFailed"),
    *counted("collect", "ReportsRefused", "KeysRefused"),
    *counted("jobs", "JobRequestsRefused"),
    *counted("decrypt", "JobsRefused", "ShardsFailed"),
    *counted("aggregate", "JobsRefused", "PublicationsFailed", "StagesFailed", "StuckJobs", "BudgetTableReplaced"),
    *counted("rotate", "BudgetTableReplaced", "KeysMissing"),
    *counted("gateway", "RelayedCallsFailed"),
    *counted("list", "ListsBehind", "ListsWithUnopenedValues"),
    *counted("released", "ListRequestsFailed"),
    *counted("issuer", "EnrolmentsFailed"),
    *(("KANON/kanon", name, frozenset[tuple[str, str]]()) for name in ("RequestsThrottled", "JoinRequestsRefused")),
    *of_aws("ApiGateway", "ApiId", "kanon-Api", "5xx"),
}
"""Metrics of the service that mean loss. Those of functions, tables and queues follow from the templates."""
HARMLESS = {
    **dict.fromkeys(
        ("JoinsAccepted", "QueriesAnswered", "ListsRead", "ReportsAccepted", "JobsFinished", "ObjectsStored"), "work"
    ),
    "EnrolmentsAnswered": "work",
    "RequestsRejected": "an error of the client",
    "DebugReports": "discarded by design",
    "SlotsWithRowsSkipped": "an operator has retired the type",
    "JoinRequestsAccepted": "work",
    "TrueSetsLoadTime": "until it is over, the table answers",
}
"""Metrics that mean no loss, and why."""
GOOD = {
    *counted("join", "JoinsAccepted"),
    *counted("query", "QueriesAnswered"),
    *counted("collect", "ReportsAccepted"),
    ("KANON/kanon", "JoinRequestsAccepted", frozenset[tuple[str, str]]()),
    *of_aws("ApiGateway", "ApiId", "kanon-Api", "Count"),
}
"""Metrics of what went well, or of everything, by which alarms divide."""
LIVE_ERRORS = {
    ("AWS/Lambda", "Errors", frozenset({("FunctionName", f"kanon-{name}"), ("Resource", f"kanon-{name}:live")}))
    for name in ("Join", "Query")
}
"""Of the alias: during a deployment it has two versions."""
OF_SCHEDULES = {"StepsBehind", "KeysMissing", "StuckJobs", "ListsBehind"}
"""Metrics that a schedule emits: without data nothing runs."""
PUBLISH_LAG = ("KANON/kanon", "PublishLag", frozenset({("service", "evaluate")}))

STEP, HOUR, FIVE_MINUTES, MINUTE = 1800, 3600, 300, 60
JUDGED: dict[str, tuple[float, int]] = {
    **dict.fromkeys(("StepsBehind",), (0, 2 * STEP)),
    **dict.fromkeys(("PublishLag",), (0, STEP)),
    **dict.fromkeys(("KeysMissing", "StuckJobs"), (0, 900)),
    **dict.fromkeys(("QueriesRefused", "Throttles", "WriteThrottleEvents", "ReadThrottleEvents"), (0, 900)),
    **dict.fromkeys(("RequestsThrottled",), (0, 900)),
    **dict.fromkeys(("JoinsRefused", "JoinRequestsRefused", "ReportsRefused"), (1, HOUR)),
    "ListsBehind": (1, 900),
    "5xx": (10, 900),
    "ApproximateAgeOfOldestMessage": (3600, FIVE_MINUTES),
}
"""The most of a loss that is accepted (of 1,000 if the alarm divides), and for how many seconds more must last until
the alarm. Otherwise nothing is accepted, for five minutes."""
PATIENT = ("Maps.QueueName", "Stages.QueueName")
"""Queues in which a message of a large job may wait for hours."""


@rule(*WITH_FUNCTIONS, OBSERVABILITY, together=True)
def everything_that_fails_raises_an_alarm_that_notifies(documents: Documents) -> Problems:
    stack = documents.deployed(**EVERYTHING, Period=str(STEP), **MAIL)
    alarms = stack.of_type(ALARM)
    watched = {
        found for name, one in alarms.items() if name not in OF_THE_CANARY for found, _ in cloudwatch.metrics(one)
    }
    watched |= {
        found for name in OF_THE_CANARY for found, _ in cloudwatch.metrics(alarms[name]) if found in LIVE_ERRORS
    }
    for loss in (LOSSES | LIVE_ERRORS | set(losses_of_aws(stack))) - watched:
        yield f"nobody watches {loss}"
    (topic,) = stack.of_type("AWS::SNS::Topic").values()
    if topic["Subscription"] != [{"Protocol": "email", "Endpoint": MAIL["AlarmEmail"]}]:
        yield "the topic mails nobody"
    unwatched = documents.deployed(**EVERYTHING, Alarms="OFF", **MAIL)
    topics = {
        unwatched.nested[name].parameters["AlarmTopic"]
        for name in ("ReportsStack", "AnonymousStack", "ListsStack", "CredentialsStack")
    }
    if topics != {""} or unwatched.of_type(ALARM).keys() - OF_THE_CANARY:
        yield "there are alarms without being asked for"
    silent = documents.deployed(**EVERYTHING).of_type(ALARM)
    if documents.deployed(Reports="ON").of_type("AWS::SNS::Topic"):
        yield "there is a topic without an address"
    if documents[OBSERVABILITY]["Outputs"] != {"Topic": {"Condition": "HasAlarmEmail", "Value": {"Ref": "Topic"}}}:
        yield "reports do not learn the topic"
    for name, one in alarms.items():
        told = [] if name in OF_THE_CANARY else ["kanon-Observability-Topic"]
        for word in ("AlarmActions", "OKActions"):
            if one.get(word, []) != told or word in silent[name]:
                yield f"{name} tells {one.get(word)} ({word}), or others without an address"
        if one.get("ActionsEnabled", True) is not True or "AlarmName" in one or not one.get("AlarmDescription"):
            yield f"{name} is mute, has no description or a fixed name"


def losses_of_aws(stack: Deployed) -> Iterator[cloudwatch.Metric]:
    """What AWS says of each function, table and queue that fails."""
    for part, one in stack.every_resource("AWS::Serverless::Function"):
        yield from of_aws("Lambda", "FunctionName", part.resolve({"Ref": one.logical_id}), "Errors", "Throttles")
    for part, one in stack.every_resource("AWS::DynamoDB::Table"):
        table = part.resolve({"Ref": one.logical_id})
        yield from of_aws("DynamoDB", "TableName", table, "WriteThrottleEvents", "ReadThrottleEvents")
    read = {one["EventSourceArn"] for one in stack.of_type("AWS::Lambda::EventSourceMapping").values()}
    for part, one in stack.every_resource("AWS::SQS::Queue"):
        queue = part.resolve({"Fn::GetAtt": [one.logical_id, "QueueName"]})
        live = part.resolve({"Fn::GetAtt": [one.logical_id, "Arn"]}) in read
        word = "ApproximateAgeOfOldestMessage" if live else "ApproximateNumberOfMessagesVisible"
        yield from of_aws("SQS", "QueueName", queue, word)


@rule(*WITH_FUNCTIONS, OBSERVABILITY, together=True)
def each_alarm_is_raised_by_each_loss_that_it_watches_and_by_nothing_else(documents: Documents) -> Problems:
    stack = documents.deployed(**EVERYTHING, Period=str(STEP), **MAIL)
    known = LOSSES | set(losses_of_aws(stack)) | GOOD | LIVE_ERRORS
    for name, alarm in stack.of_type(ALARM).items():
        if strange := {one for one, _ in cloudwatch.metrics(alarm)} - known:
            yield f"{name} reads {strange}, which is no loss or is not emitted"
        yield from misjudged(name, json.dumps(alarm))


@cache
def misjudged(name: str, text: str) -> list[str]:
    """What an alarm, given as JSON, gets wrong."""
    alarm: Any = json.loads(text)
    found = []
    watched = [one for one, _ in cloudwatch.metrics(alarm)]
    silent = any(one[1] in OF_SCHEDULES for one in watched)
    if alarm.get("TreatMissingData") != ("breaching" if silent else "notBreaching"):
        found.append(f"{name} treats missing data as {alarm.get('TreatMissingData')}")
    if "ExtendedStatistic" in alarm and alarm.get("EvaluateLowSampleCountPercentile") != "evaluate":
        found.append(f"{name} is silent while there are few slots")
    length = cloudwatch.period(alarm)
    if length % 60 or length * alarm["EvaluationPeriods"] > (DAY if length < HOUR else 7 * DAY):
        found.append(f"{name} looks at periods CloudWatch refuses")
    for loss in watched:
        if loss in GOOD:
            continue
        accepted, lasting = (10, MINUTE) if name in OF_THE_CANARY else judgement(loss)
        cases = [(accepted, lasting, "OK"), (accepted + 1, lasting, "ALARM"), (accepted + 1, lasting - length, "OK")]
        for value, seconds, expected in cases[: 2 + (lasting > length)]:
            if cloudwatch.state(alarm, history(alarm, loss, value, seconds)) != expected:
                found.append(f"{name} is not {expected} after {seconds} s with {value} of {loss[1]}")
    return found


def judgement(loss: cloudwatch.Metric) -> tuple[float, int]:
    """The most of a loss that is accepted, and for how many seconds more lasts until the alarm."""
    queue = "".join(value for _, value in loss[2])
    return (6 * HOUR, FIVE_MINUTES) if queue.endswith(PATIENT) else JUDGED.get(loss[1], (0, FIVE_MINUTES))


def history(alarm: Any, loss: cloudwatch.Metric, value: float, seconds: int) -> cloudwatch.Samples:
    """Samples of a loss that has lasted for some seconds; before, and in everything else, all is well."""
    length, found = cloudwatch.period(alarm), {}
    for one, _ in cloudwatch.metrics(alarm):
        for number in range(alarm["EvaluationPeriods"]):
            given = value if length * number < seconds else 0
            if one in GOOD:
                each = [1000.0 if one[1] == "Count" else 1000.0 - given]
            elif one == loss == PUBLISH_LAG:  # 1% of 300 slots may be late
                each = [1.0] * (3 + int(given)) + [0.0] * (297 - int(given))
            else:
                each = [0.0, given if one == loss else 0.0]
            found.setdefault(one, []).extend((length * number + 0.5, sample) for sample in each)
    return found


@rule(GATE, OBSERVABILITY, together=True)
def filters_count_the_requests_that_their_metrics_name(documents: Documents) -> Problems:
    stack = documents.deployed()
    joins = [key for key, (function, _) in ROUTES.items() if function == "Join"]
    logged = json.loads(properties(documents[GATE], "Stage")["AccessLogSettings"]["Format"])
    if not {"status", "routeKey"} <= set(logged) or {logged[one] for one in ("status", "routeKey")} != {
        "$context.status",
        "$context.routeKey",
    }:
        yield "the access log has no status or route"
    wanted = {
        "RequestsThrottled": {(key, status) for key in ROUTES for status in STATUSES if status == "429"},
        "JoinRequestsRefused": {(key, one) for key in joins for one in STATUSES if one[0] == "5" or one == "429"},
        "JoinRequestsAccepted": {(key, one) for key in joins for one in STATUSES if one[0] == "2"},
    }
    told = {}
    for name, given in stack.of_type(FILTER).items():
        (change,) = given["MetricTransformations"]
        if {**change, "MetricName": ""} != {
            "MetricNamespace": "KANON/kanon", "MetricName": "", "MetricValue": "1", "DefaultValue": 0
        } or given["LogGroupName"] != "kanon-AccessLogs":  # fmt: skip
            yield f"{name} counts {change} of {given['LogGroupName']}"
        lines = [(key, status) for key in ROUTES for status in STATUSES]
        told[change["MetricName"]] = {
            (key, status)
            for key, status in lines
            if cloudwatch.matches(given["FilterPattern"], {"routeKey": key, "status": status})
        }
    if told != wanted:
        yield "a filter counts other requests than its metric names"


STATUSES = ("200", "202", "400", "404", "429", "500", "503")


def _widgets(document: Document) -> tuple[Document, ...]:
    text = properties(document, "Dashboard")["DashboardBody"]["Fn::Sub"]
    body = re.sub(r"\$\{([\w.:]+)\}", lambda found: "60" if found[1] == "Period" else found[1], text)
    return tuple(json.loads(body)["widgets"])


@rule(GATE, REPORTS, ANONYMOUS, LISTS, OBSERVABILITY, together=True)
def the_dashboard_shows_every_function_and_the_bucket_of_lists(documents: Documents) -> Problems:
    """Errors and duration of each: by its name, or by a search for the nested stack that it is of."""
    shown: dict[str, set[str]] = {}
    searched = []
    for widget in _widgets(documents[OBSERVABILITY])[1:]:
        last: list[Any] = []
        for metric in widget["properties"]["metrics"]:
            if isinstance(metric[0], dict):
                searched.append(metric[0]["expression"])
                continue
            names = [each for each in metric if isinstance(each, str)]
            names = [*last[: len(last) - len(names) + 1], *names[1:]] if names[0] == "..." else names
            last = [before if each == "." else each for each, before in zip(names, last or names, strict=False)]
            last += names[len(last) :]
            if last[0] == "AWS/Lambda":
                shown.setdefault(last[1], set()).add(last[-1])
    for number in ("Errors", "Duration"):
        parts = [each for each in searched if f"MetricName={number}" in each]
        for path, stack in (
            (GATE, ""),
            (REPORTS, "ReportsStack"),
            (ANONYMOUS, "AnonymousStack"),
            (LISTS, "ListsStack"),
        ):
            for name in functions(documents[path]):
                if name not in shown.get(number, ()) and not (stack and any(stack in each for each in parts)):
                    yield f"{number} of {name} are not shown"
    for number in ("NumberOfObjects", "BucketSizeBytes"):
        if not any(f"MetricName={number} BucketName=(Words AND listbucket)" in each for each in searched):
            yield f"{number} of the bucket of lists is not shown"
    told = {name for name, stack in documents[GATE]["Resources"].items() if stack["Type"] == STACK}
    if (
        not {"ReportsStack", "AnonymousStack", "ListsStack"} <= told
        or "ListBucket" not in documents[LISTS]["Resources"]
    ):
        yield "the dashboard searches names that no resource has"


@rule(OBSERVABILITY)
def the_dashboard_shows_every_alarm(document: Document) -> Problems:
    given = properties(document, "Dashboard")
    (first, *rest) = _widgets(document)
    if {name.removesuffix(".Arn") for name in first["properties"]["alarms"]} != set(of_type(document, ALARM)):
        yield "an alarm is not shown"
    places = [(one["x"], one["y"]) for one in (first, *rest)]
    if len(set(places)) != len(places) or not rest:
        yield "widgets lie on each other"
    if given["DashboardName"] != {"Fn::Sub": "${Deployment}-${AWS::Region}"}:
        yield "two dashboards would have one name"


# ---------------------------------------------------------------------------------------------- outputs
@rule(*WITH_FUNCTIONS)
def outputs_hold_what_their_names_say(document: Document) -> Problems:
    """StepLogTable is StepLog, JoinFunction the alias of Join; an output of reports is that of the nested stack."""
    nested = "Name" in document["Parameters"]
    for name, output in document["Outputs"].items():
        resource = re.sub(r"(Table|Url|Secret|Function|Arn)$", "", name)
        value = {"Ref": resource}
        if name.endswith("Arn"):
            value = {"Fn::GetAtt": [resource, "Arn"]}
        if name.endswith("Function"):
            value = {"Ref": f"{resource}.Alias"}
        if name in OUTPUTS:
            value = OUTPUTS[name]
        condition = None
        if not nested and resource not in document["Resources"] and name not in OUTPUTS:
            within = next((stack for names, *stack in NESTED.values() if name in names), ["ReportsStack", "HasReports"])
            value, condition = {"Fn::GetAtt": [within[0], f"Outputs.{name}"]}, within[1]
        if name in ("DomainTarget", "EdgeSecretArn"):
            condition = "HasDomainName"
        if name == "JoinUrl":
            condition = "HasJoinUrl"
        if name == "RelaySecretArn":
            value = {"Ref": "RelaySecret"} if nested else {"Fn::GetAtt": ["AnonymousStack", f"Outputs.{name}"]}
            condition = "RelaysAuthenticate" if nested else "HasRelaySecret"
        if name == "GatewayKeySecret" and nested:
            value = {"Ref": "GatewayKey"}
        if (output["Value"], output.get("Condition")) != (value, condition):
            yield f"{name} is {output}"


NESTED = {
    ANONYMOUS: (("GatewayFunction", "GatewayKeySecret", "RelaySecretArn"), "AnonymousStack", "HasGateway"),
    LISTS: (("ListBucket", "ListFunction", "ReleasedFunction"), "ListsStack", "HasListerKey"),
    CREDENTIALS: (("AccountsTable", "IssuerFunction", "AccountKeySecret"), "CredentialsStack", "HasIssuerKey"),
}
"""The outputs of a nested stack but that of reports, its name, and its condition."""
OUTPUTS: dict[str, Document] = {
    "ApiUrl": {
        "Fn::If": ["HasDomainName", {"Fn::Sub": "https://${DomainName}"}, {"Fn::GetAtt": ["Api", "ApiEndpoint"]}]
    },
    "DomainTarget": {"Fn::GetAtt": ["Domain", "RegionalDomainName"]},
    "EdgeSecretArn": {"Ref": "EdgeSecret"},
    "JoinUrl": JOIN_URL,
}


@rule(*WITH_FUNCTIONS, together=True)
def outputs_name_what_operators_need(documents: Documents) -> Problems:
    """Also what a deleted stack leaves: the guide names it by the outputs."""
    told = {path: documents[path]["Outputs"] for path in WITH_FUNCTIONS}
    for path, outputs in told.items():
        values = json.dumps([output["Value"] for output in outputs.values()])
        for name in of_type(documents[path], *STATEFUL, "AWS::SQS::Queue", "AWS::Serverless::Function"):
            if f'"{name}"' not in values and f'"{name}.Alias"' not in values:
                yield f"no output names {name}"
    ours = {name for name, one in told[GATE].items() if one.get("Condition") == "HasReports"}
    for path, (names, *_) in NESTED.items():
        if set(told[path]) != set(names) or not set(names) <= set(told[GATE]):
            yield f"the stack, or {path}, has other outputs than {', '.join(names)}"
    if ours != set(told[REPORTS]) or set(OUTPUTS) - set(told[GATE]):
        yield f"the stack has no outputs {ours ^ set(told[REPORTS])}, or not {', '.join(OUTPUTS)}"
