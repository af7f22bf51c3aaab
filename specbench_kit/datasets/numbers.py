"""Numbers as people and models write them, read as decimals of any length."""

import re
from decimal import Context, Decimal

SEPARATOR = r"(?:,|\{,\}|\\[,!]|[\u00a0\u2009\u202f])"
DIGITS = rf"\d{{1,3}}(?:{SEPARATOR}\d{{2,3}})*{SEPARATOR}\d{{3}}(?!\d)|\d+"
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
CURRENCY = r"(?:(?:\\?\$|[€£¥])(?P<inner_sign>[-\u2212]?))?"
# A minus between two numbers is a subtraction, and one behind a word is a hyphen.
SIGN = r"(?:(?<![\w)%\]}])(?<![\d)] )[-\u2212\u2013])?"
FRACTION = rf"\\[dt]?frac\{{(?P<upper>{DIGITS})\}}\{{(?P<lower>{DIGITS})\}}"
PLAIN = (
    rf"(?P<whole>{DIGITS})?(?P<part>\.\d+)?(?<=\d)(?P<exponent>[eE][-+]?\d{{1,3}}(?!\w))?(?:\s*/\s*(?P<divisor>\d+))?"
)
NUMBER = re.compile(
    rf"(?P<sign>{SIGN}){CURRENCY}(?:{FRACTION}|(?<![\d.]){PLAIN})"
    rf"(?:\s*(?P<scale>{'|'.join(SCALES)})\b)?",
    re.IGNORECASE,
)
DIVISION = Context(prec=50)


def numbers(text: str) -> list[str]:
    """Return the numbers of a text, in order, each in its one form: `-1234.5` for `-$1,234.50`."""
    return [_canonical(match) for match in NUMBER.finditer(text)]


def _canonical(match: re.Match[str]) -> str:
    """Return a number without separators and needless zeros; its size is not limited."""
    whole = re.sub(SEPARATOR, "", match["upper"] or match["whole"] or "0")
    value = Decimal(f"{whole}{match['part'] or ''}{match['exponent'] or ''}")
    divisor = Decimal(re.sub(SEPARATOR, "", match["lower"] or match["divisor"] or "1"))
    if divisor not in (0, 1):
        value = DIVISION.divide(value, divisor)
    _, digits, exponent = value.as_tuple()
    # Shifting the exponent by hand is exact; arithmetic would round to the precision of a context.
    scaled = Decimal((0, digits, int(exponent) + SCALES.get((match["scale"] or "").lower(), 0)))
    plain = format(scaled, "f")
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    plain = plain.lstrip("0") or "0"
    plain = f"0{plain}" if plain.startswith(".") else plain
    is_negative = bool(match["sign"] or match["inner_sign"]) and plain != "0"
    return f"-{plain}" if is_negative else plain
