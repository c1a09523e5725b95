"""Walks a packet through the rules as the kernel does: hook by hook, table by table, rule by rule.

Only the first packet of a connection is walked. The nat table is never asked about a later one, nor asked again when
the first one comes back in over lo: a connection is translated once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from cni_agent import names, nft, restore
from cni_agent.capture import Family
from cni_agent.explaining.conditions import meets
from cni_agent.explaining.packet import HOME, LOOPBACK, Hook, Packet
from cni_agent.rules import Dialect, Match, Rule, Ruleset, Table

TABLES: Final[tuple[Table, ...]] = ("raw", "mangle", "nat")  # by priority: -300, -150, -100

# What a translation or TPROXY in one of our chains hands the connection to
Receiver = Literal["outbound listener", "inbound listener", "resolver", "port"]
_RECEIVERS: Final[dict[str, Receiver]] = {
    names.ISTIO_REDIRECT: "outbound listener",
    names.ISTIO_IN_REDIRECT: "inbound listener",
    names.ISTIO_TPROXY: "inbound listener",
    names.ISTIO_OUTPUT_DNS: "resolver",
}
_HANDING_OVER: Final = (names.ISTIO_REDIRECT, names.ISTIO_IN_REDIRECT, names.ISTIO_TPROXY, names.ISTIO_DROP)


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule in its place. `rule` is None when the kernel has one that we cannot read; `packets`: its counter."""

    table: Table
    chain: str
    text: str
    rule: Rule | None
    packets: int | None = None


Chains = Mapping[tuple[Table, str], Sequence[Entry]]


@dataclass(frozen=True, slots=True)
class Step:
    """One rule that was looked at."""

    hook: Hook
    entry: Entry
    matched: bool


@dataclass(frozen=True, slots=True)
class Ending:
    """Where the packet ends: at a receiver's port in the pod, where it was sent (None), or nowhere (dropped)."""

    receiver: Receiver | None = None
    port: int | None = None
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """The whole walk. `decision`: the rule to which the ending is owed; None when no rule said anything."""

    steps: tuple[Step, ...]
    ending: Ending
    decision: Entry | None
    last: Packet  # as the rules left it

    @property
    def unread(self) -> tuple[Entry, ...]:
        """Rules met on the way that we cannot judge; the walk went on as if they did not match."""
        return tuple(step.entry for step in self.steps if step.entry.rule is None)


def arranged(ruleset: Ruleset, family: Family) -> Chains:
    """The rules of one family in the order the kernel has them, after all insertions.

    Where iptables has a table for each family, inet tables hold both: there a rule without a family also holds for a
    family that the pod was not known to have.
    """
    inet = ruleset.dialect == "nftables"
    rules: Iterable[Rule] = ruleset.rules
    if not inet:
        rules = ruleset.of_family(family) if family in ruleset.families else ()
    placed: dict[tuple[Table, str], list[Rule]] = {}
    for rule in rules:
        chain = placed.setdefault((rule.table, rule.chain), [])
        chain.insert(len(chain) if rule.position is None else rule.position - 1, rule)
    return {
        place: tuple(entry(rule, ruleset.dialect) for rule in chain if _holds(rule, family, inet))
        for place, chain in placed.items()
    }


def _holds(rule: Rule, family: Family, inet: bool) -> bool:
    """Whether a rule is there for a family. In an inet table only what a rule says keeps it from the other one."""
    says = rule.match("source") or rule.match("destination") or rule.target.verb == "tproxy"
    return rule.family in (None, family) or (inet and not says)


def entry(rule: Rule, dialect: Dialect) -> Entry:
    """A rule in its place, as its tool writes it."""
    if dialect == "nftables":
        return Entry(rule.table, rule.chain, f"{nft.chain_name(rule.chain)} {nft.rule_text(rule)}", rule)
    return Entry(rule.table, rule.chain, restore.rule_text(replace(rule, position=None)), rule)


def routed_mark(chains: Chains) -> int | None:
    """The mark that TPROXY gives, for which there is a route to this host itself; None without TPROXY."""
    rules = (entry.rule for chain in chains.values() for entry in chain)
    return next((rule.target.mark for rule in rules if rule and rule.target.verb == "tproxy"), None)


def trace(chains: Chains, packet: Packet, dialect: Dialect, *, listening: bool = True) -> Trace:
    """Walks one packet. `listening`: whether the proxy has its transparent socket open, which TPROXY looks for."""
    walk = _Walk(chains, packet, dialect, listening)
    if packet.hook == "OUTPUT":
        if packet.mark and packet.mark == routed_mark(chains):
            walk.packet = replace(packet, interface=LOOPBACK)
        walk.through("OUTPUT", TABLES)
        if walk.packet.interface == LOOPBACK and not walk.dropped:
            walk.through("PREROUTING", ("raw", "mangle"))
    else:
        walk.through("PREROUTING", TABLES)
    return Trace(tuple(walk.steps), walk.ending(), walk.decision(), walk.packet)


class _Walk:
    """The packet on its way: what has become of it so far."""

    def __init__(self, chains: Chains, packet: Packet, dialect: Dialect, listening: bool) -> None:
        self.chains = chains
        self.packet = packet
        self.dialect = dialect
        self.listening = listening
        self.hook: Hook = packet.hook
        self.steps: list[Step] = []
        self.connection_mark = 0
        self.dropped = False
        self.translated: Ending | None = None
        self.socket: Ending | None = None  # TPROXY's choice, which the kernel's look-up of a listener does not question
        self.deciding: dict[str, Entry] = {}

    def through(self, hook: Hook, tables: Iterable[Table]) -> None:
        """All tables of one hook; only a drop keeps the packet from the next."""
        self.hook = hook
        for table in tables:
            if not self.dropped:
                self._chain(table, hook, None)

    def ending(self) -> Ending:
        if self.dropped:
            return Ending(dropped=True)
        return self.socket or self.translated or Ending()

    def decision(self) -> Entry | None:
        """Who has the last word: a drop, TPROXY, a translation; else nat's reason to let it pass, else mangle's."""
        return next((self.deciding[key] for key in ("drop", "tproxy", "redirect", "nat", "mangle")
                     if key in self.deciding), None)  # fmt: skip

    def _chain(self, table: Table, chain: str, jump: Entry | None) -> bool:
        """One chain. Whether the table is done with the packet."""
        for entry in self.chains.get((table, chain), ()):
            rule = entry.rule
            matched = rule is not None and all(self._meets(match) for match in rule.matches)
            self.steps.append(Step(self.hook, entry, matched))
            if rule is None or not matched:
                continue
            # a chain that only hands over has no say: who sent the packet there decides
            deciding = jump if jump and chain in _HANDING_OVER else entry
            match rule.target.verb:
                case "return":
                    self.deciding.setdefault(table, entry)
                    return jump is None
                case "accept":
                    self.deciding.setdefault(table, entry)
                    return True
                case "jump":
                    if self._chain(table, str(rule.target.argument), entry):
                        return True
                case _ if self._acts(rule, deciding):
                    return True
        return False

    def _acts(self, rule: Rule, deciding: Entry) -> bool:
        """What a target does to the packet. Whether the table is done with it."""
        target = rule.target
        receiver = _RECEIVERS.get(rule.chain, "port")
        match target.verb:
            case "drop":
                self.dropped = True
                self.deciding["drop"] = deciding
                return True
            case "redirect":
                self.translated = Ending(receiver, int(target.argument or 0))
                self.deciding["redirect"] = deciding
                self._redirect(int(target.argument or 0))
                return True
            case "tproxy":
                return self._tproxy(rule, deciding)
            case "set-mark":
                self.packet = replace(self.packet, mark=int(target.argument or 0))
            case "save-mark":
                self.connection_mark = self.packet.mark
            case "restore-mark":
                self.packet = replace(self.packet, mark=self.connection_mark)
        return False  # a zone, too, changes nothing for the first packet

    def _redirect(self, port: int) -> None:
        """To this host: over lo for what leaves, else to the interface it came by, whose address changes nothing."""
        if self.hook == "OUTPUT":
            home = HOME[self.packet.family]
            self.packet = replace(self.packet, destination=home, port=port, interface=LOOPBACK)
        else:
            self.packet = replace(self.packet, port=port)

    def _tproxy(self, rule: Rule, deciding: Entry) -> bool:
        """xt_TPROXY drops what no transparent socket waits for; nft goes on with the next rule."""
        if not self.listening:
            if self.dialect == "nftables":
                return False
            self.dropped = True
            self.deciding["drop"] = deciding
            return True
        self.socket = Ending(_RECEIVERS.get(rule.chain, "port"), int(rule.target.argument or 0))
        self.deciding["tproxy"] = deciding
        self.packet = replace(self.packet, mark=rule.target.mark or 0)
        return True

    def _meets(self, match: Match) -> bool:
        return meets(match, self.packet, self.hook, self.connection_mark, self.dialect)
