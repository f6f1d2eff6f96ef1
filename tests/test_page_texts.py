"""The page's words: the same texts in every language, none of them elsewhere; and what each script of it may name.

It runs no browser: the files of the texts have a text a line for this purpose.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from test_page_protocol import page_table

WEB = Path(__file__).parents[1] / "web"
MAX_BYTES = 150_000
"""Of all files together."""
OWN_WORDS = {"BreezeRT", "–", "×", "breezert", "simulate", "--trace"}


def texts(language: str) -> dict[str, str]:
    """By section.name, in order."""
    table: dict[str, str] = {}
    for section, rows in re.findall(r"export const (\w+) = \{\n(.*?)\n\};", read(language), re.DOTALL):
        for row in rows.splitlines():
            found = re.fullmatch(r'  (?:(\w+)|"([\w.-]+)"): (".*"),', row)
            assert found, f"web/texts.{language}.js: {row}"
            table[f"{section}.{found[1] or found[2]}"] = json.loads(found[3])
    return table


def read(language: str) -> str:
    return (WEB / f"texts.{language}.js").read_text()


def languages() -> list[str]:
    found = re.search(r"export const LANGUAGES = \{(.*?)\};", (WEB / "texts.js").read_text())
    assert found, "web/texts.js has no LANGUAGES"
    return re.findall(r"(\w+):", found[1])


def scripts() -> dict[str, str]:
    return {path.name: path.read_text() for path in WEB.glob("*.js") if not path.name.startswith("texts.")}


def names(text: str) -> list[str]:
    return sorted(re.findall(r"\{\w+\}", text))


def test_each_language_has_a_file_and_each_file_is_a_language() -> None:
    assert {f"texts.{language}.js" for language in languages()} | {"texts.js"} == {
        path.name for path in WEB.glob("texts*.js")
    }


@pytest.mark.parametrize("language", languages())
def test_every_text_is_there_in_every_language(language: str) -> None:
    english, other = texts("en"), texts(language)
    assert len(other) == read(language).count('": "') + len(re.findall(r"^  \w+: ", read(language), re.MULTILINE))
    assert other.keys() == english.keys()
    for key, text in other.items():
        assert names(text) == names(english[key]), key
        assert text or language == "en", f"{key}: only in English the server's own words are enough"


def test_every_text_that_is_named_exists_and_every_text_is_used() -> None:
    code, html = "".join(scripts().values()), (WEB / "index.html").read_text()
    named = set(re.findall(r'data-(?:text|label|title|placeholder)="([\w.]+)"', html))
    literal = set(re.findall(r'"([a-z]+\.[\w.-]+)"', code))
    families = tuple(re.findall(r"`([\w.]+)\$\{", code))  # `said.${reason}` and the like
    english = texts("en").keys()
    assert named <= english
    assert set(re.findall(r'tell\("([^"]+)"', code)) <= english
    assert [key for key in english if key not in named | literal and not key.startswith(families)] == []


def test_the_page_has_no_words_but_its_texts() -> None:
    html = re.sub(r"<noscript>.*?</noscript>|<title>.*?</title>", "", (WEB / "index.html").read_text())
    assert set(re.sub(r"<[^>]*>", " ", html).split()) <= OWN_WORDS


def test_every_script_reads_only_fields_and_types_of_the_protocol() -> None:
    fields = {field.rstrip("?") for fields in page_table("SERVER").values() for field in fields} | {"type"}
    sent = page_table("CLIENT").keys()
    for name, code in scripts().items():
        if name == "protocol.js":
            continue
        assert set(re.findall(r"\bmessage\??\.(\w+)", code)) <= fields, name
        types = re.findall(r'(?:case |\btype === )"([\w.]+\.\w+|error|pong|view)"', code)
        assert set(types) <= page_table("SERVER").keys(), name
        assert set(re.findall(r'\bsend\("([\w.]+)"', code)) <= sent, name


def test_every_id_that_a_script_asks_for_is_there_once() -> None:
    ids = re.findall(r'\sid="([^"]+)"', (WEB / "index.html").read_text())
    assert len(ids) == len(set(ids))
    for name, code in scripts().items():
        assert set(re.findall(r'\belement\("([\w-]+)"\)', code)) <= set(ids), name


def test_the_page_is_light() -> None:
    assert sum(path.stat().st_size for path in WEB.iterdir()) <= MAX_BYTES
