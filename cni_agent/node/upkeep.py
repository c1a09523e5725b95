"""What the agent does unasked, now and then: looks for pods that events missed, and compares rules whose changes nobody
announces. Both cost next to nothing while all is well."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from cni_agent.node.outcome import Outcome
from cni_agent.node.reconcile import Reconciler
from cni_agent.node.whereabouts import Whereabouts

NET_SECONDS: Final = 10.0
_UNSEEN_SECONDS: Final = 5.0  # how long a pod may be without a sandbox before it is looked for
LEGACY_PERIOD: Final = 60.0  # legacy iptables announces no changes
ANNOUNCED_PERIOD: Final = 600.0  # nf_tables does, but routes are compared here only

logger = logging.getLogger(__name__)


async def safety_net(reconciler: Reconciler, whereabouts: Whereabouts, found: Callable[[], None]) -> None:
    """Scans /proc while a pod of the mesh is nowhere to be seen; `found` counts what only that found."""

    def tell(uid: str) -> None:
        found()
        logger.warning("found by a scan of /proc, not by events", extra=reconciler.pods[uid].fields())
        reconciler.sandbox_changed(uid, fresh=False)

    while True:
        if whereabouts.sandboxes.unwatched:
            whereabouts.sandboxes.look()
        limit = time.monotonic() - _UNSEEN_SECONDS
        wanted = {
            record.uid
            for record in reconciler.pods.values()
            if record.verdict.outcome == Outcome.WAITING_FOR_SANDBOX and record.settled < limit
        }
        if wanted:
            await whereabouts.scan(wanted, tell)
        await asyncio.sleep(NET_SECONDS)


async def patrol(reconciler: Reconciler, period: float) -> None:
    """Compares each captured pod once in a period, one after the other, evenly spread."""
    while True:
        captured = [record.uid for record in reconciler.pods.values() if record.applied is not None]
        for uid in captured:
            await asyncio.sleep(period / len(captured))
            reconciler.wake(uid, compare=True)
        if not captured:
            await asyncio.sleep(period / 10)
