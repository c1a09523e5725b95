"""What could not be done to a namespace, said so that it can be mended."""


class Failure(Exception):
    """A named failure. `reason` is the one word that log, metric and Event share; the message is for a person."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NetnsRefused(Failure):
    """The namespace is not one that we write to: the host's, none at all, or not ours to enter."""


class KernelRefused(Failure):
    """The kernel said no to a request. `errno` is its answer."""

    def __init__(self, reason: str, message: str, errno: int) -> None:
        super().__init__(reason, message)
        self.errno = errno


class NotAsWritten(Failure):
    """What was read back is not what was written: another program writes here too, or the kernel misbehaves."""


class CommandError(Failure):
    """A program failed, is missing, or took too long."""
