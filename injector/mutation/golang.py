"""What Go prints, where the peer's output is text: fmt.Sprint of a setting, JSON with Go's escapes."""

from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder()
# encoding/json escapes these so that its output may stand inside HTML
_HTML = (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


def sprint(value: Any) -> str:
    """fmt.Sprint of a value read from YAML.

    >>> sprint(15020), sprint(True), sprint(None), sprint(1.5)
    ('15020', 'true', '<nil>', '1.5')
    """
    if isinstance(value, str):
        return value
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return str(value)


def compact_json(value: Any) -> str:
    """json.Marshal: no spaces, keys in the order given, HTML characters escaped.

    >>> compact_json({"path": "/a?b<c&d", "port": 80})
    '{"path":"/a?b\\\\u003cc\\\\u0026d","port":80}'
    """
    text = _ENCODER.encode(value).decode()
    for character, escape in _HTML:
        if character in text:
            text = text.replace(character, escape)
    return text
