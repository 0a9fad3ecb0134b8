"""The web page itself: read-only, bound to this machine unless told otherwise, and then behind a token."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from pairstill.errors import PairstillError
from pairstill.show.report.contents import gather
from pairstill.show.report.page import asset, loss_chart, recall_charts, render
from pairstill.show.serve.search import index_of, thumbnail
from pairstill.show.serve.served_folder import ServedFolder, progress_of

MOST_COMPARED = 6
LARGEST_PICTURE = 20 * 2**20
COOKIE = "pairstill_token"
POLICY = (
    "default-src 'none'; img-src 'self' data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'"
)


def build_app(root: Path, token: str | None = None, hosts: list[str] | None = None) -> Starlette:
    """The application over one folder.

    Args:
        root: What is served, and nothing outside it.
        token: What a visitor must know, once, as `?token=...`; None on this machine only.
        hosts: Names under which it may be asked for; any, if a token guards it.
    """
    pages = Pages(ServedFolder(root))
    routes = [
        Route("/", pages.overview),
        Route("/run", pages.run),
        Route("/api/run", pages.run_state),
        Route("/api/runs", pages.runs_state),
        Route("/report", pages.report),
        Route("/compare", pages.compare),
        Route("/search", pages.search),
        Route("/api/search", pages.find_pictures),
        Route("/api/captions", pages.find_captions, methods=["POST"]),
        Route("/picture", pages.picture),
    ]
    middleware = [
        Middleware(TrustedHostMiddleware, allowed_hosts=hosts or ["*"]),
        Middleware(BaseHTTPMiddleware, dispatch=partial(_guard, token)),
    ]
    return Starlette(routes=routes, middleware=middleware, exception_handlers={PairstillError: _said})


async def _guard(token: str | None, request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
    """Let in who knows the token, and keep it in a cookie; forbid pages from elsewhere in every answer."""
    if token is not None:
        given = request.query_params.get("token")
        if given is not None and secrets.compare_digest(given.encode(), token.encode()):
            answer: Response = RedirectResponse(request.url.remove_query_params("token"), 303)
            answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return answer
        known = request.cookies.get(COOKIE, "")
        if not secrets.compare_digest(known.encode(), token.encode()):
            return Response("This page needs its token: open the address that `pairstill serve` printed.", 401)
    answer = await go_on(request)
    answer.headers["Content-Security-Policy"] = POLICY
    answer.headers["X-Content-Type-Options"] = "nosniff"
    answer.headers["Referrer-Policy"] = "no-referrer"
    return answer


async def _said(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


class Pages:
    """What each address answers."""

    def __init__(self, place: ServedFolder) -> None:
        self.place = place

    async def overview(self, request: Request) -> Response:
        """All runs, with links to what can be done with them."""
        return await self._page("overview.html", runs=await self._all_progress(), can_search=self._can_search())

    async def runs_state(self, request: Request) -> Response:
        """All runs, for the overview to follow."""
        return JSONResponse(await self._all_progress())

    async def run(self, request: Request) -> Response:
        """One run, live."""
        view = self._view(request.query_params.get("name", ""))
        return await self._page("run.html", name=request.query_params["name"], state=progress_of(view))

    async def run_state(self, request: Request) -> Response:
        """One run's progress and charts, as they are now."""
        view = self._view(request.query_params.get("name", ""))
        charts = [*recall_charts([view]), loss_chart(view)]
        return JSONResponse({**progress_of(view), "charts": [chart for chart in charts if chart]})

    async def report(self, request: Request) -> Response:
        """The report of a finished set."""
        folder = self._folder(request.query_params.get("name", ""))
        return HTMLResponse(await run_in_threadpool(lambda: render(gather(folder))))

    async def compare(self, request: Request) -> Response:
        """Runs side by side."""
        names = request.query_params.getlist("run")[:MOST_COMPARED]
        views = [self._view(name) for name in names]
        return await self._page(
            "compare.html", runs=[progress_of(view) for view in views], charts=recall_charts(views) if views else []
        )

    async def search(self, request: Request) -> Response:
        """Ask the students, which are loaded while the visitor still types."""
        students, data = self.place.students(), self.place.prepared()
        page = await self._page("search.html", students=students, data=data)
        page.background = BackgroundTask(self._load, students[:MOST_COMPARED], data[0]) if data else None
        return page

    def _load(self, students: list[str], data: str) -> None:
        with contextlib.suppress(PairstillError, OSError):  # a question will say it
            for student in students:
                index_of(self._folder(student), self._folder(data))

    async def find_pictures(self, request: Request) -> Response:
        """Images for a sentence, by each of the students."""
        sentence = request.query_params.get("q", "").strip()
        if not sentence:
            raise HTTPException(400, "an empty question")
        return await self._ask(request, lambda index: index.pictures_for(sentence[:1000]))

    async def find_captions(self, request: Request) -> Response:
        """Captions for an image, by each of the students; nothing is kept."""
        picture = b""
        async for part in request.stream():
            picture += part
            if len(picture) > LARGEST_PICTURE:
                raise HTTPException(413, "the image is too large")
        return await self._ask(request, lambda index: index.captions_for(picture))

    async def picture(self, request: Request) -> Response:
        """A test image, small."""
        row = request.query_params.get("row", "")
        data = self._folder(request.query_params.get("data", ""))
        found = await run_in_threadpool(thumbnail, data, int(row)) if row.isdigit() else None
        if found is None:
            raise HTTPException(404)
        return Response(found, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})

    async def _ask(self, request: Request, question: Callable[[Any], Any]) -> Response:
        data = self._folder(request.query_params.get("data", ""))
        names = request.query_params.getlist("student")[:MOST_COMPARED]
        folders = [self._folder(name) for name in names]

        def ask_each() -> list[dict[str, Any]]:
            answers = [question(index_of(folder, data)) for folder in folders]
            return [{"student": name, "found": found} for name, found in zip(names, answers, strict=True)]

        return JSONResponse(await run_in_threadpool(ask_each))

    async def _all_progress(self) -> list[dict[str, object]]:
        def read() -> list[dict[str, object]]:
            views = [self.place.view(name) for name in self.place.runs()]
            return [progress_of(view) for view in views if view is not None]

        return await run_in_threadpool(read)

    def _can_search(self) -> bool:
        return bool(self.place.students() and self.place.prepared())

    def _folder(self, name: str) -> Path:
        path = self.place.inside(name)
        if path is None:
            raise HTTPException(404)
        return path

    def _view(self, name: str) -> Any:
        view = self.place.view(name)
        if view is None:
            raise HTTPException(404)
        return view

    async def _page(self, template: str, **values: Any) -> Response:
        from jinja2 import Environment, PackageLoader, select_autoescape

        environment = Environment(
            loader=PackageLoader("pairstill.show.serve"), autoescape=select_autoescape(["html"]), trim_blocks=True
        )
        page = environment.get_template(template).render(style=asset("page.css"), **values)
        return HTMLResponse(page)
