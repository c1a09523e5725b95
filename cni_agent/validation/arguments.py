"""The flags of `istio-iptables`, read as its own parser (Go's pflag) reads them."""

from collections.abc import Iterator

from cni_agent.flag_table import FLAGS, Flag

# Ours, and those that every Istio program has
OWN = (
    Flag("", "termination-log", "", "TERMINATION_LOG", "/dev/termination-log", ""),
    Flag("", "compatibility", "", "COMPATIBILITY", "", ""),
    Flag("", "log_as_json", "", "", "false", ""),
    Flag("", "log_caller", "", "", "false", ""),
    Flag("", "help", "h", "", "false", ""),
)
KNOBS = {flag.name or flag.environment[0]: flag for flag in (*FLAGS, *OWN)}
_LONG = {flag.short: flag.name for flag in KNOBS.values() if flag.short}
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
        if letters[:1] == "=" or (letters and not KNOBS[name].is_switch):
            return _take(given, name, letters.removeprefix("="), rest)
        _take(given, name, None, rest)


def _take(given: dict[str, str], name: str, value: str | None, rest: Iterator[str]) -> None:
    if name in KNOBS and KNOBS[name].is_switch:
        value = "true" if value is None else value
        if value not in TRUE + FALSE:
            raise Usage(f"--{name}: {value!r} is not a boolean")
    elif name not in KNOBS and not name.startswith("log_") and name != "vklog":
        raise Usage(f"unknown flag: --{name}")
    elif value is None:
        value = next(rest, None)
        if value is None:
            raise Usage(f"flag needs an argument: --{name}")
    given[name] = value


def termination_log(argv: list[str]) -> str:
    """Where to write what is wrong with the other settings."""
    return parse(argv).get("termination-log", KNOBS["termination-log"].default)
