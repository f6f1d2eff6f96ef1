"""WHEP, for whoever only listens: one POST begins a call, one DELETE ends it. It does not know what is said in it.

    POST    /whep       an offer (application/sdp) -> 201: the answer, Location, ETag,      token
                        or 503 and Retry-After while busy
    PATCH   /whep/{id}  candidates (application/trickle-ice-sdpfrag) -> 204                 token
    DELETE  /whep/{id}  -> 200                                                              token
    GET     either      204: there is nothing to be read                                    token
    OPTIONS either      200, for pages of other origins                                     open

After draft-ietf-wish-whep-03 (work in progress); sections named below are its own. The listener hears what the
application says in the session that it is told of, and what the agent says first; without a data channel nobody could
ask for more. No microphone is taken: an offer that would send one is answered as one that only listens. A 406 is that
of RFC 9110 (see `accepts`), with a JSON body; counter-offers, for which the draft has the same status, are never made.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from aiohttp import web

from agent.calls import Calls
from agent.guard import AddRoute, Guard, Refusal, read_body
from agent.offer import OfferError
from agent.opening import refusals

SDP, FRAGMENT = "application/sdp", "application/trickle-ice-sdpfrag"
SERVED = ("audio", "application")
"""Kinds of sections that are answered; in others, like the video of a player for everything, nothing is sent."""
MEDIA_LINE = re.compile(r"m=(\S+) (\d{1,5}(?:/\d+)?) (\S+ \S.*)")
CANDIDATE = re.compile(r"a=candidate:\S+ \d+ \S+ \d+ \S+ \d+ typ \S+( .*)?")
CREDENTIALS = ("a=ice-ufrag:", "a=ice-pwd:")
TRANSPORT = ("c=", "a=rtcp", "a=ice-", "a=candidate:", "a=end-of-candidates", "a=fingerprint:", "a=setup:")
"""Lines that say how a section's packets travel."""


@dataclass(frozen=True, slots=True)
class IceServer:
    """A STUN or TURN server that listeners are told of. The server itself uses none.

    Raises ValueError for what is no such URL, or only half of a user's credentials.
    """

    url: str
    """stun:, stuns:, turn: or turns: and a host (RFC 7064, RFC 7065)."""
    username: str = ""
    credential: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"(stun|turn)s?:[\x21\x23-\x3b\x3d\x3f-\x7e]+", self.url):
            raise ValueError(f"an ICE server reads like stun:host[:port] or turn:host[:port], got {self.url!r}")
        if bool(self.username) != bool(self.credential):
            raise ValueError(f"username and credential of {self.url} belong together: give both or none")
        if not re.fullmatch(r"[\x20-\x7e]*", self.username + self.credential):
            raise ValueError(f"username and credential of {self.url} must be printable ASCII: they go into a header")

    @property
    def link(self) -> str:
        """The Link header's value (RFC 9725, section 4.6)."""
        link = f'<{self.url}>; rel="ice-server"'
        if self.username:
            names = f"username={_quoted(self.username)}; credential={_quoted(self.credential)}"
            link += f'; {names}; credential-type="password"'
        return link


@dataclass(frozen=True, slots=True)
class IceSession:
    """What a listener's PATCH has to fit to."""

    tag: str
    """The entity tag, with its quotes."""
    credentials: frozenset[str]
    """The offer's lines with them."""


def add_routes(add: AddRoute, guard: Guard, calls: Calls, ice_servers: Iterable[IceServer] = ()) -> None:
    """Enters the routes of `whep`, for calls among `calls`."""
    routes = WhepRoutes(guard, calls, ice_servers)
    add("POST", "whep", routes.call, needs_token=True)
    add("PATCH", "whep/{id}", routes.patch, needs_token=True)
    add("DELETE", "whep/{id}", routes.hang_up, needs_token=True)
    for path, look in (("whep", routes.nothing), ("whep/{id}", routes.look)):
        add("GET", path, look, needs_token=True)
        add("HEAD", path, look, needs_token=True)
        add("OPTIONS", path, routes.preflight)


class WhepRoutes:
    """What each route answers."""

    def __init__(self, guard: Guard, calls: Calls, ice_servers: Iterable[IceServer] = ()) -> None:
        self._calls, self._guard = calls, guard
        self._links = [server.link for server in ice_servers]
        self._listening: dict[str, IceSession] = {}
        """By the call's id; those whose call is over go with the next POST."""

    async def call(self, request: web.Request) -> web.StreamResponse:
        """Section 4.2. What is to be heard may be made before the connection is up: it waits for the first packet."""
        check_type(request, SDP, "Accept-Post")
        if not accepts(", ".join(request.headers.getall("Accept", ())), SDP):
            raise Refusal(406, "not_acceptable", f"an answer is {SDP}: accept that")
        offer = text(await read_body(request))
        call_id, answer = await self._open(offer)
        session = self._remember(call_id, offer)
        if not has_channel(offer):
            self._begin(call_id)
        response = web.Response(status=201, body=answer.encode(), content_type=SDP)
        response.headers["Location"] = f"{request.path}/{call_id}"
        response.headers["ETag"] = session.tag
        response.headers["Accept-Patch"] = FRAGMENT
        for link in self._links:
            response.headers.add("Link", link)
        return response

    async def patch(self, request: web.Request) -> web.StreamResponse:
        """Section 4.4.2. A listener is found by its own packets (peer-reflexive, RFC 8445, section 7.3.1.3), so what
        its candidates say is already known, or of no use. A new ICE session is refused; the old one goes on."""
        session = self._found(request)
        check_type(request, FRAGMENT, "Accept-Patch")
        check_tag(request, session.tag)  # before the body: RFC 9110, section 13.2.1
        if not fragment_credentials(text(await read_body(request))) <= session.credentials:
            message = "an ICE restart is not supported: the call goes on as it was; hang up and call again"
            raise Refusal(422, "no_restart", message)
        return web.Response(status=204)

    async def hang_up(self, request: web.Request) -> web.StreamResponse:
        """Section 4.3; an entity tag is of no interest here."""
        self._found(request)
        call_id = request.match_info["id"]
        del self._listening[call_id]
        await self._calls.hang_up(call_id)
        return web.Response(status=200)

    async def nothing(self, request: web.Request) -> web.StreamResponse:
        """Section 4.1: neither endpoint nor call has anything to show."""
        return web.Response(status=204)

    async def look(self, request: web.Request) -> web.StreamResponse:
        """The same for a call, while there is one."""
        self._found(request)
        return web.Response(status=204)

    async def preflight(self, request: web.Request) -> web.StreamResponse:
        """Section 4.3, at its end."""
        response = await self._guard.preflight(request)
        response.set_status(200)
        response.headers["Accept-Post"] = SDP
        return response

    async def _open(self, offer: str) -> tuple[str, str]:
        """The call's id and the whole answer. Raises Refusal."""
        with refusals():
            call_id, answer = await self._calls.open(listening(offer))
        return call_id, completed(answer, offer)

    def _remember(self, call_id: str, offer: str) -> IceSession:
        session = IceSession(f'"{secrets.token_urlsafe(8)}"', credentials(offer))
        open_ids = {session.id for session in self._calls.sessions}
        self._listening = {key: kept for key, kept in self._listening.items() if key in open_ids}
        self._listening[call_id] = session
        return session

    def _begin(self, call_id: str) -> None:
        """There is no channel whose opening would say that the client is there: the agent may say its first words."""
        for session in self._calls.sessions:
            if session.id == call_id and session.partner:
                session.partner.begin()

    def _found(self, request: web.Request) -> IceSession:
        call_id = request.match_info["id"]
        session = self._listening.get(call_id)
        if session is None or all(open_one.id != call_id for open_one in self._calls.sessions):
            raise Refusal(404, "not_found", "there is no call of that id: it may be over already")
        return session


# ---- headers --------------------------------------------------------------------------------------------------


def check_type(request: web.Request, wanted: str, header: str) -> None:
    """Raises Refusal unless the body is of that type; its `header` says which one is (RFC 5789, section 2.2)."""
    if request.content_type.lower() != wanted:
        refusal = Refusal(415, "wrong_type", f"the body must be {wanted}, got {request.content_type}")
        refusal.headers[header] = wanted
        raise refusal


def check_tag(request: web.Request, tag: str) -> None:
    """Raises Refusal unless If-Match names the call's ICE session, or any (section 4.4.1)."""
    given = [field.strip() for line in request.headers.getall("If-Match", ()) for field in line.split(",")]
    if not any(given):
        raise Refusal(428, "needs_tag", "If-Match must name the ETag of the answer")  # RFC 6585, section 3
    if tag not in given and not {"*", '"*"'} & set(given):  # the draft's own examples have quotes around it
        raise Refusal(412, "wrong_tag", "If-Match must name the ETag of the answer, got another one")


def accepts(header: str, wanted: str) -> bool:
    """Whether an Accept header takes that type: its most specific range says so (RFC 9110, section 12.5.1)."""
    ranks = {"*/*": 1, f"{wanted.partition('/')[0]}/*": 2, wanted: 3}
    best, fits = 0, not header.strip()
    for entry in header.lower().split(","):
        name, *parameters = (field.strip() for field in entry.split(";"))
        if (rank := ranks.get(name, 0)) > best:
            best = rank
            fits = not any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
    return fits


def text(body: bytes) -> str:
    """Raises Refusal for what is not UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Refusal(400, "bad_request", f"the body must be text in UTF-8: {error.reason}") from error


def _quoted(value: str) -> str:
    """A quoted-string (RFC 9110, section 5.6.4)."""
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


# ---- SDP ------------------------------------------------------------------------------------------------------


def sections(sdp: str) -> list[list[str]]:
    """The lines of the session, then those of each media section. Raises OfferError."""
    parts: list[list[str]] = [[]]
    for line in sdp.splitlines():
        if line.startswith("m="):
            if not MEDIA_LINE.fullmatch(line):
                raise OfferError(f"a section begins like m=audio 9 UDP/TLS/RTP/SAVPF 111, got {line[:80]!r}")
            parts.append([])
        parts[-1].append(line)
    return parts


def listening(offer: str) -> str:
    """The offer as of one who only wants to hear speech (section 4.2 allows him to say sendrecv). Raises OfferError."""
    head, *media = sections(offer)
    gone = {mid(section) for section in media if kind(section) not in SERVED}
    kept = [[_receiving(line) for line in section] for section in media if kind(section) in SERVED]
    return _joined([[_without(line, gone) for line in head], *kept])


def completed(answer: str, offer: str) -> str:
    """The answer to `listening(offer)` as one to `offer`: a section for each of the offer's (RFC 3264, section 6)."""
    head, *media = sections(answer)
    offered_head, *offered = sections(offer)
    answered, tag = iter(media), tagged(offered_head, {mid(section) for section in media})
    parts = list[list[str]]()
    for section in offered:
        if kind(section) in SERVED:
            parts.append(next(answered))
        elif mid(section) == tag:
            parts.append(carried(section, media[0]))
            head = [line.replace("a=group:BUNDLE", f"a=group:BUNDLE {tag}") for line in head]
        else:
            parts.append(refused(section))
    return _joined([head, *parts])


def tagged(head: list[str], served: set[str]) -> str | None:
    """The section whose transport its whole bundle uses: the first one named (RFC 9143, section 7.2.1); None where none
    of the bundle is served."""
    for line in head:
        names = line.split()[1:] if line.startswith("a=group:BUNDLE") else []
        if served & set(names):
            return names[0]
    return None


def refused(section: list[str]) -> list[str]:
    """The answer to a section that is not served: port 0, and in no bundle (RFC 9143, section 7.3.3)."""
    media, _, formats = _media_line(section)
    name = [f"a=mid:{mid(section)}"] if mid(section) else []
    return [f"m={media} 0 {formats}", "c=IN IP4 0.0.0.0", *name, "a=inactive"]


def carried(section: list[str], served: list[str]) -> list[str]:
    """The answer to one that is not served and carries the bundle: nothing is sent in it, but its transport is that of
    the `served` one. Chromium with max-bundle, which WHEP asks for, lets such a one not be refused (156, measured)."""
    media, _, formats = _media_line(section)
    _, port, _ = _media_line(served)
    profile, number = formats.split()[:2]
    codec = [line for line in section if re.match(rf"a=(rtpmap|fmtp|rtcp-fb):{re.escape(number)} ", line)]
    transport = [line for line in served if line.startswith(TRANSPORT)]
    return [f"m={media} {port} {profile} {number}", f"a=mid:{mid(section)}", "a=inactive", *codec, *transport]


def kind(section: list[str]) -> str:
    return section[0][2:].partition(" ")[0]


def mid(section: list[str]) -> str:
    """What bundles call the section; empty where it has no name."""
    return next((line[6:].strip() for line in section if line.startswith("a=mid:")), "")


def has_channel(offer: str) -> bool:
    """Whether the client opens a data channel: a stranger to WHEP, and served as in any other call."""
    return any(line.startswith("m=application ") for line in offer.splitlines())


def credentials(sdp: str) -> frozenset[str]:
    """The lines with ICE user fragments and passwords."""
    return frozenset(line.strip() for line in sdp.splitlines() if line.startswith(CREDENTIALS))


def fragment_credentials(fragment: str) -> frozenset[str]:
    """Those of an SDP fragment, which has to have both (RFC 8840, section 4.4). Raises Refusal for what is none."""
    lines = [line for line in fragment.splitlines() if line]
    for line in lines:
        if not re.match("[a-z]=", line) or (line.startswith("a=candidate:") and not CANDIDATE.fullmatch(line)):
            raise Refusal(400, "bad_request", f"the fragment has a line that is no SDP: {line[:80]!r}")
    found = credentials(fragment)
    if not all(any(line.startswith(name) for line in found) for name in CREDENTIALS):
        raise Refusal(400, "bad_request", "the fragment must have a=ice-ufrag and a=ice-pwd of the call")
    return found


def _media_line(section: list[str]) -> tuple[str, str, str]:
    """Kind, port, and profile with formats."""
    match = MEDIA_LINE.fullmatch(section[0])
    assert match is not None, "sections are checked when they are cut"
    return match[1], match[2], match[3]


def _receiving(line: str) -> str:
    return "a=recvonly" if line.strip() == "a=sendrecv" else line


def _without(line: str, gone: set[str]) -> str:
    """A group's line without the sections that are left out."""
    if not line.startswith("a=group:"):
        return line
    return " ".join(name for name in line.split() if name not in gone)


def _joined(parts: Iterable[list[str]]) -> str:
    return "".join(f"{line}\r\n" for part in parts for line in part)
