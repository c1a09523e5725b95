"""One pass over certificates, and the loop that repeats it: level-based, so that any pass may fail or be cut off."""

import asyncio
import datetime
import logging
from dataclasses import dataclass
from typing import Final

import msgspec

from cni_agent.apiserver import UNREACHABLE, ApiError, ApiServer
from injector.certificates.announce import announce
from injector.certificates.certs import Lifetimes, Material, expiry, renew
from injector.certificates.keep import Conflict, DirectoryKeep, Keep

log = logging.getLogger(__name__)

FIRST_DELAY: Final = 1.0  # seconds after a failed pass, doubled each time up to the interval


class Incomplete(RuntimeError):
    """The certificates are in order, but somebody who must trust them could not be told; the text says who and why."""


@dataclass(frozen=True)
class Duty:
    """What is to be kept in order."""

    keep: Keep
    export: DirectoryKeep | None  # where a server on this machine reads; None when `keep` is that directory
    api: ApiServer | None
    configurations: tuple[str, ...]  # MutatingWebhookConfigurations that must trust our CA
    names: tuple[str, ...]  # DNS names and addresses of the serving certificate
    lifetimes: Lifetimes

    async def run_once(self, now: datetime.datetime) -> Material:
        """Brings everything to where it should be. Trust is announced before anything new is served."""
        material = await self.keep.load()
        told = await self._announce(material.bundle) if material else {"": "nothing to announce"}
        renewal = renew(material, self.names, self.lifetimes, now, announced=not told)
        material = renewal.material
        if renewal.steps:
            await self.keep.save(material)
            expires = expiry(material).isoformat()
            log.info("certificates renewed", extra={"steps": ", ".join(renewal.steps), "expires": expires})
            told = await self._announce(material.bundle)
        if self.export:
            await self.export.mirror(material)
        if told:
            raise Incomplete("; ".join(f"{name}: {problem}" for name, problem in told.items()))
        return material

    async def _announce(self, bundle: bytes) -> dict[str, str]:
        """Tells every configuration; gives those that could not be told, with the reason."""
        failed: dict[str, str] = {}
        for name in self.configurations:
            assert self.api
            try:
                if await announce(self.api, name, bundle):
                    log.info("caBundle applied", extra={"configuration": name})
            except (ApiError, *UNREACHABLE, msgspec.DecodeError) as error:
                failed[name] = str(error) or type(error).__name__
        return failed

    async def run(self, interval: float) -> None:
        """Forever. A pass that failed is repeated soon; the same failure is logged once."""
        delay, problem = FIRST_DELAY, ""
        while True:
            try:
                await self.run_once(datetime.datetime.now(datetime.UTC))
                delay, problem = FIRST_DELAY, ""
                await asyncio.sleep(interval)
            except (Conflict, Incomplete, ApiError, *UNREACHABLE, msgspec.DecodeError) as error:
                said = str(error) or type(error).__name__
                if said != problem:
                    log.error("certificates are not in order yet", extra={"error": said})
                problem = said
                await asyncio.sleep(min(delay, interval))
                delay *= 2
