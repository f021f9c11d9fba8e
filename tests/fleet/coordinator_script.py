"""A coordinator of its own, for tests that kill it: prints its workers' ids and keeps them busy."""

from __future__ import annotations

import asyncio
import json
import sys

from fleet.devices import Device
from fleet.pool import Pool


async def main() -> None:
    settings = json.dumps({"child": True}).encode()
    async with Pool("fake_handler:create", lambda _: settings, [Device("cpu", 0), Device("cpu", 1)]) as pool:
        while None in pool.workers().values() or pool.idle < 8:
            await asyncio.sleep(0.05)
        pool.submit("busy", sys.argv[1].encode())
        await asyncio.sleep(0.3)
        print(json.dumps(list(pool.workers().values())), flush=True)
        async for _ in pool.outcomes():
            pass


if __name__ == "__main__":
    asyncio.run(main())
