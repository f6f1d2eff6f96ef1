"""agent/offer.py: what stays of an offer, and what is refused without a connection being made."""

from __future__ import annotations

import pytest

from agent.offer import MAX_CANDIDATES, OfferError, usable

TRANSPORT = """c=IN IP4 0.0.0.0
a=ice-ufrag:abcd
a=ice-pwd:abcdefghijklmnopqrstuvwx
a=fingerprint:sha-256 AA:BB
a=setup:actpass
"""
AUDIO = f"""m=audio 9 UDP/TLS/RTP/SAVPF 111 0
{TRANSPORT}a=mid:0
a=recvonly
a=rtcp-mux
a=rtpmap:111 opus/48000/2
a=rtpmap:0 PCMU/8000
"""
DATA = f"""m=application 9 UDP/DTLS/SCTP webrtc-datachannel
{TRANSPORT}a=mid:1
a=sctp-port:5000
"""
SESSION = "v=0\no=- 1 1 IN IP4 0.0.0.0\ns=-\nt=0 0\na=group:BUNDLE 0 1\n"
OFFER = SESSION + AUDIO + DATA


def candidate(address: str, number: int = 1) -> str:
    return f"a=candidate:{number} 1 udp 2113937151 {address} 5{number:04} typ host\n"


def drafted(port: int) -> str:
    """The offer as drafts of RFC 8841 had it: the SCTP port stands where the protocol stands now."""
    data = DATA.replace("UDP/DTLS/SCTP webrtc-datachannel", f"DTLS/SCTP {port}")
    return SESSION + AUDIO + data.replace("a=sctp-port:5000", f"a=sctpmap:{port} webrtc-datachannel 65535")


def candidates(sdp: str) -> list[str]:
    return [line.split()[4] for line in sdp.splitlines() if line.startswith("a=candidate:")]


def test_an_offer_stays_as_it_is() -> None:
    assert usable(OFFER).splitlines() == OFFER.splitlines()


def test_an_audio_only_offer_is_served() -> None:
    usable(SESSION.replace(" 1\n", "\n") + AUDIO)
    usable(SESSION.replace("a=group:BUNDLE 0 1\n", "") + AUDIO)


def test_lines_end_as_the_standard_has_it_whatever_they_ended_with() -> None:
    assert usable(OFFER) == usable(OFFER.replace("\n", "\r\n"))
    assert usable(OFFER).count("\r\n") == usable(OFFER).count("\n")


def test_names_are_dropped_and_addresses_stay() -> None:
    offer = (
        OFFER + candidate("0b1c-11.local") + candidate("10.0.0.1") + candidate("host.example.org") + candidate("::1")
    )
    assert candidates(usable(offer)) == ["10.0.0.1", "::1"]


@pytest.mark.parametrize(("port", "kept"), [(0, 0), (1, 1), (65_535, 1), (65_536, 0), (-1, 0), (10**12, 0)])
def test_a_candidate_whose_port_is_none_is_dropped(port: int, kept: int) -> None:
    offer = OFFER + candidate("10.0.0.1").replace(" 50001 ", f" {port} ")
    assert len(candidates(usable(offer))) == kept


@pytest.mark.parametrize("port", [1, 65_535])
def test_every_sctp_port_there_is_may_be_named(port: int) -> None:
    usable(OFFER.replace("a=sctp-port:5000", f"a=sctp-port:{port}"))
    usable(drafted(port))


def test_no_more_candidates_are_tried_than_a_client_has_addresses() -> None:
    offer = OFFER + "".join(candidate("10.0.0.1", n) for n in range(100))
    assert len(candidates(usable(offer))) == MAX_CANDIDATES


def test_the_word_that_no_candidate_will_come_is_dropped_or_ice_would_give_up_at_once() -> None:
    assert "end-of-candidates" not in usable(OFFER + "a=end-of-candidates\n")


@pytest.mark.parametrize(
    ("sdp", "reason"),
    [
        (SESSION + DATA, r"audio section.*\['application'\]"),
        (SESSION, "it has no section"),
        (SESSION + AUDIO + AUDIO, "one audio section"),
        (SESSION + AUDIO + DATA + DATA, "one audio section and one data channel section"),
        (
            OFFER.replace("opus/48000/2", "opus/16000/2"),
            r"must offer opus/48000; it offers \['opus/16000', 'PCMU/8000'\]",
        ),
        (OFFER.replace("a=recvonly\n", ""), "it is not said"),
        (OFFER.replace("a=mid:1\n", ""), "mid"),
        (OFFER.replace("a=ice-pwd:abcdefghijklmnopqrstuvwx\n", ""), "ice-pwd"),
        (OFFER.replace("a=setup:actpass\n", ""), "setup"),
        (OFFER.replace("m=audio 9", "m=audio nine"), "no SDP"),
        (OFFER.replace("a=sctp-port:5000", "a=sctp-port:many"), "no SDP"),
        (OFFER + "a=candidate:1 1 udp\n", "no SDP"),
        (OFFER + "a=max-message-size:100\n", "at least 4096; it is 100"),
        (
            OFFER.replace("a=sctp-port:5000", "a=sctp-port:99999999"),
            "sctp-port must be from 1 to 65535; it is 99999999",
        ),
        (OFFER.replace("a=sctp-port:5000", "a=sctp-port:65536"), "sctp-port must be"),
        (OFFER.replace("a=sctp-port:5000", "a=sctp-port:0"), "sctp-port must be from 1 to 65535; it is 0"),
        (OFFER.replace("a=sctp-port:5000", "a=sctp-port:-1"), "sctp-port must be"),
        (OFFER.replace("a=sctp-port:5000\n", ""), "sctp-port must be from 1 to 65535; it is not said"),
        (drafted(65536), "sctp-port must be"),
        (drafted(5000).replace("DTLS/SCTP 5000", "DTLS/SCTP many"), "sctp-port must be"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_reason(sdp: str, reason: str) -> None:
    with pytest.raises(OfferError, match=reason):
        usable(sdp)
