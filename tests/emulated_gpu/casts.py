"""The source of a kernel whose casts to whole numbers are those of a GPU.

C++ leaves undefined what becomes of a number that the type does not hold. x86 makes -2147483648 of
it and keeps the low bits; a GPU takes the nearest number that 32 or 64 bits hold (``emulated::to``
in ``kernel.h``).

    (unsigned char)(x * 255.999f)      becomes  emulated::to<unsigned char>((x * 255.999f))
    static_cast<int>(x)                becomes  emulated::to<int>(x)
    _raw_out0[_ind.get()] = out0       becomes  emulated::assign(_raw_out0[_ind.get()], out0), in
                                       kernels of CuPy

Conversions that no cast is written for are left as they are; `EMULATED_GPU_SANITIZE` finds those
that are undefined.
"""

from __future__ import annotations

import re

WHOLE = r"(?:(?:unsigned|signed)(?:\s+(?:char|short|int|long(?:\s+long)?))?|char|short|int|long(?:\s+long)?|size_t)"
TYPEDEF = re.compile(r"typedef\s+(?:\w+\s+)+?(\w+);")
# In CuPy's element-wise kernels: a number that is read, and one that is stored.
INPUT = re.compile(r"\b(in\d+)_type \1\((_raw_\1\[_ind\.get\(\)\])\)")
OUTPUT = re.compile(r"(_raw_(out\d+)\[_ind\.get\(\)\]) = \2;")
NUMBER = re.compile(r"(?:\d|\.\d)(?:[eE][+-]|[\w.])*")
NAME = re.compile(r"[A-Za-z_]\w*(?:::\w+)*")
# What may stand before a cast; behind anything else the parentheses are those of a call or of a
# declaration.
WORDS_BEFORE = ("return", "case", "else")


def as_on_a_gpu(source: str) -> str:
    """Return the source of a kernel with the casts of a GPU."""
    names = "|".join(
        sorted({re.escape(name) for name in TYPEDEF.findall(source)}, key=len, reverse=True)
    )
    cast = re.compile(rf"\(\s*({WHOLE}{'|' if names else ''}{names})\s*\)\s*(?=[\w.(!~+*&-])")
    source = OUTPUT.sub(r"emulated::assign(\1, \2);", source)
    source = INPUT.sub(r"\1_type \1(emulated::to<\1_type>(\2))", source)
    return re.sub(rf"\bstatic_cast<({WHOLE})>", r"emulated::to<\1>", _rewritten(source, cast))


def _rewritten(text: str, cast: re.Pattern[str]) -> str:
    parts, begin = [], 0
    while match := cast.search(text, begin):
        if not _may_be_cast(text[: match.start()], cast):
            parts.append(text[begin : match.start() + 1])
            begin = match.start() + 1
            continue
        end = _operand_end(text, match.end(), cast)
        operand = _rewritten(text[match.end() : end], cast)
        parts += [text[begin : match.start()], f"emulated::to<{match[1]}>({operand})"]
        begin = end
    return "".join([*parts, text[begin:]])


def _may_be_cast(before: str, cast: re.Pattern[str]) -> bool:
    """Return True if parentheses about a type behind a text are a cast."""
    before = before.rstrip()
    if word := re.search(r"\w+$", before):
        return word[0] in WORDS_BEFORE
    if parentheses := re.search(r"\([\w\s*]+\)$", before):
        return _is_type(parentheses[0], cast)
    return not before.endswith((")", "]", ">"))


def _operand_end(text: str, begin: int, cast: re.Pattern[str]) -> int:
    """Return where the operand of a cast ends: signs and casts before it, a name or parentheses,
    calls and indices."""
    place = begin
    while match := re.compile(
        r"\s*[!~+*&-]\s*|\(\s*(?:const\s+)?\w+(?:\s+\w+)*\s*\**\s*\)\s*(?=[\w.(])"
    ).match(text, place):
        if match[0].lstrip().startswith("(") and not _is_type(match[0], cast):
            break
        place = match.end()
    place = _balanced_end(text, place) if text[place] == "(" else _word_end(text, place)
    while match := re.compile(r"\s*(?:\.|->)\s*\w+").match(text, place) or re.compile(
        r"[(\[]"
    ).match(text, place):
        place = match.end() if match[0][-1] not in "([" else _balanced_end(text, place)
    return place


def _is_type(parentheses: str, cast: re.Pattern[str]) -> bool:
    """Return True if parentheses before an operand are about a type."""
    name = parentheses.strip()[1:-1].strip()
    return (
        name.endswith("*")
        or bool(cast.match(f"({name})x"))
        or name in ("float", "double", "__half", "bool")
    )


def _word_end(text: str, begin: int) -> int:
    match = NUMBER.match(text, begin) or NAME.match(text, begin)
    if match is None:
        raise ValueError(f"a cast of what is no operand: {text[begin : begin + 60]!r}")
    return match.end()


def _balanced_end(text: str, begin: int) -> int:
    """Return the place behind the parenthesis that closes the one at a place."""
    depth = 0
    for place in range(begin, len(text)):
        depth += (text[place] in "([") - (text[place] in ")]")
        if not depth:
            return place + 1
    raise ValueError(f"no parenthesis closes {text[begin : begin + 60]!r}")
