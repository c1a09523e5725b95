"""A kernel that lacks something: system calls that a seccomp filter answers with an error, in a forked process."""

import ctypes
import os
import pickle
import platform
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

NUMBERS = {
    "x86_64": {"sendto": 44, "getsockopt": 55, "setsockopt": 54, "socket": 41, "setns": 308, "unshare": 272,
               "clone": 56, "vfork": 58, "clone3": 435},
    "aarch64": {"sendto": 206, "getsockopt": 209, "setsockopt": 208, "socket": 198, "setns": 268, "unshare": 97,
                "clone": 220, "vfork": 220, "clone3": 435},
}  # fmt: skip
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


class Lack(NamedTuple):
    """One call that fails with an error number when its arguments, by index, have these values."""

    call: str
    error: int
    arguments: dict[int, int]


def under(lack: Lack, work: Callable[[], Any]) -> Any:
    """Runs `work` in a child that lacks something; its result, or the exception that it ended with."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            install(lack)
            answer = work()
        except BaseException as error:  # noqa: BLE001 -- told to the parent
            answer = error
        os.write(writer, pickle.dumps(_plain(answer)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(said)


def _plain(answer: Any) -> Any:
    """Exceptions with arguments of their own do not survive pickling."""
    if isinstance(answer, BaseException):
        return type(answer).__name__, getattr(answer, "reason", ""), str(answer)
    return answer


def install(lack: Lack) -> None:
    """For what is lacking beside the first, from within the child."""
    checks = [(0, NUMBERS[platform.machine()][lack.call])]
    checks += [(16 + 8 * index, value) for index, value in lack.arguments.items()]
    program = b""
    for number, (offset, value) in enumerate(checks):
        program += struct.pack("=HBBI", LOAD, 0, 0, offset)
        left = 2 * (len(checks) - 1 - number) + 1  # instructions to skip when it is another call
        program += struct.pack("=HBBI", JUMP_EQUAL, 0, left, value)
    program += struct.pack("=HBBI", RETURN, 0, 0, ERRNO | lack.error)
    program += struct.pack("=HBBI", RETURN, 0, 0, ALLOW)
    code = ctypes.create_string_buffer(program, len(program))
    filter_program = struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter_program):
        raise OSError(ctypes.get_errno(), "seccomp")
