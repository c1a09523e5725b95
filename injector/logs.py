"""Log lines: time, level, a constant message, then key=value pairs that name what it is about."""

import json
import logging
import sys
import time

LEVELS = ("debug", "info", "warning", "error")
# whatever a bare record carries is the logging module's own; the rest came from extra={...}
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class KeyValueFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z info settings applied source=files`; newlines in values stay escaped."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        pairs = "".join(
            f" {key}={_value(value)}" for key, value in vars(record).items() if key not in _OWN and value != ""
        )
        line = f"{stamp}.{int(record.msecs):03d}Z {record.levelname.lower()} {record.getMessage()}{pairs}"
        if record.exc_info:
            line += f" traceback={json.dumps(self.formatException(record.exc_info))}"
        return line


def _value(value: object) -> str:
    text = str(value)
    plain = text.isascii() and text.isprintable() and not any(c in text for c in ' "=')
    return text if plain and text else json.dumps(text, ensure_ascii=False)


def configure(level: str) -> None:
    """Sends every log line of this process to standard error at `level` and above."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
