"""The serving certificate as mounted files have it, kept in the live TLS context while the files change."""

import asyncio
import logging

from injector.serving import files
from injector.serving.scoreboard import Row
from injector.serving.tls import CertificateRefused, ServingContext, read_pair

log = logging.getLogger(__name__)


class Certificate:
    """The serving certificate as the files have it, in the live TLS context; a bad pair leaves the old one there."""

    def __init__(self, certificate_file: str, key_file: str) -> None:
        self._paths = (certificate_file, key_file)
        self._problem = ""
        self.serving: ServingContext | None = None
        self.loaded = asyncio.Event()

    async def follow(self, row: Row, interval: float = files.INTERVAL) -> None:
        """Loads the pair, and then again at each change, forever."""
        seen = files.signature(self._paths)
        self._load(row)
        async for _ in files.changes(self._paths, seen, interval):
            self._load(row)

    def _load(self, row: Row) -> None:
        try:
            pair = read_pair(*self._paths)
        except CertificateRefused as error:
            self._problem = str(error)
            row.add("certificate_refused")
            row["certificate_stale"] = 1
            kept = "the old one stays in use" if self.serving else "there is none to use instead"
            log.error("certificate refused", extra={"error": self._problem, "kept": kept})
            return
        if self.serving:
            self.serving.replace(pair)
        else:
            self.serving = ServingContext(pair)
        self._problem = ""
        row.add("certificate_loaded")
        row["certificate_stale"] = 0
        row["certificate_expiry"] = int(pair.expiry.timestamp())
        log.info("certificate loaded", extra={"serial": f"{pair.serial:x}", "expires": pair.expiry.isoformat()})
        self.loaded.set()

    def detail(self) -> dict[str, object]:
        """For /ready."""
        found: dict[str, object] = {"problem": self._problem} if self._problem else {}
        if self.serving:
            found["expires"] = self.serving.pair.expiry.isoformat()
        return found
