"""The networks annotation that Multus reads: istio-cni is appended once, in the form of the list, or taken out."""

from collections.abc import Mapping
from typing import Final

import msgspec

NETWORKS: Final = "k8s.v1.cni.cncf.io/networks"
ISTIO_CNI: Final = "default/istio-cni"


def with_network(written: str, network: str) -> str:
    """The list with `network` in it. A JSON list is edited as text, so that what people wrote stays as it is.

    >>> with_network("", "istio-cni"), with_network("a", "istio-cni"), with_network('[{"name": "a"}]', "istio-cni")
    ('istio-cni', 'a, istio-cni', '[{"name": "a"}, {"name": "istio-cni"}]')
    """
    if not written:
        return network
    if "]" in written:
        return _with_json(written, network)
    if network in (element.strip() for element in written.split(",")):
        return written
    return f"{written}, {network}"


def without_network(written: str, network: str) -> str:
    """The list without `network`; empty when nothing is left.

    >>> without_network("a, istio-cni", "istio-cni"), without_network('[{"name": "istio-cni"}]', "istio-cni")
    ('a', '')
    """
    if "]" not in written:
        elements = [element.strip() for element in written.split(",")]
        return ", ".join(name for name in elements if name != network) if network in elements else written
    networks = _parsed(written)
    if networks is None:
        return written
    kept = [entry for entry in networks if not _is(entry, network)]
    if len(kept) == len(networks):
        return written
    return msgspec.json.encode(kept).decode() if kept else ""


def _with_json(written: str, network: str) -> str:
    networks = _parsed(written)
    if networks is None or any(_is(entry, network) for entry in networks):
        return written
    namespace, _, name = network.rpartition("/")
    added = f', {{"name": "{name}", "namespace": "{namespace}"}}' if namespace else f', {{"name": "{name}"}}'
    end = written.rindex("]")
    return written[:end] + added + written[end:]


def _parsed(written: str) -> list[dict[str, object]] | None:
    try:
        return msgspec.json.decode(written, type=list[dict[str, object]])
    except msgspec.DecodeError:  # not ours to mend
        return None


def _is(entry: Mapping[str, object], network: str) -> bool:
    namespace, _, name = network.rpartition("/")
    return entry.get("name") == name and (entry.get("namespace") or "") == namespace
