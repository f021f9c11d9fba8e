"""How long consumers stood idle, and how long they would have if batches had been dealt to them in turn.

Pure: both figures come from one run's own log, when each batch arrived and how long it was worked on. Idle is
counted for every consumer until the last batch of the run is done, so that one who waits at the end for another's
private queue counts as idle too.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.arena import Service


def shared_idle_s(services: Sequence[Service], consumers: int, start_s: float) -> float:
    """Idle seconds of all consumers together, as it was: they took from one queue."""
    if not services:
        return 0.0
    busy_s = sum(service.done_s - service.taken_s for service in services)
    return consumers * (max(service.done_s for service in services) - start_s) - busy_s


def round_robin_idle_s(
    arrivals_s: Sequence[float], service_s: Sequence[float], consumers: int, start_s: float
) -> float:
    """Idle seconds if batch i, of the same arrival and service time, had gone to consumer i modulo `consumers`.

    Args:
        arrivals_s: when each batch was published, ascending.
        service_s: how long each was worked on, in the same order.
        consumers: how many there are.
        start_s: when they could have begun.
    """
    free_s = [start_s] * consumers
    for index, (arrival_s, duration_s) in enumerate(zip(arrivals_s, service_s, strict=True)):
        mine = index % consumers
        free_s[mine] = max(free_s[mine], arrival_s) + duration_s
    return consumers * (max(free_s) - start_s) - sum(service_s)
