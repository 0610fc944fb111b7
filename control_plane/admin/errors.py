"""Error responses of the admin API: one form for all errors, also those of FastAPI and Starlette.

Callers that accept `application/problem+json` get problem details (RFC 9457) with the same code. What is refused before
a request has been read, such as a head that is too large, is plain JSON for everybody: nothing is known of the caller yet.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from control_plane.admin.schema.rules import RULES
from control_plane.core.errors import ControlPlaneError, ErrorCode, InvalidRequest, MethodNotAllowed, PayloadTooLarge, RouteNotFound
from control_plane.core.text.validation_words import words_of
from control_plane.frontends.common.status import STATUS, advice_of, message_of
from control_plane.protocols.http1 import HttpAnswer, make_answer


class ErrorView(BaseModel):
    """Why a call failed; `code` is stable, `error` is for people."""

    error: str
    code: str
    retryable: bool


class ProblemView(BaseModel):
    """Why a call failed, as problem details (RFC 9457)."""

    type: str
    """`urn:tidegate:error:` and the code."""
    title: str
    """The code in words."""
    status: int
    detail: str
    code: str
    retryable: bool


PROBLEM_TYPE = "application/problem+json"
_ERROR_CONTENT = {
    "application/json": {"schema": {"$ref": "#/components/schemas/ErrorView"}},
    PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemView"}},
}
"""Content of every error response: references, since FastAPI builds a validator for each response that names a model, hundreds
at each start, and uses none of them."""

_FOREIGN_ORIGIN = "foreign_origin"
"""The only code that is not an `ErrorCode`, since no other frontend has this error."""


def error_responses(*codes: ErrorCode) -> dict[int | str, dict[str, Any]]:
    """Describe the responses of these errors for OpenAPI, which has `error_schemas` too."""
    return {STATUS[code].http: {"content": _ERROR_CONTENT} for code in codes}


LIST_ERRORS = error_responses(ErrorCode.STORE_UNAVAILABLE, ErrorCode.INVALID_ARGUMENT)
"""Responses of calls that list stored objects."""
GET_ERRORS = LIST_ERRORS | error_responses(ErrorCode.OBJECT_NOT_FOUND)
"""Responses of calls that return one stored object."""
MAKE_ERRORS = LIST_ERRORS | error_responses(ErrorCode.PAYLOAD_TOO_LARGE, ErrorCode.CONFLICT, ErrorCode.IDEMPOTENCY_KEY_REUSED)
"""Responses of calls that make an object whose name the server chooses."""
CHANGE_ERRORS = GET_ERRORS | error_responses(ErrorCode.CONFLICT)
"""Responses of calls that change or delete one stored object."""


def error_schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas that the responses of errors refer to."""
    return {view.__name__: view.model_json_schema(mode="serialization") for view in (ErrorView, ProblemView)}


def answer_errors(app: FastAPI) -> None:
    """Register the handlers that answer every error in our form."""
    app.add_exception_handler(ControlPlaneError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_framework_error)


def render_answer(error: Exception, target: bytes = b"") -> HttpAnswer:
    """Render a refusal before the request has reached FastAPI, in the form of `render_error`; FastAPI's own errors
    are rendered by `asgi_bridge`."""
    if not isinstance(error, ControlPlaneError):
        raise error
    response = render_error(error)
    headers = [(name.encode(), value.encode()) for name, value in response.headers.items() if not name.startswith("content-")]
    return make_answer(response.status_code, bytes(response.body), headers=headers)


def render_error(error: ControlPlaneError, accept: str = "") -> Response:
    """Render an error with its HTTP status, and with Retry-After where a retry may succeed; `accept` is the caller's."""
    status = STATUS[error.code]
    headers = {"Retry-After": "1"} if status.retryable else {}
    headers |= {name.decode(): value.decode() for name, value in advice_of(error)}
    return _render(ErrorView(error=str(error), code=error.code.value, retryable=status.retryable), status.http, headers, accept)


def render_foreign_origin(origin: str, accept: str = "") -> Response:
    """Render the refusal (403) of a request from a web page of `origin`."""
    said = message_of(InvalidRequest(f"requests from pages of {origin} are refused"))
    return _render(ErrorView(error=said, code=_FOREIGN_ORIGIN, retryable=False), STATUS[ErrorCode.PERMISSION_DENIED].http, {}, accept)


def wants_problem(accept: str) -> bool:
    """Whether an Accept header (RFC 9110, 12.5.1) prefers problem details: it names them, and plain JSON no higher."""
    quality = {"application/json": 0.0, PROBLEM_TYPE: 0.0}
    for part in accept.lower().split(","):
        media_type, *parameters = (each.strip() for each in part.split(";"))
        quality[media_type] = _quality(parameters)
    return quality[PROBLEM_TYPE] > 0 and quality[PROBLEM_TYPE] >= quality["application/json"]


def _quality(parameters: list[str]) -> float:
    given = next((each.removeprefix("q=") for each in parameters if each.startswith("q=")), "1")
    try:
        return float(given)
    except ValueError:
        return 0.0


def _render(view: ErrorView, status: int, headers: dict[str, str], accept: str) -> Response:
    headers = {"Vary": "Accept", **headers}
    if not wants_problem(accept):
        return JSONResponse(view.model_dump(), status_code=status, headers=headers)
    problem = ProblemView(
        type=f"urn:tidegate:error:{view.code}",
        title=view.code.replace("_", " "),
        status=status,
        detail=view.error,
        code=view.code,
        retryable=view.retryable,
    )
    return JSONResponse(problem.model_dump(), status_code=status, headers=headers, media_type=PROBLEM_TYPE)


def _accept(request: Request) -> str:
    return ", ".join(request.headers.getlist("accept"))


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ControlPlaneError)
    return render_error(error, _accept(request))


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    said = "; ".join(f"{'.'.join(map(str, each['loc']))}: {_rule_of(each)}" for each in error.errors())
    return render_error(InvalidRequest(message_of(InvalidRequest(said))), _accept(request))


def _rule_of(problem: dict[str, Any]) -> str:
    """What would be right, in words where a pattern has some, else in Pydantic's."""
    if problem["loc"] == ("body",) and isinstance(problem.get("input"), bytes):  # FastAPI parses no body of another type
        return "must be a JSON object, sent with `content-type: application/json`"
    rule = RULES.get(problem.get("ctx", {}).get("pattern", ""))
    return words_of(str(problem["msg"])) if rule is None else f"must be {rule}"


async def _on_framework_error(request: Request, error: Exception) -> Response:
    """Answer Starlette's own errors: no such path or method, or a body that cannot be read."""
    assert isinstance(error, HTTPException)
    response = render_error(_error_of(request, error), _accept(request))
    response.headers.update(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["Allow"] = _methods_at(request)
    return response


def _methods_at(request: Request) -> str:
    """List all methods of the path: Starlette names only those of the first handler that matches."""
    handlers = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for handler in handlers for method in handler.methods}))


def _error_of(request: Request, error: HTTPException) -> ControlPlaneError:
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            return RouteNotFound(f"no path {request.url.path[:100]!r} here; /openapi.json lists all paths")
        case HTTPStatus.METHOD_NOT_ALLOWED:
            return MethodNotAllowed(f"{request.url.path[:100]} does not take {request.method[:20]}")
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return PayloadTooLarge(error.detail)
        case _:
            return InvalidRequest(error.detail)
