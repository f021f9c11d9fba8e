"""Gang members without a model: a work item and a configuration say what to do. Run in real processes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet.gang_worker import ConsumerPort, GangClosed, ProducerPort, QueueError


def fault(settings: dict[str, Any], when: str) -> None:
    """Do what the configuration has at this point: start, or the number of batches done."""
    what = settings.get("faults", {}).get(when)
    match what:
        case "raise":
            print("about to raise", flush=True)
            raise RuntimeError(f"no weights in /nowhere\n{when}")
        case "die":
            print("about to die", flush=True)
            os._exit(3)
        case "exit":
            sys.exit("wrong arguments")
        case "stuck":
            time.sleep(3600)
        case "child":
            subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(1)"])


def meet(settings: dict[str, Any], when: str) -> None:
    """By the number of batches done: the file that says so to another member, and the one that is waited for."""
    if says := settings.get("says", {}).get(when):
        Path(says).touch()
    if awaited := settings.get("awaits", {}).get(when):
        wait_for(awaited)


def wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)


def produce(config: bytes, port: ProducerPort) -> Callable[[], bytes]:
    settings = json.loads(config or b"{}")
    fault(settings, "start")
    port.emit(json.dumps({"pid": os.getpid(), "threads": os.environ.get("OMP_NUM_THREADS")}).encode())

    def main() -> bytes:
        done = 0
        while (work := port.next_work()) is not None:
            fault(settings, str(done))
            job = json.loads(work)
            time.sleep(job.get("sleep_s", 0))
            if awaited := job.get("awaits"):
                wait_for(awaited)
            chance = random.Random(job["id"])
            bodies = [chance.randbytes(size) for size in job["sizes"]]
            metas = [json.dumps([job["id"], i, digest(body)]).encode() for i, body in enumerate(bodies)]
            for meta, body in zip(metas, bodies, strict=True):
                with port.put(meta, len(body)) as view:
                    view[:] = body
            done += 1
        return json.dumps({"jobs": done, "stopping": port.stopping}).encode()

    return main


def consume(config: bytes, port: ConsumerPort) -> Callable[[], bytes]:
    settings = json.loads(config or b"{}")
    fault(settings, "start")

    def main() -> bytes:
        seen = []
        while (batch := port.take()) is not None:
            fault(settings, str(len(seen)))
            meet(settings, str(len(seen)))
            time.sleep(settings.get("sleep_s", 0))
            job, part, told = json.loads(batch.meta)
            assert digest(batch.view) == told, "bytes are not what was published"
            seen.append([job, part, batch.sequence])
            batch.release()
            batch.release()
            if settings.get("leave_after") == len(seen):
                break
        else:
            assert port.take() is None
        return json.dumps({"seen": seen, "stopped": port.stopped}).encode()

    return main


def listen(config: bytes, port: ProducerPort) -> Callable[[], bytes]:
    """A producer that another member is connected to."""
    server = _server(json.loads(config)["socket"])

    def main() -> bytes:
        held = server.accept()
        port.emit(b"connected")
        time.sleep(3600)
        return str(held).encode()

    return main


def connect(config: bytes, port: ConsumerPort) -> Callable[[], bytes]:
    """A consumer that raises as soon as its peer's connection breaks."""

    def main() -> bytes:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(json.loads(config)["socket"])
            if not peer.recv(1):
                raise ConnectionError("connection closed by peer")
        return b""

    return main


def put_wrongly(config: bytes, port: ProducerPort) -> Callable[[], bytes]:
    """Puts that publish nothing, then one that does."""

    def main() -> bytes:
        told: list[str] = []
        for attempt in (lambda: enter(port, 1 << 30), lambda: nested(port), lambda: fails(port)):
            try:
                attempt()
            except (QueueError, ZeroDivisionError) as error:
                told.append(str(error))
        body = b"whole"
        with port.put(json.dumps(["good", 0, digest(body)]).encode(), len(body)) as view:
            view[:] = body
        return json.dumps(told).encode()

    return main


def enter(port: ProducerPort, size_bytes: int) -> None:
    with port.put(b"", size_bytes):
        pass


def nested(port: ProducerPort) -> None:
    with port.put(b"", 8):
        enter(port, 8)


def fails(port: ProducerPort) -> None:
    with port.put(b"", 8):
        raise ZeroDivisionError("in a put")


def linger(config: bytes, port: ConsumerPort) -> Callable[[], bytes]:
    """A consumer that does not go when the gang is over."""

    def main() -> bytes:
        try:
            while (batch := port.take()) is not None:
                batch.release()
        except GangClosed:
            time.sleep(3600)
        return b""

    return main


def digest(body: bytes | memoryview) -> str:
    return hashlib.sha256(body).hexdigest()


def _server(path: str) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    return server
