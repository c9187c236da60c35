"""The addresses of the pages, and the server, which is based on uvicorn."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Timer
from typing import Any
from urllib.parse import parse_qs

from windrow.errors import MissingExtraError, NotFoundError, SettingsError, TableMissingError, UsageError, first_line

try:
    import jinja2  # noqa: F401 - the templates of reports need it
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, RedirectResponse, Response
    from starlette.routing import Route
except ImportError as missing:
    what, hint = "windrow ui needs starlette, uvicorn and jinja2", "pip install 'windrow-delta[ui]'"
    raise MissingExtraError(what, hint) from missing

from windrow.report.page import context, environment
from windrow.settings.settings import Settings
from windrow.ui import pages
from windrow.ui.access import HEADERS, Access, Refusal
from windrow.ui.views import LedgerView, LiveReport

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'"
)
MAX_BODY_BYTES = 10_000  # for a form; an option's name and value have about fifty


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signal handling to the command."""
        yield


class Server:
    """A server on 127.0.0.1 that shows a batcher or a topology."""

    def __init__(self, view: LedgerView, port: int, secret: str, interval: float, allow_changes: bool) -> None:
        """Bind a port, 0 for any free one; pages refresh every `interval` seconds. Raises SettingsError."""
        self._view, self._interval = view, interval
        self._socket = _listen(port)
        self.access = Access(self._socket.getsockname()[1], secret, allow_changes)
        self._live = LiveReport(view.report, interval, time.monotonic)
        self._reading = Lock()  # DuckDB and the settings of reading are per process
        self._templates = environment("windrow.ui")
        config = uvicorn.Config(
            self._application(), log_config=None, access_log=False, server_header=False, lifespan="off"
        )
        self._server = _Uvicorn(config)

    def run(self, seconds: float | None = None) -> None:
        """Serve until `stop`, or for `seconds`."""
        timer = Timer(seconds or 0, self.stop)
        if seconds is not None:
            timer.start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            timer.cancel()
            self._socket.close()

    def stop(self) -> None:
        """Make `run` return."""
        self._server.should_exit = True

    def _application(self) -> Starlette:
        script = self._templates.get_template("live.js").render()
        reads: dict[str, Callable[[Request], Response]] = {
            "/": self._report_page,
            "/stream": self._table_page(pages.stream_page),
            "/batch": self._table_page(pages.batch_page),
            "/message": self._table_page(pages.message_page),
            "/live.js": lambda _: Response(script, 200, HEADERS, "text/javascript"),
        }
        routes = [Route(path, self._endpoint(answer)) for path, answer in reads.items()]
        change = self._endpoint(self._apply_change)
        routes += [Route(f"/{action}", change, methods=["POST"]) for action in self._view.actions]
        return Starlette(routes=routes)

    def _endpoint(self, answer: Callable[..., Response]) -> Callable[[Request], Any]:
        """Return an endpoint that refuses a request or answers it in a thread, with errors as a page."""

        async def endpoint(request: Request) -> Response:
            secret = request.query_params.get("secret", "")
            refused = self.access.refusal(request.method, request.headers, request.cookies, secret)
            if refused is not None:
                return self._error_page(refused)
            if secret:
                entered = RedirectResponse("/", 303, HEADERS)
                entered.set_cookie(self.access.cookie, secret, httponly=True, samesite="lax")
                return entered
            if request.method == "POST":
                body = await _body(request)
                if body is None:
                    return self._error_page(Refusal(413, "the form is too long"))
                return await run_in_threadpool(self._respond, answer, request, body)
            return await run_in_threadpool(self._respond, answer, request)

        return endpoint

    def _respond(self, answer: Callable[..., Response], *request: Any) -> Response:
        try:
            return answer(*request)
        except Exception as error:  # noqa: BLE001 - the page says it, and the next one may be well
            missing = isinstance(error, NotFoundError | TableMissingError)
            status = 404 if missing else 400 if isinstance(error, UsageError) else 500
            return self._error_page(Refusal(status, first_line(error), getattr(error, "hint", "")))

    def _report_page(self, request: Request) -> Response:
        source = request.query_params.get("source") or None
        with self._reading:
            report = self._live.get(source)
        return self._render("live.html", **context(report), source=source, options=self._view.options)

    def _table_page(self, read: Callable[[Settings, pages.Values], pages.Page]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            with self._reading, self._view.reads() as settings:
                if settings is None:
                    raise NotFoundError("a topology has no streams or batches", "Look at its states: `windrow show`.")
                page = read(settings, {name: value for name, value in request.query_params.items() if value})
            return self._render("tables.html", title=page.title, tables=page.tables)

        return answer

    def _apply_change(self, request: Request, values: dict[str, str]) -> Response:
        with self._reading:
            self._view.change(request.url.path[1:], values)
            self._live.forget()
        return RedirectResponse("/", 303, HEADERS)

    def _error_page(self, refused: Refusal) -> Response:
        return self._render("failed.html", refused.status, title=f"{refused.status}", refused=refused)

    def _render(self, template: str, status: int = 200, **shown: Any) -> Response:
        known = {"policy": POLICY, "interval": round(self._interval * 1_000), "access": self.access}
        return HTMLResponse(self._templates.get_template(template).render(**known, **shown), status, HEADERS)


async def _body(request: Request) -> dict[str, str] | None:
    """Return the fields of a form, None if it is too long."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            return None
    return {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise SettingsError(
            f"port {port} of 127.0.0.1 cannot be used: {error.strerror}", "Name another with --port, or 0 for any."
        ) from error
