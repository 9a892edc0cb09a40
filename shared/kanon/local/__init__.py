"""The stack on one machine: the templates on an embedded AWS emulator, behind real HTTP, without alarms and edge.

With simulated time, in Unix seconds::

    with Stack({"Slots": "8"}, start=1_700_000_000) as stack:
        stack.request("POST", "/v1/types/fledge/sets/aGVsbG8:join", {"client": "a"})
        stack.advance(3600 + 1800)  # the schedule fires, the queue runs
        stack.request("GET", "/v1/types/fledge/sets/aGVsbG8").json()

Real are the functions' code, each with exactly the environment variables of its template, their events and contexts,
the calls of boto3, and visibility, redelivery, dead letters, retries and batches of messages, by the stack's clock.
Replaced are Lambda (one copy of each function, in this process; a function that invokes another one waits for it),
API Gateway (routes, CORS, 404 and 413, function URLs; no signatures, no throttling) and the services behind boto3
(ministack, a child process on a free port, or moto). Bucket policies, KMS keys and roles are not enforced. Of the
clock only `kanon.clock.now` is replaced. Expired rows and objects go every six hours. One event is handled at a time.
"""

from kanon.local.engines import EngineError
from kanon.local.functions import FunctionError
from kanon.local.gateway import GatewayRequest, GatewayResponse
from kanon.local.stack import Stack
from kanon.local.template import TemplateError

__all__ = ["EngineError", "FunctionError", "GatewayRequest", "GatewayResponse", "Stack", "TemplateError"]
