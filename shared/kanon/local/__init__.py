"""The service on one machine: template.yaml on an embedded AWS emulator, behind real HTTP."""

from kanon.local.engines import EngineError
from kanon.local.functions import FunctionError
from kanon.local.gateway import GatewayResponse, Request
from kanon.local.stack import Stack
from kanon.local.template import TemplateError

__all__ = ["EngineError", "FunctionError", "GatewayResponse", "Request", "Stack", "TemplateError"]
