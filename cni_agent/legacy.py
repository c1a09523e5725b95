from cni_agent.differences import Difference
from cni_agent.inside import Inside


def clear(inside: Inside) -> bool:
    return False


def leftovers(inside: Inside) -> tuple[Difference, ...]:
    return ()
