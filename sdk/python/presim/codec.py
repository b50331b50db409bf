"""Converts between Python values and the JSON of the node. The type hints of parameters and results say how."""

from __future__ import annotations

import dataclasses
import functools
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from eth_typing import ChecksumAddress
from eth_utils.address import to_checksum_address
from hexbytes import HexBytes
from typing_extensions import NotRequired, Required, get_type_hints, is_typeddict

if TYPE_CHECKING:
    import pandas

Quantity: TypeAlias = Annotated[int, "quantity"]
"""A number that is hex in JSON."""

Decimal: TypeAlias = Annotated[int, "decimal"]
"""A number that is a decimal string in JSON, because it may be negative."""

Data: TypeAlias = bytes | str
"""Bytes, or their hex."""

Address: TypeAlias = bytes | str
"""The 20 bytes of an address, or their hex."""

Word: TypeAlias = Annotated[int | bytes | str, "word"]
"""A storage slot or its value: a number, or up to 32 bytes."""


class Result:
    """A result of the node."""

    __slots__ = ()

    def to_dataframe(self) -> pandas.DataFrame:
        """Returns the result as a data frame. `presim.to_dataframe` describes its rows and columns."""
        from presim.frame import to_dataframe

        return to_dataframe(self)


def encode(value: Any, hint: Any) -> Any:
    """Returns the JSON of a parameter. A value that does not match the hint is left for the node to reject."""
    if isinstance(value, (bytes, bytearray)):
        return "0x" + value.hex()
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Required, NotRequired):
        return encode(value, args[0])
    if isinstance(value, int) and not isinstance(value, bool):
        return _encode_int(value, _int_form(hint))
    if isinstance(value, Mapping):
        member = _member(hint, lambda one: is_typeddict(one) or get_origin(one) is Mapping)
        fields = _typed_dict_hints(member) if is_typeddict(member) else {}
        key, item = get_args(member) if get_origin(member) is Mapping else (Any, Any)
        return {encode(name, key): encode(one, fields.get(name, item)) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        member = _member(hint, lambda one: get_origin(one) is Sequence)
        item = get_args(member)[0] if get_args(member) else Any
        return [encode(one, item) for one in value]
    return value


def _encode_int(value: int, form: str) -> int | str:
    if form == "decimal":
        return str(value)
    if value < 0 or form == "number":
        return value
    return f"0x{value:064x}" if form == "word" else hex(value)


@functools.cache
def _int_form(hint: Any) -> str:
    """Returns the form of a number in JSON: `quantity`, `decimal`, `word`, or `number`."""
    member = _member(hint, lambda one: get_origin(one) is Annotated)
    return str(get_args(member)[1]) if get_origin(member) is Annotated else "number"


def _member(hint: Any, matches: Callable[[Any], bool]) -> Any:
    """Returns the first member of a union that matches, or the hint itself if it is no union."""
    if get_origin(hint) in (Union, types.UnionType):
        return next((one for one in get_args(hint) if matches(one)), Any)
    return hint


@functools.cache
def _typed_dict_hints(typed_dict: Any) -> dict[str, Any]:
    return dict(get_type_hints(typed_dict, include_extras=True))


def decode(value: Any, hint: Any) -> Any:
    """Returns the Python value of a result.

    Fields that the hint does not name are left out, so that a newer node can add some.
    """
    return _decoder(hint)(value)


@functools.cache
def _decoder(hint: Any) -> Callable[[Any], Any]:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return int if args[1] == "decimal" else functools.partial(int, base=16)
    if origin in (Union, types.UnionType):
        return functools.partial(_decode_union, args)
    if origin is list:
        item = _decoder(args[0])
        return lambda value: [item(one) for one in value]
    if origin is dict:
        key, item = _decoder(args[0]), _decoder(args[1])
        return lambda value: {key(name): item(one) for name, one in value.items()}
    if dataclasses.is_dataclass(hint):
        return functools.partial(_decode_dataclass, hint)
    return _SCALARS.get(hint, lambda value: value)


@functools.lru_cache(maxsize=4096)
def _checksum_address(value: str) -> ChecksumAddress:
    return to_checksum_address(value)


_NONE: tuple[Any, ...] = (type(None),)
_SCALARS: dict[Any, Callable[[Any], Any]] = {HexBytes: HexBytes, ChecksumAddress: _checksum_address}


def _decode_dataclass(cls: Any, value: Mapping[str, Any]) -> Any:
    return cls(**{name: item(value[wire]) for name, wire, item in _fields(cls) if wire in value})


@functools.cache
def _fields(cls: Any) -> list[tuple[str, str, Callable[[Any], Any]]]:
    """Returns the name, the name in JSON, and the decoder of each field."""
    hints = get_type_hints(cls, include_extras=True)
    return [(one.name, json_name(one.name), _decoder(hints[one.name])) for one in dataclasses.fields(cls)]


def json_name(name: str) -> str:
    """Returns the name in JSON of a field or a parameter: `blockNumber` of `block_number`, and `from` of `from_`."""
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name.rstrip("_"))


def _decode_union(members: tuple[Any, ...], value: Any) -> Any:
    if value is None:
        return None
    for member in members:
        if member not in _NONE and _accepts(member, value):
            return _decoder(member)(value)
    raise ValueError(f"the node has answered {value!r}, which is none of {members}")


def _accepts(member: Any, value: Any) -> bool:
    if isinstance(value, Mapping):
        return get_origin(member) is dict or (dataclasses.is_dataclass(member) and _has_required(member, value))
    if isinstance(value, (list, tuple)):
        return get_origin(member) is list
    return get_origin(member) not in (list, dict) and not dataclasses.is_dataclass(member)


def _has_required(cls: Any, value: Mapping[str, Any]) -> bool:
    """Whether an object has every field that the class requires, with the value that a `Literal` names."""
    hints = get_type_hints(cls, include_extras=True)
    required = [one.name for one in dataclasses.fields(cls) if one.default is dataclasses.MISSING]
    for name in required:
        wire, hint = json_name(name), hints[name]
        origin: Any = get_origin(hint)
        if wire not in value or (origin is Literal and value[wire] not in get_args(hint)):
            return False
    return True
