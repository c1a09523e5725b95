"""The floor for `scripts/bench agent`: a loop that only sees a cgroup appear, waits until its process has left the
node's namespace, and sends the bytes. No proof, no pods, no reading back, nothing else to do."""

import os
import select
import socket
import sys
import time
from pathlib import Path

from cni_agent.backends.iptables_nft import IptablesNft
from cni_agent.kernel.netns import CLONE_NEWNET, host_identity
from cni_agent.kernel.probe import DEFAULT
from cni_agent.node.sandboxes import Sandboxes
from tests.kernel.sandbox import LIBC


def main(root: str) -> None:
    """Prints `ready`, then the uid and the time of each namespace that it has written to."""
    backend = IptablesNft()
    stamp = backend._mint(backend.ruleset(DEFAULT))
    batch = stamp.fresh.framed(1)  # the generation of a namespace without rules
    host = host_identity().inode
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    waiting: dict[str, None] = {}
    sandboxes = Sandboxes([root], lambda uid: waiting.update({uid: None}), lambda: None)
    sandboxes.look()
    done: set[str] = set()
    print("ready", flush=True)
    while True:
        select.select([sandboxes], [], [], 0.0005 if waiting else None)
        sandboxes.read()
        for uid in list(waiting):
            if uid in done or not (directories := sandboxes.containers.get(uid)):
                del waiting[uid]
                continue
            for pid in Path(next(iter(directories)), "cgroup.procs").read_text().split():
                if os.stat(f"/proc/{pid}/ns/net").st_ino == host:
                    continue
                inside = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
                LIBC.setns(inside, CLONE_NEWNET)
                with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as channel:
                    channel.send(batch)
                LIBC.setns(home, CLONE_NEWNET)
                os.close(inside)
                done.add(uid)
                del waiting[uid]
                print(uid, time.time(), flush=True)
                break


if __name__ == "__main__":
    main(sys.argv[1])
