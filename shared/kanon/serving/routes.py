"""The routes of the service on one machine: three kinds, each with its limits and its form of errors."""

from enum import Enum, auto
from typing import NamedTuple

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver

from kanon.http.answers import ErrorForm, own_form
from kanon.http.bodies import OWN_BODIES, Bodies


class RouteKind(Enum):
    """Of a route: the gate's, the collector's, or about jobs."""

    GATE = auto()
    COLLECTED = auto()
    JOBS = auto()


class Routes(NamedTuple):
    """A resolver with the limits of its bodies and the form of its errors."""

    app: APIGatewayHttpResolver
    bodies: Bodies = OWN_BODIES
    form: ErrorForm = own_form
