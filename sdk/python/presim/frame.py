"""Results as data frames of pandas."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from presim.codec import Result
from presim.results import Found, FoundVariant, SimulatedBlock

if TYPE_CHECKING:
    import pandas


def to_dataframe(results: Result | Sequence[Result]) -> pandas.DataFrame:
    """Returns a result, or several, as a data frame of pandas.

    A search has a row for each variant, with the varying values as `value_0` and `value_1`. Simulated blocks have a row
    for each call, with the indices `block` and `call`. Any other result is one row, or one row for each element of a
    list. The fields of an object in a row become columns such as `head_number`. Bytes become hex. Lists and maps stay
    as they are.

    Numbers stay exact: every column has the dtype `object`, because an amount in wei may exceed 64 bits. Convert a
    column before arithmetic in floating point, for example with `frame["objective"].astype(float)`.

    Raises `ImportError` if pandas is not installed, and `TypeError` for anything that is no result.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_dataframe() needs pandas: pip install pandas") from error
    rows = list(_rows(results))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return pandas.DataFrame(rows, columns=columns, dtype=object)


def _rows(results: Result | Sequence[Result]) -> Iterator[dict[str, Any]]:
    if isinstance(results, Found):
        yield from (_row(one) for one in results.best)
    elif isinstance(results, Result):
        yield from _rows([results]) if isinstance(results, SimulatedBlock) else [_row(results)]
    else:
        for index, one in enumerate(results if isinstance(results, Sequence) else [results]):
            if isinstance(one, SimulatedBlock):
                yield from ({"block": index, "call": at} | _row(call) for at, call in enumerate(one.calls))
            else:
                yield _row(one)


def _row(result: Any, prefix: str = "") -> dict[str, Any]:
    if not dataclasses.is_dataclass(result):
        raise TypeError(f"to_dataframe() needs a result of the node or a list of results, not {type(result).__name__}")
    row: dict[str, Any] = {}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if isinstance(result, FoundVariant) and field.name == "values":
            row |= {f"value_{index}": one for index, one in enumerate(value)}
        elif isinstance(value, Result):
            row |= _row(value, f"{prefix}{field.name}_")
        else:
            row[prefix + field.name] = "0x" + value.hex() if isinstance(value, bytes) else value
    return row
