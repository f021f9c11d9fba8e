"""A coordinator of its own, for tests that kill it: prints its workers' ids and keeps them busy."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

from fleet.crew import Launch
from fleet.devices import Device
from fleet.pool import Pool
from fleet.process import WorkerProcess


async def main(devices: Sequence[Device], launch: Launch) -> None:
    settings = json.dumps({"child": True}).encode()
    async with Pool("fake_handler:create", lambda _: settings, devices, launch=launch) as pool:
        while None in pool.workers().values() or pool.idle < 8:
            await asyncio.sleep(0.05)
        pool.submit("busy", sys.argv[1].encode())
        await asyncio.sleep(0.3)
        print(json.dumps(list(pool.workers().values())), flush=True)
        async for _ in pool.outcomes():
            pass


if __name__ == "__main__":
    if len(sys.argv) > 2:
        from fleet import ray_cluster

        ray_cluster.HEALTH_S = ray_cluster.ASK_S = 600.0
        cluster = ray_cluster.RayCluster(sys.argv[2])
        asyncio.run(main(cluster.devices[:2], cluster.launch))
    else:
        asyncio.run(main([Device("cpu", 0), Device("cpu", 1)], WorkerProcess))
