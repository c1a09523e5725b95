"""Kubernetes quantities: `2000m` is `2`, `1024Mi` is `1Gi` (apimachinery/pkg/api/resource)."""

import re
from decimal import ROUND_UP, Context, Decimal
from functools import lru_cache
from typing import Final

from cni_agent.values import Refused

ALLOWED: Final = "a Kubernetes quantity such as 100m, 1.5, 128Mi or 1e3"
_FORM = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([A-Za-z]*(?:(?<=[eE])[+-]?[0-9]+)?)", re.ASCII)
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]{1,9})", re.ASCII)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX: Final = {power: suffix for suffix, power in _DECIMAL.items()}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_BINARY_SUFFIX: Final = {0: "", **{power: suffix for suffix, power in _BINARY.items()}}
_LARGEST: Final = Decimal(2**63 - 1)
_NANO: Final = Decimal("1e-9")
_EXACT: Final = Context(prec=200)
_LONGEST: Final = 100  # characters; beyond it the number is far outside what Kubernetes keeps


@lru_cache(maxsize=512)
def canonical(text: str) -> str:
    """The one spelling of a quantity that Kubernetes prints. Raises `Refused` when it is none.

    >>> [canonical(text) for text in ("2000m", "1024Mi", "0.5", "1000", "1500Mi", "12e6", "0Gi")]
    ['2', '1Gi', '500m', '1k', '1500Mi', '12e6', '0']
    """
    form = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if not form or not (form[2] or form[3]):
        raise Refused(ALLOWED)
    sign, whole, fraction, suffix = form[1], form[2].lstrip("0") or "0", form[3] or "", form[4]
    number = Decimal(f"{sign}{whole}.{fraction or 0}")
    exponent = _EXPONENT.fullmatch(suffix)
    if suffix in _BINARY:
        if not fraction and _is_canonical_binary(whole, _BINARY[suffix]):
            return text
        amount = _rounded(_EXACT.multiply(number, Decimal(1024 ** _BINARY[suffix])))
        return _binary(max(-_LARGEST, min(_LARGEST, amount)))
    if suffix in _DECIMAL:
        power = _DECIMAL[suffix]
    elif exponent:
        power = int(exponent[1])
    else:
        raise Refused(ALLOWED)
    if abs(power) > _LONGEST:
        raise Refused(ALLOWED)
    if _is_canonical_decimal(whole + fraction, power - len(fraction)):
        return text
    return _decimal(_rounded(number.scaleb(power, _EXACT)), exponential=exponent is not None)


# ParseQuantity keeps a text that looks canonical to it, and that is not always what it would print itself: `007G`


def _is_canonical_decimal(digits: str, scale: int) -> bool:
    return len(digits) <= 18 and scale >= -9 and scale % 3 == 0 and digits[-3:] != "000" and digits[0] != "0"


def _is_canonical_binary(digits: str, power: int) -> bool:
    return len(digits) + 3 * power < 15 and int(digits) % 8 != 0


def _rounded(number: Decimal) -> Decimal:
    """Kubernetes keeps nothing finer than nano, rounding away from zero."""
    return number.quantize(_NANO, rounding=ROUND_UP, context=_EXACT)


def _decimal(number: Decimal, *, exponential: bool) -> str:
    if number == 0:
        return "0"
    sign, digits, exponent = number.normalize(_EXACT).as_tuple()
    assert isinstance(exponent, int)
    mantissa = int("".join(map(str, digits)))
    shift = exponent % 3  # only powers of a thousand have names
    power = exponent - shift
    if power > 18 and not exponential:
        power, shift = 18, exponent - 18
    text = f"{'-' if sign else ''}{mantissa * 10**shift}"
    if exponential:
        return f"{text}e{power}" if power else text
    return text + _DECIMAL_SUFFIX[power]


def _binary(number: Decimal) -> str:
    if abs(number) < 1024 or number != number.to_integral_value(context=_EXACT):
        return _decimal(number, exponential=False)
    whole, power = int(number), 0
    while whole % 1024 == 0 and power < 6:
        whole //= 1024
        power += 1
    return f"{whole}{_BINARY_SUFFIX[power]}"
