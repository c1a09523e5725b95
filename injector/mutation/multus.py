"""The networks annotation that Multus reads: istio-cni is appended once, in whichever form the list has."""

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


def _with_json(written: str, network: str) -> str:
    namespace, _, name = network.rpartition("/")
    try:
        networks = msgspec.json.decode(written, type=list[dict[str, object]])
    except msgspec.DecodeError:  # not ours to mend
        return written
    if any(entry.get("name") == name and (entry.get("namespace") or "") == namespace for entry in networks):
        return written
    added = f', {{"name": "{name}", "namespace": "{namespace}"}}' if namespace else f', {{"name": "{name}"}}'
    end = written.rindex("]")
    return written[:end] + added + written[end:]
