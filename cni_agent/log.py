"""Logging: a constant message with named values beside it, as JSON or as text, on standard error."""

import json
import logging
import sys
import time
from typing import Final, Literal, TextIO

Format = Literal["json", "text"]
FORMATS: Final = ("json", "text")
LEVELS: Final = ("debug", "info", "warning", "error")
# what logging itself puts on a record; everything else came as a named value
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def set_up(form: Format, level: str = "info", stream: TextIO | None = None) -> None:
    """Sends everything that this program logs to one place, in one form; of libraries only warnings and worse."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for ours in ("cni_agent", "injector"):
        logging.getLogger(ours).setLevel(level.upper())


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **_values(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """One line for people; control characters in values are escaped, so that a pod cannot forge lines."""

    def format(self, record: logging.LogRecord) -> str:
        values = " ".join(f"{name}={_plain(value)}" for name, value in _values(record).items())
        text = f"{_timestamp(record)} {record.levelname.lower():7} {record.getMessage()} {values}".rstrip()
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _values(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD and value not in (None, "")}


def _plain(value: object) -> str:
    text = str(value)
    return text if text.isascii() and text.isprintable() and " " not in text else json.dumps(text)


def _timestamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z"
