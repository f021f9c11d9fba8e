"""Serving the explorer: a free port of this machine, a random address, until Ctrl-C.

Listens on 127.0.0.1 alone; what is printed is the only copy of the key, which is in no log and no file. Whoever wants
the page on another machine forwards the port with ssh.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from corpus.errors import UserError
from corpus.workspace import Workspace

if TYPE_CHECKING:
    import uvicorn

HOST = "127.0.0.1"
TOKEN_BYTES = 24


def serve(workspace: Workspace, port: int, announce: Callable[[str], None]) -> None:
    """Serve until SIGINT, which ends it without a traceback.

    Args:
        port: 0 takes a free one.
        announce: called once with the address, when it answers.

    Raises:
        UserError: nothing is published in the workspace, or the port is taken.
    """
    import uvicorn

    from draftmill.looking.explorer_app import Explorer
    from draftmill.looking.explorer_guard import Guard

    explorer = Explorer(workspace)
    explorer.published.now()  # says now what every page would say
    listening = _listen(port)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    application = Guard(explorer.application(), token)
    config = uvicorn.Config(
        application, access_log=False, log_config=None, lifespan="off", ws="none", server_header=False,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = _server(config, explorer.stop)
    threading.Thread(target=explorer.warm, name="explore-warm", daemon=True).start()
    announce(f"http://{HOST}:{listening.getsockname()[1]}/{token}/")
    try:
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
    finally:
        listening.close()
        explorer.published.close()


def _server(config: uvicorn.Config, stop: Callable[[], None]) -> uvicorn.Server:
    """A server that ends the questions which are being asked when it is told to end."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            stop()
            logging.getLogger("uvicorn.error").disabled = True  # a page that is cut off is no error
            super().handle_exit(sig, frame)

    return Server(config)


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except OSError as error:
        listening.close()
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise UserError(f"explore: port {port} {why}; name another with --port, or none for a free one.") from error
    listening.listen(128)
    return listening


def open_browser(address: str) -> bool:
    """Open the page where there is a screen to open it on; whether it did."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    with suppress(webbrowser.Error):
        return webbrowser.open(address)
    return False
