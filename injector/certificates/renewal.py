"""One pass over certificates, and the loop that repeats it: level-based, so that any pass may fail or be cut off."""

import asyncio
import datetime
import logging
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from cni_agent.apiserver import UNREACHABLE, ApiError, ApiServer
from injector.certificates.announce import announce
from injector.certificates.certs import Lifetimes, Material, expiry, renew
from injector.certificates.keep import Conflict, DirectoryKeep, Keep

log = logging.getLogger(__name__)

FIRST_DELAY: Final = 1.0  # seconds after a failed pass, doubled each time up to the interval


class Incomplete(RuntimeError):
    """The certificates are in order, but somebody who must trust them could not be told; the text says who and why."""


class Untold(NamedTuple):
    """A webhook configuration that could not be told of our CAs."""

    configuration: str
    problem: str
    exists: bool  # as far as we know


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
        untold = await self._announce(material.bundle) if material else []
        # Where there is no configuration nobody asks us, so that one which is missing holds up no rotation
        announced = not any(found.exists for found in untold)
        renewal = renew(material, self.names, self.lifetimes, now, announced=announced)
        material = renewal.material
        if renewal.steps:
            await self.keep.save(material)
            expires = expiry(material).isoformat()
            log.info("certificates renewed", extra={"steps": ", ".join(renewal.steps), "expires": expires})
            untold = await self._announce(material.bundle)
        if self.export:
            await self.export.mirror(material)
        if untold:
            raise Incomplete("; ".join(f"{found.configuration}: {found.problem}" for found in untold))
        return material

    async def _announce(self, bundle: bytes) -> list[Untold]:
        """Tells every configuration; gives those that could not be told, with the reason."""
        failed = []
        for name in self.configurations:
            assert self.api
            try:
                if await announce(self.api, name, bundle):
                    log.info("caBundle applied", extra={"configuration": name})
            except (ApiError, *UNREACHABLE, msgspec.DecodeError) as error:
                exists = not (isinstance(error, ApiError) and error.code == 404)
                failed.append(Untold(name, str(error) or type(error).__name__, exists))
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
