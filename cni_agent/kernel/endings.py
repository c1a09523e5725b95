"""Which rules keep the packets that they match from the rules behind them, and so, before ours, from being captured.

To drop is no such ending here: what is dropped does not get past the proxy, and a firewall of somebody else is to be
left as it is. Nor is the end of one base chain that of another on the same hook: there, all but a drop goes on.
"""

from typing import Final, Literal

# table: done with all of it, by an accept, a translation or a queue. chain: a return or a goto, which from a built-in
# chain leads to its policy.
Ending = Literal["table", "chain"]
TARGETS: Final = frozenset({"DNAT", "MASQUERADE", "NETMAP", "NFQUEUE", "QUEUE", "REDIRECT", "SNAT", "TPROXY"})
EXPRESSIONS: Final = frozenset({"masq", "nat", "queue", "redir"})
