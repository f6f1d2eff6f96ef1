"""Takes markup away: Markdown as CommonMark and GitHub have it, HTML tags and entities. It does not read the words.

A parser of its own library finds the structure; this file says which of it is heard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable(["code", "html_block", "lheading"])
"""Indented text is no code: a reply that was cut into sentences has lost its indents' meaning."""
FOOTNOTE = re.compile(r"\[\^[\w-]{1,32}\]:?")
TASK = re.compile(r"^\[[ xX]\]\s+")
NO_QUOTE = re.compile(r"^(\s{0,3})>(=?)(?=\s?\d)", re.MULTILINE)
MOST_CODE = 60
"""Characters of a code block that are read; a longer one, or one of two lines, is only named."""
CODE = "Code block."
BULLETS = "•●○◦▪▫‣⁃→⇒➔➜▶►» \t\n"
"""Begin a list that is not Markdown's."""


def lines(text: str) -> list[str]:
    """What is to be said of the text, one line for each paragraph, heading, list item and row of a table."""
    text = FOOTNOTE.sub("", NO_QUOTE.sub(spoken_sign, text))
    return [line for line in map(flat, heard(PARSER.parse(text))) if line]


def spoken_sign(match: re.Match[str]) -> str:
    """`> 5` at the beginning is no quotation."""
    return f"{match[1]}{'at least' if match[2] else 'greater than'} "


def heard(tokens: Sequence[Token]) -> Iterator[str]:
    """The blocks' texts; a list item behind its number, a row's cells behind commas."""
    mark, row = "", None
    for token in tokens:
        if token.type == "list_item_open":
            mark = f"{token.info}: " if token.info else ""
        elif token.type == "tr_open":
            row = list[str]()
        elif token.type == "tr_close" and row is not None:
            yield ", ".join(filter(None, row))
            row = None
        elif token.type == "fence":
            yield code(token.content)
        elif token.type == "inline" and row is not None:
            row.append(inline(token))
        elif token.type == "inline":
            yield mark + inline(token)
            mark = ""


def inline(token: Token) -> str:
    """Text and code as they stand, a picture's description; tags are silent, breaks are spaces."""
    return TASK.sub("", "".join(map(said, token.children or ())))


def said(token: Token) -> str:
    if token.type in ("softbreak", "hardbreak"):
        return " "
    if token.type == "html_inline":
        return ", " if token.content.lower().startswith("<br") else " "
    return token.content if token.type in ("text", "code_inline", "image", "text_special") else ""


def code(content: str) -> str:
    content = content.strip()
    return content if len(content) <= MOST_CODE and "\n" not in content else CODE


def flat(line: str) -> str:
    return " ".join(line.lstrip(BULLETS).split())
