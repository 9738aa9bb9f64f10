"""The HTTP interface, as an ASGI application over any backend."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from fastapi import FastAPI, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

import wildtta
from wildtta.serve.access import Tokens, tenant_name
from wildtta.serve.answering import as_json, as_npy
from wildtta.serve.backend import Backend
from wildtta.serve.decoding import Decoder
from wildtta.serve.logs import log
from wildtta.serve.metrics import Metrics
from wildtta.serve.refusal import Refusal
from wildtta.serve.room import Place, Room
from wildtta.serve.schema import ANSWERS, IMAGES, TITLE, Health, Prediction, TenantStatus
from wildtta.serve.settings import Settings

_ID = re.compile(r"[\x21-\x7e]{1,128}")
_SLOWEST_BODY = 30.0
"""Seconds in which a body must have come."""

TenantHeader = Annotated[str, Header(alias="X-Tenant", description="Whose stream the images belong to.")]
TenantPath = Annotated[str, Path(description="Whose stream the images belong to.")]
RequestId = Annotated[
    str | None,
    Header(alias="X-Request-Id", description="Makes a retry harmless: the same id is answered again and learned once."),
]
Token = Annotated[str | None, Header(description="Bearer TOKEN, where the service asks for one.")]
Output = Annotated[Literal["classes", "probabilities", "logits"], Query(description="What to answer with.")]
Learn = Annotated[bool, Query(description="false: answer only.")]
Accept = Annotated[str, Header(description="application/x-npy: one array in place of JSON.")]
Verb = Annotated[Literal["pause", "resume", "rollback", "reset"], Path(description="What to do with the tenant.")]
Names = Annotated[str | None, Query(description="Names with commas; all by default.")]
Since = Annotated[float | None, Query(description="With the history since this time (seconds since 1970).")]


def build_app(settings: Settings, backend: Backend) -> FastAPI:
    """The application: what is decoded and refused here never reaches a replica."""
    app = FastAPI(title=TITLE, version=wildtta.__version__, docs_url=None, redoc_url=None)
    limits, tokens, metrics = settings.limits, Tokens(settings.tokens), Metrics()
    room = Room(limits.flight)
    decoder = Decoder(settings.protocol, settings.size, limits.pixels, limits.images)
    if settings.hosts is not None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(settings.hosts))

    @app.middleware("http")
    async def watch(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        began = time.monotonic()
        try:
            _refuse_foreign_pages(request)
            _refuse_ambiguous_callers(request)
            response = await call_next(request)
        except Refusal as refusal:
            response = _refused(refusal)
        except Exception:
            log("a request failed", error=True, path=request.url.path)
            response = JSONResponse({"error": "something went wrong in the service; its log says what"}, 500)
        # The route as it is declared: a path of the caller's would make a new metric of every name.
        route = getattr(request.scope.get("route"), "path", "other")
        seconds = time.monotonic() - began
        metrics.count(route, response.status_code, seconds)
        facts: dict[str, Any] = {"route": route, "status": response.status_code, "ms": round(1000 * seconds, 1)}
        tenant = request.scope.get("path_params", {}).get("tenant", request.headers.get("x-tenant"))
        log("request", level=logging.DEBUG, tenant=tenant, **facts)
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal) -> Response:
        return _refused(refusal)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first.get("loc", ()))
        return JSONResponse({"error": f"{where}: {first.get('msg', 'invalid')}"}, 422)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": f"{error.detail}; /openapi.json tells what there is"}, error.status_code)

    def check_tenant(request: Request, tenant: str, token: str | None) -> None:
        """Whether the caller may act for a tenant; the header and the path must not tell two."""
        tokens.check(tenant_name(tenant), token)
        if request.headers.get("x-tenant", tenant) != tenant:
            raise Refusal(
                400, f"the path tells the tenant {tenant!r}, the header X-Tenant another one; send one of them"
            )

    async def answered(
        request: Request, tenant: str, request_id: str | None, token: str | None, output: str, learn: bool, accept: str
    ) -> Response:
        check_tenant(request, tenant, token)
        if request_id is not None and not _ID.fullmatch(request_id):
            raise Refusal(400, "X-Request-Id: expected 1 to 128 printable ASCII characters without spaces")
        chosen = request_id or uuid.uuid4().hex
        with room.place(tenant) as place:
            body = await _body(request, limits.body, place)
            # In a thread: a large picture takes a while, and others should not wait for it.
            images = await asyncio.to_thread(decoder, body)
            del body
            place.hold(images.nbytes)
            logits = await backend.answer(tenant, chosen, images, learn)
        headers = {"X-Request-Id": chosen}
        if "application/x-npy" in accept:
            return Response(as_npy(logits, output), media_type="application/x-npy", headers=headers)
        content = as_json(logits, output, tenant=tenant, request_id=chosen, names=settings.names)
        return Response(content, media_type="application/json", headers=headers)

    answering: dict[str, Any] = {
        "responses": {**ANSWERS, 200: {"model": Prediction}},
        "openapi_extra": {"requestBody": IMAGES},
        "tags": ["answers"],
    }

    @app.post("/v1/predict", summary="Answer images, and learn from them", **answering)
    async def predict(
        request: Request,
        x_tenant: TenantHeader = "default",
        x_request_id: RequestId = None,
        authorization: Token = None,
        output: Output = "classes",
        learn: Learn = True,
        accept: Accept = "application/json",
    ) -> Response:
        return await answered(request, x_tenant, x_request_id, authorization, output, learn, accept)

    @app.post("/v1/tenants/{tenant}/predict", summary="The same with the tenant in the path", **answering)
    async def predict_for(
        request: Request,
        tenant: TenantPath,
        x_request_id: RequestId = None,
        authorization: Token = None,
        output: Output = "classes",
        learn: Learn = True,
        accept: Accept = "application/json",
    ) -> Response:
        return await answered(request, tenant, x_request_id, authorization, output, learn, accept)

    @app.post(
        "/v1/tenants/{tenant}/{verb}",
        summary="Pause, resume, roll back or reset a tenant",
        responses={**ANSWERS, 200: {"model": TenantStatus}},
        tags=["tenants"],
    )
    async def act(request: Request, tenant: TenantPath, verb: Verb, authorization: Token = None) -> Response:
        check_tenant(request, tenant, authorization)
        return JSONResponse(await backend.act(tenant, verb))

    @app.get(
        "/v1/tenants/{tenant}",
        summary="One tenant and its history",
        responses={**ANSWERS, 200: {"model": TenantStatus}},
        tags=["tenants"],
    )
    async def one(request: Request, tenant: TenantPath, since: Since = 0.0, authorization: Token = None) -> Response:
        check_tenant(request, tenant, authorization)
        for replica in await backend.status([tenant], since):
            if tenant in replica["tenants"]:
                return JSONResponse(replica["tenants"][tenant])
        raise Refusal(404, f"the tenant {tenant!r} has sent nothing since its replica started")

    @app.get("/v1/tenants", summary="All tenants and replicas", responses={**ANSWERS}, tags=["tenants"])
    async def every(names: Names = None, since: Since = None, authorization: Token = None) -> Response:
        tokens.check(None, authorization)
        wanted = None if names is None else [name for name in names.split(",") if name]
        told = await backend.status(wanted, since)
        return JSONResponse(
            {
                "time": time.time(),
                "model": settings.model,
                "method": settings.method,
                "guard": settings.guard is not None,
                "classes": list(settings.names),
                "replicas": [replica["replica"] for replica in told],
                "tenants": [tenant for replica in told for tenant in replica["tenants"].values()],
            }
        )

    @app.get(
        "/healthz", summary="Whether every replica answers", responses={200: {"model": Health}}, tags=["operation"]
    )
    async def healthz() -> Response:
        found = await backend.health()
        well = all(replica is not None and replica["alive"] for replica in found)
        # Anybody may ask for this: why is told on the page, with names of tenants and files.
        failing = [index for index, replica in enumerate(found) if replica is not None and replica["alarm"]]
        alarms = [f"replica {index}: states cannot be saved, learning is paused" for index in failing]
        missing = [index for index, replica in enumerate(found) if replica is None or not replica["alive"]]
        told = {"status": "ok" if well else "a replica does not answer", "missing": missing, "alarms": alarms}
        return JSONResponse(told, 200 if well else 503)

    @app.get("/metrics", summary="Counters and gauges for Prometheus", tags=["operation"])
    async def prometheus(authorization: Token = None) -> Response:
        tokens.check(None, authorization)
        text = metrics.text(await backend.status(None, None))
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return _html("page.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return _html("reference.html")

    return app


async def _body(request: Request, most: int, place: Place) -> bytes:
    """The body, unless it is larger than the limit: what is too much is not kept."""
    too_large = Refusal(413, f"the body is larger than {most:,} bytes")
    if (told := request.headers.get("content-length", "")).isdecimal() and int(told) > most:
        raise too_large

    async def read() -> bytes:
        # One block that grows: thousands of small parts would leave memory behind that cannot be given back.
        body = bytearray()
        async for part in request.stream():
            if len(body) + len(part) > most:
                raise too_large
            place.hold(len(body) + len(part))
            body += part
        return bytes(body)

    try:
        return await asyncio.wait_for(read(), _SLOWEST_BODY)
    except asyncio.TimeoutError:
        raise Refusal(408, f"the body did not come within {_SLOWEST_BODY:g} seconds") from None
    except ClientDisconnect:
        # Nobody reads this; but it is no failure of the service, with a traceback in its log each time.
        raise Refusal(400, "the connection was closed before the whole body had come") from None


def _refuse_foreign_pages(request: Request) -> None:
    """A page of somebody else, open in a browser that reaches this service, must not teach or reset anything."""
    origin = request.headers.get("origin")
    if origin is None or request.method in ("GET", "HEAD"):
        return
    try:
        same = urlsplit(origin).netloc == request.headers.get("host")
    except ValueError:
        same = False
    if not same:
        raise Refusal(403, "requests from pages of other origins are refused")


def _refuse_ambiguous_callers(request: Request) -> None:
    """Of two headers a proxy before the service may look at one, and the service at the other."""
    for name in ("x-tenant", "x-request-id", "authorization"):
        if len(request.headers.getlist(name)) > 1:
            raise Refusal(400, f"the header {name.title()} came twice; send it once")


def _refused(refusal: Refusal) -> Response:
    after = {} if refusal.retry_after is None else {"Retry-After": f"{refusal.retry_after:g}"}
    return JSONResponse({"error": refusal.text}, refusal.status, headers=after)


@functools.cache
def _html(name: str) -> HTMLResponse:
    text = resources.files("wildtta.serve").joinpath(name).read_text(encoding="utf-8")
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
    )
    return HTMLResponse(text, headers={"Content-Security-Policy": policy, "Cache-Control": "no-cache"})
