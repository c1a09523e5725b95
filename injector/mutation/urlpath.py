"""Variables in the webhook's URL: /inject/cluster/C/net/N/KEY/VALUE."""

from typing import Final

CLUSTER: Final = "ISTIO_META_CLUSTER_ID"
NETWORK: Final = "ISTIO_META_NETWORK"
_SHORT: Final = {"cluster": CLUSTER, "net": NETWORK}
_OLD_FORM: Final = ":ENV:"


def variables(path: str) -> dict[str, str]:
    """The variables that a decoded URL path sets on istio-proxy. An odd last key is dropped.

    >>> variables("/inject/cluster/c1/net/n--slash--1/custom_env/foo/odd")
    {'ISTIO_META_CLUSTER_ID': 'c1', 'ISTIO_META_NETWORK': 'n/1', 'CUSTOM_ENV': 'foo'}
    >>> variables("/inject/:ENV:cluster=c2:ENV:root=/foo/bar:ENV:=none")
    {'ISTIO_META_CLUSTER_ID': 'c2', 'ROOT': '/foo/bar'}
    """
    parts = path.removesuffix("/").split("/", 2)
    if len(parts) < 3:
        return {}
    rest = parts[2]
    if rest.startswith(_OLD_FORM):
        assignments = (part.partition("=") for part in rest.split(_OLD_FORM)[1:])
        pairs = [(name, value) for name, equals, value in assignments if name and equals]
    else:
        words = rest.split("/")
        pairs = [(name, value.replace("--slash--", "/")) for name, value in zip(words[::2], words[1::2], strict=False)]
    return {_SHORT.get(name, name.upper()): value for name, value in pairs if name}
