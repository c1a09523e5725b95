"""Which pod and container a process belongs to, read from the text of /proc/PID/cgroup, and what a directory of the
kubepods tree is, read from its name.

The reading is that of Istio (cni/pkg/nodeagent/podcgroupns_linux.go): whatever lies between the pod's uid and the last
word of the path is ignored, so that the drivers cgroupfs and systemd, the cgroup versions and the runtimes all look
alike. Its second regular expression takes exponential time in Python; here each path is read once, from its end.
"""

import functools
import json
import re
import string
from collections.abc import Iterable
from typing import Final, NamedTuple

_MARK = "[" + re.escape(string.punctuation) + "]"
_MARK_BUT_SLASH = "[" + re.escape(string.punctuation.replace("/", "")) + "]"
_UID = f"{_MARK}?".join(["[0-9A-Fa-f]{8}", *["[0-9A-Fa-f]{4}"] * 3, "[0-9A-Fa-f]{12}"])
# The lookahead leaves the closing mark free to open a token that follows at once.
_POD = re.compile(f"{_MARK}pod({_UID})(?={_MARK})")
_POD_UNOPENED = re.compile(f"pod{_UID}{_MARK}")
_LONGEST_POD: Final = len("pod") + 36 + 1
# Greedy, so that each ends at the last of its kind, in one pass.
_TO_LAST_MARK = re.compile(f".*{_MARK}", re.DOTALL)
_TO_LAST_PAIR = re.compile(f".*{_MARK}{{2}}", re.DOTALL)
_TO_LAST_BREAK = re.compile(f".*{_MARK_BUT_SLASH}", re.DOTALL)
_CRIO: Final = "crio"

_POD_DIRECTORY = re.compile(f"(?:[A-Za-z0-9_.-]*-)?pod({_UID})(?:\\.slice)?(?::.*)?", re.DOTALL)
_KUBEPODS = re.compile(r"kubepods|(?:[A-Za-z0-9_.-]*-)?kubepods\.slice")
_TIER = re.compile(r"burstable|besteffort|(?:[A-Za-z0-9_.-]*-)?kubepods-(?:burstable|besteffort)\.slice")
_DASHES = str.maketrans(dict.fromkeys(string.punctuation, "-"))
_SHOWN: Final = 200  # characters of a malformed line that an error repeats


class CgroupError(ValueError):
    """The text is no cgroup file, or names more than one pod or container."""


class Membership(NamedTuple):
    """Both are empty for a process outside pods. CRI-O under kubeedge names a container and no pod."""

    pod_uid: str
    container_id: str


NOBODY: Final = Membership("", "")


def membership(text: str) -> Membership:
    """The pod and container that every line of a /proc/PID/cgroup agrees on; lines outside pods have no say.

    >>> membership("0::/kubepods/pod2c48913c_b29f_11e7_9350_020968147796/9bca8d63d5fa").pod_uid
    '2c48913c-b29f-11e7-9350-020968147796'
    """
    paths = []
    for line in text.removesuffix("\n").split("\n") if text else ():
        fields = line.split(":", 2)
        if len(fields) < 3:
            raise CgroupError(
                f"unable to obtain cgroups: cgroup entry contains {len(fields)} colons, "
                f"but expected at least 2 colons: {json.dumps(line[:_SHOWN], ensure_ascii=False)}"
            )
        paths.append(fields[2])
    return membership_of_paths(paths)


def membership_of_paths(paths: Iterable[str]) -> Membership:
    """The same for paths alone. The lines of one process usually repeat one path, so each is read once."""
    found = NOBODY
    for path in dict.fromkeys(paths):
        candidate = _of_path(path)
        if candidate is None:
            continue
        if not found.container_id:
            found = candidate
        elif found.container_id != candidate.container_id:
            raise CgroupError(
                f"multiple container IDs found in cgroups ({found.container_id}, {candidate.container_id})"
            )
        elif found.pod_uid != candidate.pod_uid:
            raise CgroupError(f"multiple pod UIDs found in cgroups ({found.pod_uid}, {candidate.pod_uid})")
    return found


def pod_uid(directory: str) -> str | None:
    """The uid of the pod whose cgroup has this name.

    >>> pod_uid("kubepods-burstable-pod2c48913c_b29f_11e7_9350_020968147796.slice")
    '2c48913c-b29f-11e7-9350-020968147796'
    >>> pod_uid("kubepods-burstable.slice")
    """
    match = _POD_DIRECTORY.fullmatch(directory)
    return match[1].translate(_DASHES) if match else None


def is_kubepods(directory: str) -> bool:
    """Whether this is the cgroup that holds all pods; a kubelet with a cgroup root puts its name before."""
    return _KUBEPODS.fullmatch(directory) is not None


def is_tier(directory: str) -> bool:
    """Whether this is the cgroup of a quality-of-service class, between kubepods and the pods."""
    return _TIER.fullmatch(directory) is not None


@functools.lru_cache(256)  # the first process of a container is looked at twice, and others share their paths
def _of_path(path: str) -> Membership | None:
    """Exactly one of the two forms must fit; a path that fits both says nothing for sure."""
    path = path.removesuffix(".scope")
    last_mark = _TO_LAST_MARK.match(path)
    if last_mark is None or last_mark.end() == len(path):
        return None
    uid = _uid_in(path)
    if (uid is not None) == _is_crio_without_pod(path, last_mark.end() - 1):
        return None
    return Membership(uid or "", path[last_mark.end() :])


def _uid_in(path: str) -> str | None:
    """The uid of the first `pod<uid>` after which words and marks alternate to the end."""
    pair = _TO_LAST_PAIR.match(path)
    after = pair.end() if pair else 0
    for token in _POD.finditer(path):
        if token.end() + 1 >= after:
            return token[1].translate(_DASHES)
    return None


def _is_crio_without_pod(path: str, last_mark: int) -> bool:
    """Whether the path ends in `crio-<id>` and no pod's uid leads up to it.

    "Leads up to" is what the leftmost match of Istio's expression makes of it: a uid that begins no later than the run
    of words and slashes before `crio`. One written without separators, inside that run, does not count.
    """
    crio = last_mark - len(_CRIO)
    if crio < 0 or not path.startswith(_CRIO, crio):
        return False
    break_before = _TO_LAST_BREAK.match(path, 0, crio)
    run = break_before.end() if break_before else 0
    for start in range(max(0, run - _LONGEST_POD), run + 1):
        token = _POD_UNOPENED.match(path, start, crio)
        if token and token.end() >= run:
            return False
    return True
