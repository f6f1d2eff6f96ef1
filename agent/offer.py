"""Reads an SDP offer: refuses with a reason what cannot be served, drops what would only slow the answer down.

It does not know connections: text in, text out.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from aiortc.sdp import MediaDescription, SessionDescription

PORTS = range(1, 65536)
MAX_CANDIDATES = 20
"""Addresses that are tried of one offer: every one costs the server a series of UDP packets to it."""
LARGEST_EVENT_BYTES = 4096
"""What the client's data channel must take: no event is larger."""


class OfferError(ValueError):
    """An offer that cannot be answered; the text says what was expected and what came."""


def usable(sdp: str) -> str:
    """The offer as it is to be applied.

    Left out: candidates that are no IP address with a port (a browser without microphone sends `.local` names, which
    cost a second each to resolve), those beyond MAX_CANDIDATES, and the word that no more will come: without candidates
    the peer is found by its own packets (peer-reflexive, RFC 8445, section 7.3.1.3), for which there is then time.
    Raises OfferError.
    """
    _check(_parsed(sdp))
    return "\r\n".join(_kept(sdp.splitlines())) + "\r\n"


def _parsed(sdp: str) -> SessionDescription:
    try:
        return SessionDescription.parse(sdp)
    except Exception as error:  # the parser asserts, indexes and looks up: anything may come out of it
        raise OfferError(f"the offer is no SDP that can be read: {type(error).__name__} {error}".rstrip()) from error


def _check(session: SessionDescription) -> None:
    kinds = [media.kind for media in session.media]
    if "audio" not in kinds:
        raise OfferError(f"the offer needs an audio section that can receive; it has {kinds or 'no section'}")
    if kinds.count("audio") > 1 or kinds.count("application") > 1 or set(kinds) > {"audio", "application"}:
        raise OfferError(f"the offer may have one audio section and one data channel section; it has {kinds}")
    _check_audio(session.media[kinds.index("audio")])
    for media in session.media:
        _check_transport(media)
    _check_bundle(session)


def _check_audio(media: MediaDescription) -> None:
    codecs = [f"{codec.name}/{codec.clockRate}" for codec in media.rtp.codecs]
    if "opus/48000" not in (codec.lower() for codec in codecs):
        raise OfferError(f"the audio section must offer opus/48000; it offers {codecs}")
    if media.direction not in ("recvonly", "sendrecv"):
        direction = media.direction or "not said"
        raise OfferError(f"the audio section must be recvonly or sendrecv, to hear anything; it is {direction}")
    if not media.rtcp_mux:
        raise OfferError("the audio section must have rtcp-mux")


def _check_transport(media: MediaDescription) -> None:
    if media.ice is None or not media.ice.usernameFragment or not media.ice.password:
        raise OfferError(f"the {media.kind} section lacks ice-ufrag or ice-pwd")
    if media.dtls is None or not media.dtls.fingerprints:
        raise OfferError(f"the {media.kind} section lacks a fingerprint or setup")
    if not media.rtp.muxId:
        raise OfferError(f"the {media.kind} section lacks a mid")
    port = _sctp_port(media)
    if media.kind == "application" and port not in PORTS:
        raise OfferError(f"sctp-port must be from 1 to 65535; it is {'not said' if port is None else port}")
    largest = media.sctpCapabilities.maxMessageSize if media.sctpCapabilities else 0  # 0 is any size
    if 0 < largest < LARGEST_EVENT_BYTES:
        raise OfferError(f"max-message-size must be at least {LARGEST_EVENT_BYTES}; it is {largest}")


def _sctp_port(media: MediaDescription) -> int | None:
    """Drafts of RFC 8841 had it in the m= line; aiortc still takes it from there."""
    if media.profile != "DTLS/SCTP":
        return media.sctp_port
    named = str(media.fmt[0])
    return int(named) if re.fullmatch("[0-9]{1,5}", named) else None


def _check_bundle(session: SessionDescription) -> None:
    mids = [media.rtp.muxId for media in session.media]
    bundled = [mid for group in session.group if group.semantic == "BUNDLE" for mid in group.items]
    if len(set(mids)) < len(mids) or not set(bundled) <= set(mids):
        raise OfferError(f"each section needs a mid of its own, and BUNDLE may name no other: {mids}, {bundled}")


def _kept(lines: list[str]) -> Iterator[str]:
    candidates = 0
    for line in lines:
        if line.startswith("a=candidate:"):
            candidates += _can_be_tried(line)
            if not _can_be_tried(line) or candidates > MAX_CANDIDATES:
                continue
        if line and line != "a=end-of-candidates":
            yield line


def _can_be_tried(candidate: str) -> bool:
    address, port = candidate.split()[4:6]
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return int(port) in PORTS
