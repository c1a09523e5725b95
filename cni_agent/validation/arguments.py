"""The flags of `istio-iptables`, read as its own parser (Go's pflag) reads them.

`cni_agent.flags` has the same table with help and readers, and a test keeps the two alike. This one exists because
importing that one takes longer than the whole of validation.
"""

from collections.abc import Iterator

from cni_agent import names

# flag: (short form, default); the variable is the flag in capitals, save for ENVOY_PORT, which Istio only logs
TEXT_FLAGS: dict[str, tuple[str, str]] = {
    "envoy-port": ("p", str(names.OUTBOUND_PORT)),
    "inbound-capture-port": ("z", str(names.INBOUND_PORT)),
    "inbound-tunnel-port": ("e", str(names.TUNNEL_PORT)),
    "proxy-uid": ("u", ""),
    "proxy-gid": ("g", ""),
    "istio-inbound-interception-mode": ("m", ""),
    "istio-inbound-tproxy-mark": ("t", str(names.TPROXY_MARK)),
    "istio-inbound-tproxy-route-table": ("r", str(names.TPROXY_TABLE)),
    "istio-inbound-ports": ("b", ""),
    "istio-local-exclude-ports": ("d", ""),
    "istio-outbound-ports": ("q", ""),
    "istio-local-outbound-ports-exclude": ("o", ""),
    "istio-service-cidr": ("i", ""),
    "istio-service-exclude-cidr": ("x", ""),
    "kube-virt-interfaces": ("k", ""),
    "istio-exclude-interfaces": ("c", ""),
    "network-namespace": ("", ""),
    "force-iptables-binary": ("", ""),
    "iptables-probe-port": ("", str(names.PROBE_PORT)),
    "probe-timeout": ("", "5s"),
    # ours
    "termination-log": ("", "/dev/termination-log"),
    "compatibility": ("", ""),
}
SWITCHES: dict[str, str] = {
    "redirect-dns": "",
    "capture-all-dns": "",
    "drop-invalid": "",
    "dual-stack": "",
    "skip-rule-apply": "",
    "run-validation": "",
    "dry-run": "n",
    "cni-mode": "",
    "reconcile": "",
    "cleanup-only": "",
    "force-apply": "",
    "native-nftables": "",
    "log_as_json": "",
    "log_caller": "",
    "help": "h",
}
OTHER_VARIABLES = {  # beats the one that is named like the flag
    "redirect-dns": names.DNS_CAPTURE,
    "drop-invalid": names.INVALID_DROP,
    "dual-stack": names.DUAL_STACK,
}
ONLY_VARIABLES = {
    "ISTIO_OUTBOUND_OWNER_GROUPS": "*",
    "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE": "",
    "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR": names.LOOPBACK_V4,
}
_LONG = {short: name for name, short in SWITCHES.items() if short} | {
    short: name for name, (short, _) in TEXT_FLAGS.items() if short
}
TRUE = ("1", "t", "T", "TRUE", "true", "True")  # strconv.ParseBool
FALSE = ("0", "f", "F", "FALSE", "false", "False")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class Usage(ValueError):
    """A command line that istio-iptables would refuse; it exits with 255."""


def seconds(text: str) -> float:
    """A Go duration (time.ParseDuration), in seconds.

    >>> seconds("1m30s"), seconds("250ms"), seconds("1.5h"), seconds("0")
    (90.0, 0.25, 5400.0, 0.0)
    """
    rest = text[1:] if text[:1] in ("+", "-") else text
    sign = -1.0 if text[:1] == "-" else 1.0
    if rest == "0":
        return 0.0
    if not rest:
        raise ValueError
    total = 0.0
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789."))
        end = digits + len(rest[digits:]) - len(rest[digits:].lstrip("nuµμmsh"))
        unit = _UNITS.get(rest[digits:end])
        if unit is None:
            raise ValueError
        total += float(rest[:digits]) * unit  # "" and "1.2.3" raise ValueError too
        rest = rest[end:]
    return sign * total


def parse(argv: list[str]) -> dict[str, str]:
    """The flags as given, by long name. A leading `istio-iptables` is the stock container's first argument."""
    arguments = argv[1:] if argv[:1] == ["istio-iptables"] else argv
    given: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        if argument.startswith("--") and len(argument) > 2:
            name, equals, value = argument[2:].partition("=")
            _take(given, name, value if equals else None, rest)
        elif argument.startswith("-") and len(argument) > 1 and argument != "--":
            _take_short(given, argument[1:], rest)
        else:
            raise Usage(f"unexpected argument {argument!r}")
    return given


def _take_short(given: dict[str, str], letters: str, rest: Iterator[str]) -> None:
    """One argument of short flags: `-p 1`, `-p1`, `-p=1`, `-n`, `-np 1`."""
    while letters:
        letter, letters = letters[0], letters[1:]
        name = _LONG.get(letter)
        if name is None:
            raise Usage(f"unknown shorthand flag: {letter!r}")
        if letters[:1] == "=" or (letters and name in TEXT_FLAGS):
            return _take(given, name, letters.removeprefix("="), rest)
        _take(given, name, None, rest)


def _take(given: dict[str, str], name: str, value: str | None, rest: Iterator[str]) -> None:
    if name in SWITCHES:
        value = "true" if value is None else value
        if value not in TRUE + FALSE:
            raise Usage(f"--{name}: {value!r} is not a boolean")
    elif name not in TEXT_FLAGS and not name.startswith("log_") and name != "vklog":
        raise Usage(f"unknown flag: --{name}")
    elif value is None:
        value = next(rest, None)
        if value is None:
            raise Usage(f"flag needs an argument: --{name}")
    given[name] = value


def termination_log(argv: list[str]) -> str:
    """Where to write what is wrong with the other settings."""
    return parse(argv).get("termination-log", TEXT_FLAGS["termination-log"][1])
