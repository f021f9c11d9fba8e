"""Who may ask the explorer: whoever has the printed address, from this machine, and nobody's page.

The token is the first part of the path, so there is no cookie that another port or page could borrow. A request is
refused that names another host (a foreign name bound to this address), is made by another page, or writes. Every answer
forbids scripts, frames and anything from elsewhere, and is kept by no cache. Knows nothing of ledgers.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

HOSTS = ("127.0.0.1", "localhost")
POLICY = "; ".join((
    "default-src 'none'", "style-src 'self'", "img-src 'self' data:", "form-action 'self'", "base-uri 'none'",
    "frame-ancestors 'none'",
))  # fmt: skip
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
NO_TOKEN = "draftmill explore: open the whole address that the command printed; its last part is the key to this page."


class Guard:
    """An ASGI application before another: lets through what is allowed, with the token taken off the path."""

    def __init__(self, application: Application, token: str) -> None:
        self._application = application
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        status, why = self._judged(scope)
        if status != 200:
            await _refuse(send, status, why)
            return
        _, _, rest = scope["path"].lstrip("/").partition("/")
        inner = {**scope, "path": f"/{rest}", "raw_path": b"", "root_path": ""}
        await self._application(inner, receive, _with_headers(send))

    def _judged(self, scope: Scope) -> tuple[int, str]:
        headers = {bytes(name).lower(): bytes(value).decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if host.rsplit(":", 1)[0].lower() not in HOSTS:
            return 421, "draftmill explore: answers to 127.0.0.1 and localhost alone."
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "draftmill explore: is for reading."
        origin = headers.get(b"origin")
        from_page = headers.get(b"sec-fetch-site") in ("cross-site", "same-site")
        opened = headers.get(b"sec-fetch-mode") == "navigate" and headers.get(b"sec-fetch-dest") == "document"
        if (origin is not None and origin != f"http://{host}") or (from_page and not opened):
            return 403, "draftmill explore: answers no other page."
        first, _, rest = scope["path"].lstrip("/").partition("/")
        if not hmac.compare_digest(first.encode("utf-8", "replace"), self._token):
            return 403, NO_TOKEN
        if not rest and not scope["path"].endswith("/"):
            return 404, f"{NO_TOKEN} It ends in /."
        return 200, ""


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message["headers"] = [*message.get("headers", ()), *own]
        await send(message)

    return sending


async def _refuse(send: Send, status: int, why: str) -> None:
    body = f"{why}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    answer = _with_headers(send)
    await answer({"type": "http.response.start", "status": status, "headers": headers})
    await answer({"type": "http.response.body", "body": body})
