"""A gang's coordinator of its own, for a test that kills it: prints its members' ids and keeps them busy."""

from __future__ import annotations

import asyncio
import json
import sys

from fleet.devices import Device
from fleet.gang import Gang, Member


async def main(fault: str) -> None:
    cores = [Device("cpu", 0), Device("cpu", 1)]
    consumer = json.dumps({"sleep_s": 0.05, "faults": {"start": "child", "3": fault}}).encode()
    gang = Gang(
        [
            *(Member(f"target {i}", "producer", "fake_gang:produce", b"", cores[0]) for i in range(2)),
            *(Member(f"drafter {i}", "consumer", "fake_gang:consume", consumer, cores[1], ahead=1) for i in range(2)),
        ],
        1 << 20,
        lambda: json.dumps({"id": 1, "sizes": [200_000, 100_000]}).encode(),
    )
    running = asyncio.create_task(gang.run())
    while gang.account().peak_bytes < 500_000:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    print(json.dumps(list(gang.pids().values())), flush=True)
    await running


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
