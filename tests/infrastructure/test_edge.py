"""The template of the edge stores nothing of a request and sends the secret header; each rule detects a change."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kanon.http.origin import HEADER
from tests.infrastructure.template import ROOT, Document, of_type, properties, read

PATH = ROOT / "infra" / "edge.yaml"
NO_CACHE = "4135ea2d-6df8-44a3-9df3-4b5a84be39ad"
ALL_OF_THE_VIEWER = "216adef6-5c7f-47e4-b989-5492eafa07d3"
"""Ids of AWS's managed policies CachingDisabled and AllViewer, the same in every account."""


def document() -> Document:
    return read(PATH)


def distribution(edge: Document) -> Any:
    return properties(edge, "Distribution")["DistributionConfig"]


def problems(edge: Document) -> Iterator[str]:
    """The parts of a request that the edge would store, show, or pass on without a check."""
    given, behaviour = distribution(edge), distribution(edge)["DefaultCacheBehavior"]
    if behaviour.get("CachePolicyId") != NO_CACHE or "CacheBehaviors" in given or "ForwardedValues" in behaviour:
        yield "answers are cached: a fast one shows that somebody asked"
    if behaviour.get("OriginRequestPolicyId") != ALL_OF_THE_VIEWER:
        yield "signatures do not reach the API: they cover the host"
    if behaviour.get("ViewerProtocolPolicy") != "https-only":
        yield "requests travel in clear text"
    if {"Logging", "CustomErrorResponses"} & set(given) or behaviour.get("RealtimeLogConfigArn"):
        yield "paths are logged, or errors cached"
    if {"FunctionAssociations", "LambdaFunctionAssociations"} & set(behaviour):
        yield "code sees the requests"
    if "POST" not in behaviour["AllowedMethods"] or behaviour.get("Compress") is not False:
        yield "joins are refused, or answers are compressed"
    (origin,) = given["Origins"]
    secret = {"Fn::Sub": "{{resolve:secretsmanager:${OriginSecret}:SecretString:current}}"}
    if origin.get("OriginCustomHeaders") != [{"HeaderName": HEADER, "HeaderValue": secret}]:
        yield "the functions cannot tell a request that came through the edge"
    if origin["CustomOriginConfig"] != {"OriginProtocolPolicy": "https-only", "OriginSSLProtocols": ["TLSv1.2"]}:
        yield "the secret header travels in clear text, or by an old TLS"
    if origin["DomainName"] != {"Ref": "Origin"} or given["Aliases"] != [{"Ref": "DomainName"}]:
        yield "the edge serves another name or asks elsewhere"
    if given.get("WebACLId") != {"Fn::GetAtt": ["Firewall", "Arn"]}:
        yield "there is no firewall"
    firewall = properties(edge, "Firewall")
    if firewall["Scope"] != "CLOUDFRONT":
        yield "the firewall is of another kind"
    for part in (firewall, *firewall["Rules"]):
        if part["VisibilityConfig"].get("SampledRequestsEnabled") is not False:
            yield "sampled requests show paths"
    if "DataProtectionConfig" in firewall or of_type(edge, "AWS::WAFv2::LoggingConfiguration"):
        yield "the firewall logs requests"
    limits = [rule["Statement"].get("RateBasedStatement", {}) for rule in firewall["Rules"]]
    if {"Limit": {"Ref": "AddressRate"}, "EvaluationWindowSec": 300, "AggregateKeyType": "IP"} not in limits:
        yield "no address has a limit"
    if set(edge["Resources"]) != {"Firewall", "Distribution"}:
        yield "there is more than a firewall and a distribution"
    for name in ("CertificateArn", "OriginSecret"):
        if ":us-east-1:" not in edge["Parameters"][name].get("AllowedPattern", ""):
            yield f"{name} may be of a region that CloudFront does not read"


Change = Callable[[Document], object]


def behaviour(**values: Any) -> Change:
    return lambda edge: distribution(edge)["DefaultCacheBehavior"].update(values)


def config(**values: Any) -> Change:
    return lambda edge: distribution(edge).update(values)


def origin(**values: Any) -> Change:
    return lambda edge: distribution(edge)["Origins"][0].update(values)


def firewall(**values: Any) -> Change:
    return lambda edge: properties(edge, "Firewall").update(values)


SAMPLED = {"SampledRequestsEnabled": True, "CloudWatchMetricsEnabled": True, "MetricName": "requests"}
VIOLATIONS: dict[str, Change] = {
    "cached": behaviour(CachePolicyId="658327ea-f89d-4fab-a63d-7e88639e58f6"),
    "cached on a path": config(CacheBehaviors=[{"PathPattern": "/v1/types"}]),
    "other host": behaviour(OriginRequestPolicyId="b689b0a8-53d0-40ab-baf2-68738e2966ac"),
    "clear text": behaviour(ViewerProtocolPolicy="allow-all"),
    "access log": config(Logging={"Bucket": "logs"}),
    "real-time log": behaviour(RealtimeLogConfigArn="arn"),
    "cached errors": config(CustomErrorResponses=[{"ErrorCode": 503}]),
    "code": behaviour(FunctionAssociations=[{"EventType": "viewer-request"}]),
    "reads only": behaviour(AllowedMethods=["GET", "HEAD"]),
    "compressed": behaviour(Compress=True),
    "no header": origin(OriginCustomHeaders=[]),
    "another header": origin(OriginCustomHeaders=[{"HeaderName": "x-other", "HeaderValue": "secret"}]),
    "old TLS": origin(CustomOriginConfig={"OriginProtocolPolicy": "https-only", "OriginSSLProtocols": ["TLSv1"]}),
    "secret in clear text": origin(CustomOriginConfig={"OriginProtocolPolicy": "match-viewer"}),
    "elsewhere": origin(DomainName="example.org"),
    "no firewall": lambda edge: distribution(edge).pop("WebACLId"),
    "regional": firewall(Scope="REGIONAL"),
    "sampled": firewall(VisibilityConfig=SAMPLED),
    "sampled by a rule": lambda edge: properties(edge, "Firewall")["Rules"][0].update(VisibilityConfig=SAMPLED),
    "firewall log": lambda edge: edge["Resources"].update(Log={"Type": "AWS::WAFv2::LoggingConfiguration"}),
    "no limit": lambda edge: properties(edge, "Firewall")["Rules"].pop(),
    "one limit for all": lambda edge: properties(edge, "Firewall")["Rules"][0]["Statement"].update(
        RateBasedStatement={"Limit": 100, "AggregateKeyType": "CONSTANT"}
    ),
    "any region": lambda edge: edge["Parameters"]["OriginSecret"].pop("AllowedPattern"),
}


def test_the_edge_stores_nothing_and_is_recognised() -> None:
    assert list(problems(document())) == []


@pytest.mark.parametrize("change", VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_planted_violation_is_found(change: Change) -> None:
    edge = document()
    change(edge)
    assert list(problems(edge))


def test_the_stack_gives_the_edge_every_parameter_that_it_has() -> None:
    given = properties(read(), "EdgeStack")["Parameters"]
    assert set(given) == set(document()["Parameters"])
    assert read()["Parameters"]["EdgeAddressRate"]["Default"] == document()["Parameters"]["AddressRate"]["Default"]
