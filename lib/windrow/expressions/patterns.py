"""Regular expressions of Java that RE2, the engine of DuckDB, matches in the same way."""

from __future__ import annotations

import re

# Patterns that Java and RE2 match alike, some written differently (RE2); a solid one never matches an empty text.
ATOM = r"(?:[\w /:;,=@#%&!~<>\"'-]|\\[dDwW./\\-]|\[\^?(?:\w-\w|[\w /:;,.=@#+*]|\\[dw.])+-?\])"
MORE = rf"(?:{ATOM}|\.|\\[sS])(?:[+*?]\??|\{{\d{{1,2}}(?:,\d{{0,2}})?\}}\??)?"
PATTERN = re.compile(rf"\^?(?:{MORE}|\||\((?![?*+{{])|\)(?![+*?{{]))*\$?")
LINE_END = r"\n\r\x{85}\x{2028}\x{2029}"
RE2 = {".": f"[^{LINE_END}]", r"\s": r"[ \t-\r]", r"\S": r"[^ \t-\r]", "$": rf"(?:\r\n|[{LINE_END}])?\z"}
EATS_RETURN = re.compile(r"(?:\[\^[^\]]*\]|\\[sDW])(?![+*](?!\?))")


def java_to_re2(text: str) -> str | None:
    """Return a pattern of Java as RE2 writes it, None if it may mean something else there."""
    if not PATTERN.fullmatch(text):
        return None
    # Java's $ stands before a line end at the end of the text, but never inside of \r\n.
    if text.endswith("$") and ("|" in re.sub(r"\([^()]*\)", "", text) or EATS_RETURN.search(text)):
        return None
    return re.sub(r"\[.*?\]|\\.|\.|\$$", lambda part: RE2.get(part[0], part[0]), text)


SOLID = re.compile(rf"\^?(?:{ATOM}\+?)+")
