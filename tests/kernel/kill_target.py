"""Does to a namespace what it is told, in a process that is made to be killed. Run as a module; see test_kill.py.

It mints first, then forks for each order, so that what is killed is the programming and not the start of Python.
"""

import os
import sys

from cni_agent.backends import backend
from cni_agent.kernel.netns import Netns
from tests.kernel.tools import DEFAULT, NAMES, TPROXY


def main() -> None:
    """Orders are lines `BACKEND VERB PATH`; who obeys says its id just before; a line more, and it is waited for."""
    programs = {name: backend(name) for name in NAMES}
    rulesets = {name: (program.ruleset(DEFAULT), program.ruleset(TPROXY)) for name, program in programs.items()}
    for name, program in programs.items():
        for ruleset in rulesets[name]:
            with Netns.scratch() as scratch:
                program.apply(scratch, ruleset)
    while line := sys.stdin.readline():
        name, verb, path = line.split()
        child = os.fork()
        if child:
            sys.stdin.readline()  # while it is not waited for, its id belongs to nobody else
            os.waitpid(child, 0)
            print("ended", flush=True)
            continue
        program = next(program for known, program in programs.items() if known == name)
        with Netns.open(path) as netns:
            print(os.getpid(), flush=True)
            if verb == "remove":
                program.remove(netns)
            else:
                program.apply(netns, rulesets[program.name][verb == "tproxy"])
        os._exit(0)


if __name__ == "__main__":
    main()
