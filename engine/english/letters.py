"""Reads capitals: acronyms by letters or as a word, shouting as speech, identifiers by parts, Roman numerals.

It knows no dictionary, only short tables; what they lack is judged by its length and its vowels.
"""

from __future__ import annotations

import re

from engine.english.numerals import cardinal, digits, ordinal, pairs, roman
from engine.english.rule import Match, after, any_of, rule, word_before, words

LETTERS = frozenset(
    words(
        "AAA AARP ABC ABS AC ACL ADHD AI AM AMA API APR ASAP ATM AWS BA BBC BBQ BMW BYOB CBS CD CDC CEO CFO CGI CIA "
        "CLI CMO CNN COO CPA CPU CSS CTO CV DC DIY DJ DNA DOB DOJ DUI DVD EKG EPA ER ERP ESPN EST ET ETA EU EV FAQ "
        "FAQs FBI FDA FYI GDP GOP GPA GPS GPU GUI HBO HDMI HIV HOA HR HTML HTTP HTTPS IBM ICU ID IDE IEEE IMO IOU "
        "IP IPA IPO IQ IRA IRS ISBN ISO ISP IT ITV IV IVF JFK KIA LA LAX LED LGBT LLC LLM MBA MC MIA MIT MRI MVP "
        "NBA NBC NCAA NFL NGO NHL NIH NPR NSA NYC NYU OCD OED OEM OS OTC PA PC PDF PE PHP PM PMS PO POV PR PS PTA "
        "PTO PTSD QA RFID RIP RNA ROI RSVP RV SDK SEC SEO SMS SOS SQL SSD SSL SSN STD SUV TA TBA TCP TLC TSA TTS TV "
        "UCLA UDP UFO UI UK UN UPS URI URL US USA USB USD USDA UTC UV UX VA VAT VIP VPN VR WHO WTO XL XML YMCA"
    )
)
"""Read letter by letter, though a vowel stands in them."""
WORDS = frozenset(
    words(
        "ACID AIDS ASCII BASIC BIOS CAD CAPTCHA COBOL COVID CRUD DAX EBITDA ERISA FEMA FIFA FOMO GIF HIPAA IKEA "
        "JPEG JSON LAN LASER LIDAR MIDI NASA NASDAQ NATO NAFTA NIMBY NOAA OPEC OSHA PIN POTUS RADAR RAID RAM REST "
        "ROM SAAS SCOTUS SCUBA SIM SONAR SWAT TASER UEFA UNESCO UNICEF VIN VOIP WAN WASP YOLO YAML ZIP"
    )
)
"""Acronyms that are words: written as they were."""
SHORT = frozenset(
    words(
        "A I ACE ACT ADD AGE AGO AID AIM AIR ALL AND ANY ARE ARM ART AS ASK AT ATE BAD BAG BAR BE BED BEE BEG BET "
        "BIG BIT BOX BOY BUG BUS BUT BUY BY CAN CAR CAT COW CUT DAD DAY DEAL DID DO DOG DON DRY DUE EAR EAT EGG END "
        "EYE FAR FEE FEW FIT FIX FLY FOR FUN GET GO GOD GOT GUN GUY HA HAD HAS HAT HE HER HEY HI HIM HIS HIT HOT "
        "HOW ICE IF ILL IN IS ITS JOB JOY KEY KID LAW LAY LEG LET LIE LOT LOW MAD MAN MAP MAY ME MEN MET MIX MOM "
        "MUST MY NEW NO NOR NOT NOW ODD OF OFF OH OIL OLD ON ONE OR OUR OUT OWN PAY PEN PET PUT RAN RED RUN SAD SAW "
        "SAY SEA SEE SET SHE SIR SIT SIX SKY SO SON SUN TAX TEA TEN THE TIE TIP TO TOO TOP TOY TRY TWO UP USE WAR "
        "WAS WAY WE WET WHY WIN WON WOW YES YET YOU ZOO"
    )
)
"""Words of up to three letters that someone may emphasise."""
AMBIGUOUS = frozenset(words("AM IT US WHO IV PA LA"))
"""Words too: read as such where everything is in capitals."""
SAID = {
    "iOS": "i O S",
    "macOS": "mac O S",
    "PhD": "P H D",
    "OK": "okay",
    "LaTeX": "lay-tech",
    "JPEG": "J peg",
    "JSON": "jason",
    "SaaS": "sass",
    "IoT": "I O T",
}
CAPS = r"(?<![\w'])(?P<caps>[A-Z]{2,24})(?P<s>'s|s)?(?![\w])"
SHOUTED = re.compile(r"(?<![\w])(?:[A-Z][A-Z']*(?:[^\w\n]{1,3}(?=[A-Z])|(?!\w))){3,}")
VOWEL = re.compile(r"[AEIOUY]")
HUMPS = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z]+|[A-Z]|\d+")


def spelled(letters: str) -> str:
    """P D F."""
    return " ".join(letters.upper())


def shouting(match: Match) -> str:
    """Three words or more in capitals: speech, with the acronyms that cannot be words left alone."""
    loud = sum(len(word) > 1 and word not in (LETTERS - AMBIGUOUS) | WORDS for word in re.findall(r"[A-Z']+", match[0]))
    if loud < 2:
        return match[0]
    quiet = re.sub(r"[A-Z][A-Z']*", lambda word: lowered(word[0]), match[0])
    return quiet[0].upper() + quiet[1:] if match[0][0] != quiet[0] else quiet


def lowered(word: str) -> str:
    known = word in LETTERS and word not in AMBIGUOUS
    return word if known or word in WORDS or word == "I" or word.startswith("I'") else word.lower()


def capitals(match: Match) -> str:
    """An acronym by letters or as a word, or a word that is emphasised."""
    caps, tail = match["caps"], match["s"] or ""
    if caps in SAID:
        return SAID[caps] + tail
    if caps in WORDS:
        return match[0]
    if caps == "WHO" and word_before(match) != "the":
        return "who"
    if by_letters(caps):
        return spelled(caps) + ("'s" if tail else "")
    return caps.lower() + tail


def by_letters(caps: str) -> bool:
    if caps in LETTERS or not VOWEL.search(caps):
        return True
    return len(caps) <= 3 and caps not in SHORT


def mixed(match: Match) -> str:
    """getUserName, XMLHttpRequest: by parts. A name such as YouTube, McDonald or eBay is left as it is."""
    word = match[0]
    if word in SAID:
        return SAID[word]
    humps = HUMPS.findall(word)
    if "".join(humps) != word or is_name(humps):
        return word
    return " ".join(
        hump if len(hump) == 1 or not hump.isupper() else spelled_or_word(hump) for hump in lower_humps(humps)
    )


def is_name(humps: list[str]) -> bool:
    """One hump, and no more: YouTube, iPhone, MacBook."""
    return len(humps) == 2 and not humps[1].isupper() and (humps[0][0].isupper() or len(humps[0]) == 1)


def lower_humps(humps: list[str]) -> list[str]:
    return [hump if hump.isupper() else hump.lower() for hump in humps]


def spelled_or_word(hump: str) -> str:
    return spelled(hump) if by_letters(hump) else hump


def snake(match: Match) -> str:
    return match[0].replace("_", " ").strip()


def dotted(match: Match) -> str:
    """U.S., Ph.D.: its letters. The last full stop is the sentence's where that ends."""
    letters = spelled(match[0].replace(".", ""))
    stop = (
        "."
        if match[0].endswith(".") and re.match(r"\s*$|\s+(?:He|She|It|We|They|I|The|This|That|But|And)\b", after(match))
        else ""
    )
    return letters + stop


def lettered(match: Match) -> str:
    """MP3, GPT-4, B2B, COVID-19, A320: letters as an acronym, digits as a number; a long code has only digits."""
    pieces = re.findall(r"[A-Za-z]+|\d+", match[0])
    read = digits if len(pieces) > 3 and len(match[0]) > 7 else number_part
    return " ".join(read(piece) if piece.isdecimal() else letter_part(piece) for piece in pieces)


def number_part(number: str) -> str:
    return digits(number) if len(number) > 4 or number[0] == "0" else pairs(number)


def letter_part(letters: str) -> str:
    """Left for the rules on capitals, but for letters that are no word."""
    if letters.isupper() and len(letters) < 4 and letters not in WORDS:
        return spelled(letters)
    return spelled(letters) if letters.islower() and not re.search(r"[aeiouy]", letters) else letters


RULERS = words(
    "Henry Louis George Edward Charles Elizabeth William James Richard Paul Benedict Pius Leo Francis Philip "
    "Alexander Peter Catherine Napoleon Nicholas Frederick Ivan Mary John Gregory Innocent Clement Ramses Alfonso "
    "Ferdinand Gustav Haakon Harald Margrethe Christian Mehmed Murad Otto Wilhelm Pope King Queen"
)
NUMBERED = words(
    "War Chapter Part Volume Act Scene Section Book Phase Type Class Stage Level Title Article Appendix Rocky Bowl "
    "Fantasy Episode Mark Division Group Tier Grade Schedule Figure Table Step Round Season Lesson Unit Apollo "
    "Saturn"
)
NUMERAL = r"(?P<numeral>[IVXL]{1,7})"


def ruler(match: Match) -> str:
    """Henry VIII, Elizabeth II's."""
    number = numeral(match)
    return f"{match['who']} the {ordinal(number)}" if number else match[0]


def numeral(match: Match) -> int:
    """Its Roman number; 0 for none, and for an I that goes on as a sentence does: Elizabeth, I think."""
    follows = r"'s|\s*$|[.,;:!?)]|\s(?:of|was|and|had|became|reigned|ruled|died)\b"
    if match["numeral"] == "I" and not re.match(follows, after(match)):
        return 0
    return roman(match["numeral"])


def numbered(match: Match) -> str:
    number = numeral(match)
    return f"{match['what']} {cardinal(number)}" if number else match[0]


def unnamed(match: Match) -> str:
    """Terminator II: what is no acronym."""
    number = roman(match["numeral"])
    return cardinal(number) if number else match[0]


def century(match: Match) -> str:
    number = roman(match["numeral"])
    return ordinal(number) if number else match[0]


DOTTED = (
    rule(r"(?<![\w.])(?:[A-Za-z]\.){2,6}(?![\w])|(?<![\w.])(?:[A-Z]\.){1,5}[A-Z](?![\w.])|\bPh\.?D\.?(?!\w)", dotted),
)
ROMAN = (
    rule(rf"\b(?P<who>{any_of(RULERS)})\s{NUMERAL}(?!\w)", ruler),
    rule(rf"\b(?P<what>{any_of([*NUMBERED, *map(str.lower, NUMBERED)])})\s{NUMERAL}(?!\w)", numbered),
    rule(rf"(?<!\w){NUMERAL}(?=\s[Cc]entur)", century),
    rule(r"(?<!\w)(?P<numeral>II|III|VII|VIII|XII|XIII)(?!\w)", unnamed),
    rule(r"(?<=[a-z]\s)(?P<numeral>VI|IX|XI|XIV|XV|XVI{1,3}|XIX|XX[IVX]{0,4})(?!\w)", unnamed),
)
LETTERED = (
    rule(r"\bIPv(?=\d)", "I P V "),
    rule(
        r"(?<![\w.,])(?<!\d-)(?:[A-Za-z]{1,12}-?\d{1,12}|\d{1,12}[A-Za-z]{1,3})(?:[A-Za-z]{1,3}|-?\d{1,12}){0,6}(?!\w|-\d)",
        lettered,
    ),
)
IDENTIFIERS = (
    rule(r"(?<![\w_])_{0,2}[A-Za-z0-9]{1,40}(?:_{1,2}[A-Za-z0-9]{1,40}){1,12}_{0,2}(?!\w)", snake),
    rule(r"(?<!\w)(?=[A-Z]{0,30}[a-z]{1,30}[A-Z]|[A-Z]{2,30}[a-z]{2})[A-Za-z]{3,60}(?!\w)", mixed),
)
CAPITALS = (rule(SHOUTED.pattern, shouting), rule(CAPS, capitals))
