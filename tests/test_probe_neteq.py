"""agent/probe/neteq.py and stretch.py by literal traces, and against a real libwebrtc by agent/probe/self_check.py."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sounds
from npm import unavailable
from numpy.typing import NDArray

from agent.opus import OpusEncoder
from agent.probe import self_check
from agent.probe.neteq import BLOCK, BLOCK_SECONDS, START_MS, JitterBuffer, Target, Totals, has_copy, hear, listen
from agent.probe.recording import RATE, Heard, Packet
from agent.probe.self_check import (
    LOUD,
    PACKET_SECONDS,
    PATTERNS,
    TICKS,
    TOLERANCE_MS,
    Compared,
    Stop,
    fault,
    figures,
    joined,
    main,
    planned,
    together,
    voice,
)
from agent.probe.stretch import Noise, lengthened, shortened
from agent.wrtc import VERSION, WrtcError, installed

SOURCE = 7
AT = 100.0
"""When the first packet of a literal trace comes."""

# ---- literal traces -----------------------------------------------------------------------------------------------


@cache
def encoded(seconds: float, silence: float = 0.0) -> tuple[bytes, ...]:
    """The voice, and silence behind it, in packets of 20 ms."""
    encoder = OpusEncoder(RATE)
    pcm = np.concatenate([voice(seconds), np.zeros(round(silence * RATE), np.int16)])
    return tuple(encoder.encode(pcm[start : start + TICKS]) for start in range(0, pcm.size - TICKS + 1, TICKS))


def stream(payloads: tuple[bytes, ...], sequence: int = 0, timestamp: int = 0, source: int = SOURCE) -> list[Packet]:
    """Packets that come every 20 ms from AT on, 4 ms after a block."""
    return [
        Packet((sequence + n) % 2**16, (timestamp + n * TICKS) % 2**32, source, payload, AT + n * PACKET_SECONDS)
        for n, payload in enumerate(payloads)
    ]


def heard(packets: list[Packet], seconds: float = 4.0) -> tuple[Heard, Totals]:
    return hear(sorted(packets, key=lambda packet: packet.at), AT - 0.104, AT + seconds)


def later(packet: Packet, by: float) -> Packet:
    return Packet(packet.sequence, packet.timestamp, packet.source, packet.payload, packet.at + by)


def loud(found: Heard) -> NDArray[np.bool_]:
    """Of each block whether it is audible."""
    return np.asarray(np.abs(found.samples.astype(np.int32)).reshape(-1, BLOCK).max(axis=1) > LOUD)


def concealed_ms(found: Heard, start: float, end: float) -> int:
    """Of the blocks between two instants, given from AT on."""
    first, last = (round((AT + at - found.begins_at) / BLOCK_SECONDS) for at in (start, end))
    return 10 * int(found.concealed[first:last].sum())


def test_nothing_came() -> None:
    found = listen([], AT, AT + 0.1)
    assert found.samples.dtype == np.int16 and found.samples.size == 10 * BLOCK and not found.samples.any()
    assert not found.concealed.any() and not found.stretched.any() and np.isnan(found.delay).all()


def test_no_time_passes() -> None:
    assert listen([], AT, AT).samples.size == 0


def test_before_the_first_packet_there_is_silence_that_is_no_guess() -> None:
    found, _ = heard(stream(encoded(1.0)))
    assert not loud(found)[:11].any() and not found.concealed[:10].any() and np.isnan(found.delay[:10]).all()
    assert found.delay[12] == pytest.approx(0.016, abs=0.011)


def test_a_steady_stream_comes_to_rest() -> None:
    """It begins with a target of 80 ms, which is 20 ms once half a second was seen; then nothing is changed."""
    found, totals = heard(stream(encoded(6.0)), 6.0)
    assert concealed_ms(found, 1.0, 5.9) == 0
    assert not found.stretched[350:].any()
    assert 0.02 < np.nanmedian(found.delay[350:-10]) < 0.08
    assert totals.inserted > totals.removed > 0


def test_the_sound_is_the_decoders_own_where_nothing_is_changed() -> None:
    """A wave of 320 samples fits into every block three half times, so a change of length shows only where it is."""
    found, _ = heard(stream(encoded(4.0)), 4.0)
    tail = found.samples[-100 * BLOCK : -20 * BLOCK].astype(np.float64)
    spectrum = np.abs(np.fft.rfft(tail * np.hanning(tail.size)))
    assert np.argmax(spectrum) * RATE / tail.size == pytest.approx(150, abs=2)


def test_one_packet_is_followed_by_a_guess_that_fades() -> None:
    """It has a pitch, so it goes on at its level for some waves, and is silent within a second."""
    found, totals = heard(stream(encoded(0.02)), 1.5)
    audible = np.flatnonzero(loud(found))
    assert audible.size and audible[0] >= 11
    assert 0.03 < audible.size * BLOCK_SECONDS < 0.8
    assert found.concealed[14:].all() and totals.concealed > totals.silent_concealed > 0


def test_a_stop_without_packets_is_heard_until_the_guess_has_faded() -> None:
    """Against a stop whose silence is sent."""
    sent, _ = heard(stream(encoded(2.0, 1.0)), 3.5)
    unsent, _ = heard(stream(encoded(2.0)), 3.5)
    stops = [np.flatnonzero(loud(found))[-1] for found in (sent, unsent)]
    assert stops[0] < stops[1] < stops[0] + 60
    assert stops[0] == pytest.approx(10 + 200 + 1 + 100 * np.nanmedian(sent.delay[150:200]), abs=2)


def test_a_stall_is_concealed_for_as_long_as_the_buffer_does_not_reach() -> None:
    """200 ms without a packet, then all at once: what is concealed is the stall less what lay in the buffer."""
    packets = [later(p, max(0.0, AT + 2.2 - p.at)) if p.at > AT + 2.001 else p for p in stream(encoded(4.0))]
    found, _ = heard(packets)
    held_ms = 1000 * float(found.delay[round((2.0 + 0.104) / BLOCK_SECONDS)])
    assert concealed_ms(found, 1.9, 2.5) == pytest.approx(200 - held_ms, abs=30)
    after = found.delay[round(2.5 / BLOCK_SECONDS)]
    assert after > 0.15, "and from then on the buffer holds what the stall has taught it"


def test_a_lost_packet_is_concealed_and_nothing_more() -> None:
    packets = stream(encoded(4.0))
    whole, _ = heard(packets)
    found, _ = heard(packets[:120] + packets[121:])
    assert concealed_ms(whole, 1.5, 3.9) == 0
    assert 20 <= concealed_ms(found, 2.4, 2.7) <= 40
    assert concealed_ms(found, 2.8, 3.9) == 0
    assert loud(found)[30:-30].all(), "the guess is as loud as the voice"


def test_a_packet_that_comes_after_its_turn_is_left_out() -> None:
    packets = stream(encoded(4.0))
    lost, without = heard(packets[:120] + packets[121:])
    late, totals = heard([*packets[:120], later(packets[120], 0.5), *packets[121:]])
    until = round(2.9 / BLOCK_SECONDS) * BLOCK
    assert (late.samples[:until] == lost.samples[:until]).all()
    assert totals.emitted == without.emitted
    assert loud(late)[30:-30].all()


def test_packets_that_change_places_in_time_are_heard_whole() -> None:
    """The buffer holds more than 20 ms then."""
    packets = stream(encoded(4.0))
    swapped = [*packets[:30], later(packets[30], 0.021), *packets[31:]]
    found, _ = heard(swapped)
    whole, _ = heard(packets)
    assert concealed_ms(found, 0.7, 3.9) == concealed_ms(whole, 0.7, 3.9) == 0


def test_what_comes_twice_is_heard_once() -> None:
    packets = stream(encoded(3.0))
    doubled = [copy for packet in packets for copy in (packet, later(packet, 0.001))]
    once, twice = heard(packets), heard(doubled)
    assert once[1].emitted == twice[1].emitted == len(packets) * TICKS
    assert concealed_ms(twice[0], 1.0, 2.9) == 0 and loud(twice[0])[30:295].all()


def test_numbers_that_wrap_change_nothing() -> None:
    plain = heard(stream(encoded(3.0)), 3.0)[0]
    wrapped = heard(stream(encoded(3.0), 2**16 - 70, 2**32 - 70 * TICKS), 3.0)[0]
    assert (plain.samples == wrapped.samples).all()


def test_another_source_begins_anew() -> None:
    """With other numbers, and with a target of its own."""
    first = stream(encoded(1.0))
    second = [later(packet, 1.0) for packet in stream(encoded(2.0), 900, 12_345, SOURCE + 1)]
    found, totals = heard(first + second)
    alone, _ = hear(second, found.begins_at + 1.0, AT + 4.0)
    assert (found.samples[100 * BLOCK + 12 * BLOCK :] == alone.samples[12 * BLOCK :]).all()
    assert totals.emitted == len(second) * TICKS


@pytest.mark.parametrize(
    ("rubbish", "left_out"), [(b"\xff", 1), (b"\x03", 1), (b"\x0b\x3f" + bytes(9), 1), (bytes(range(200, 255)), 0)]
)
def test_rubbish_is_a_hole_and_no_failure(rubbish: bytes, left_out: int) -> None:
    """libwebrtc leaves out a block that it could not decode; the last one looks like Opus."""
    packets = stream(encoded(3.0))
    broken = Packet(packets[60].sequence, packets[60].timestamp, SOURCE, rubbish, packets[60].at)
    found, _ = heard([*packets[:60], broken, *packets[61:]], 3.0)
    assert concealed_ms(found, 1.2, 1.4) > 0
    assert np.count_nonzero(~loud(found)[120:290]) == left_out
    assert concealed_ms(found, 1.6, 2.9) == 0


def test_a_copy_in_the_next_packet_takes_the_place_of_a_lost_one() -> None:
    """In-band FEC. The same stream without the copies has a hole."""
    encoder = OpusEncoder(16_000, 24_000)
    for option, value in ((4012, 1), (4014, 30)):  # OPUS_SET_INBAND_FEC, OPUS_SET_PACKET_LOSS_PERC (opus_defines.h)
        encoder._library.opus_encoder_ctl(encoder._state, option, ctypes.c_int32(value))
    pcm = sounds.int16(sounds.clip("agent"))[: 4 * 16_000]
    payloads = tuple(encoder.encode(pcm[start : start + 320]) for start in range(0, pcm.size - 319, 320))
    lost = next(n for n in range(100, 160) if has_copy(payloads[n + 1]))
    packets = stream(payloads)
    packets[30] = later(packets[30], 0.03)  # so that the buffer holds more than one packet
    whole, _ = heard(packets)
    found, _ = heard(packets[:lost] + packets[lost + 1 :])
    assert np.array_equal(found.concealed, whole.concealed)
    without = [Packet(p.sequence, p.timestamp, p.source, encoded(4.0)[n], p.at) for n, p in enumerate(packets)]
    assert not any(has_copy(packet.payload) for packet in without)
    assert heard(without[:lost] + without[lost + 1 :])[0].concealed.sum() > heard(without)[0].concealed.sum()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_there_is_a_block_every_10_ms(seed: int) -> None:
    """Numbers that jump, rubbish, pauses, short and empty packets."""
    random = np.random.default_rng(seed)
    payloads, timestamp, sequence, at = encoded(2.0, 0.5), 0, 0, AT
    packets = list[Packet]()
    for n in range(120):
        at += float(random.choice([0, 0.02, 0.02, 0.02, 0.05, 0.3]))
        timestamp += TICKS if random.random() < 0.9 else int(random.integers(-(2**31), 2**31) >> random.integers(0, 24))
        sequence += 1 if random.random() < 0.9 else int(random.integers(-5, 2000))
        rubbish = bytes(random.integers(0, 256, int(random.integers(0, 60)), dtype=np.uint8))
        payload = (payloads[n], payloads[n], rubbish, payloads[-1][:1])[int(random.integers(0, 4))]
        packets.append(Packet(sequence % 2**16, timestamp % 2**32, SOURCE, payload, at))
    found, _ = heard(packets)
    assert found.samples.size == found.concealed.size * BLOCK == found.delay.size * BLOCK == 411 * BLOCK
    assert not np.nanmin(found.delay, initial=0.0) < 0


def test_an_empty_packet_is_none() -> None:
    packets = stream(encoded(2.0))
    empty = Packet(packets[9].sequence, packets[9].timestamp, SOURCE, b"", packets[9].at)
    with_it, without = heard([*packets[:9], empty, *packets[9:]], 2.0)[0], heard(packets, 2.0)[0]
    assert (with_it.samples == without.samples).all()


@pytest.mark.parametrize("frames", [2, 3])
def test_packets_may_be_longer(frames: int) -> None:
    payloads = encoded(4.0)
    packets = [
        Packet(n, n * frames * TICKS, SOURCE, joined(payloads[n * frames :][:frames]), AT + n * frames * PACKET_SECONDS)
        for n in range(len(payloads) // frames)
    ]
    found, _ = heard(packets)
    assert concealed_ms(found, 1.5, 3.8) == 0
    assert loud(found)[40:-20].all()


def test_a_pause_in_which_nothing_is_sent_is_silence() -> None:
    """A packet of one byte begins it (DTX); the next one with sound ends it."""
    speech = encoded(1.0, 0.2)
    pause = Packet(60, 60 * TICKS, SOURCE, speech[-1][:1], AT + 1.2)
    after = [
        Packet(61 + n, (110 + n) * TICKS, SOURCE, payload, AT + 2.2 + n * PACKET_SECONDS)
        for n, payload in enumerate(encoded(1.0))
    ]
    found, _ = heard([*stream(speech), pause, *after], 3.2)
    assert not loud(found)[125:228].any() and not found.concealed[125:228].any()
    assert loud(found)[245:320].all()


def test_a_buffer_that_is_full_begins_anew() -> None:
    packets = stream(encoded(5.0))
    burst = [Packet(p.sequence, p.timestamp, SOURCE, p.payload, AT + 0.001) for p in packets]
    found, totals = heard(burst, 5.0)
    assert totals.emitted == (len(burst) - 200) * TICKS
    assert loud(found)[15:90].all()


# ---- its parts ----------------------------------------------------------------------------------------------------


def test_the_target_follows_the_latest_of_each_half_second() -> None:
    target = Target()
    for n in range(300):
        target.observe(n * TICKS, 20 * n + (50 if n == 100 else 0), 20)
        if n < 25:
            assert target.ms == START_MS
        if n in (40, 99):
            assert target.ms == 20
    assert target.ms == 60, "50 ms lie in the third bucket of 20 ms"


def test_the_target_grows_with_packets_that_change_places() -> None:
    target = Target()
    for n in range(200):
        first, second = 2 * n + 1, 2 * n
        for number, at_ms in ((first, 40 * n), (second, 40 * n + 30)):
            target.observe(number * TICKS, at_ms, 20)
    assert target.ms == 60


@pytest.mark.parametrize(("seconds", "wave"), [(0.03, 320), (0.06, 320)])
def test_a_change_of_length_is_one_wave(seconds: float, wave: int) -> None:
    tape = np.stack([voice(seconds).astype(np.float64)] * 2)
    shorter, longer = shortened(tape, Noise()), lengthened(tape, 0, Noise())
    assert shorter is not None and longer is not None
    assert tape.shape[1] - shorter.shape[1] == longer.shape[1] - tape.shape[1] == pytest.approx(wave, abs=2)
    steps = [np.abs(np.diff(sound)).max() for sound in (tape[0], shorter[0], longer[0])]
    assert max(steps) < 1.1 * steps[0], "nothing clicks"


def test_noise_is_left_as_it_is() -> None:
    sound = 8000 * np.random.default_rng(1).standard_normal(1440)
    assert shortened(np.stack([sound, sound]), Noise()) is None
    assert lengthened(np.stack([sound, sound]), 0, Noise()) is None


def test_silence_may_be_changed_by_the_shortest_wave() -> None:
    tape = np.zeros((2, 1440))
    shorter, longer = shortened(tape, Noise()), lengthened(tape, 0, Noise())
    assert shorter is not None and shorter.shape[1] == 1440 - 120
    assert longer is not None and longer.shape[1] == 1440 + 120


@pytest.mark.parametrize(
    ("payload", "copied"),
    [
        (bytes([0x08, 0x40]), True),  # SILK, 20 ms: voice activity, then the flag
        (bytes([0x08, 0x80]), False),
        (bytes([0x0C, 0x10]), True),  # stereo: the second channel's
        (bytes([0x10, 0x20]), True),  # 40 ms: two flags of activity before
        (bytes([0x10, 0x40]), False),
        (bytes([0x0A, 1, 0x40, 0]), True),  # two frames of different lengths
        (bytes([0x0B, 0xC2, 2, 1, 0x40, 0, 0, 0]), True),  # padding and lengths before
        (bytes([0x0B, 0xC2]), False),
        (bytes([0xF8, 0xFF]), False),  # CELT
        (b"\x08", False),
    ],
)
def test_a_copy_of_the_packet_before_is_seen(payload: bytes, copied: bool) -> None:
    assert has_copy(payload) == copied


def test_one_block_is_given_out_at_a_time() -> None:
    buffer = JitterBuffer()
    for packet in stream(encoded(0.1)):
        buffer.push(packet)
    assert [buffer.pop().sound.size for _ in range(60)] == [BLOCK] * 60


# ---- against a real libwebrtc -------------------------------------------------------------------------------------

ROUNDS, WANTED = 2, 30
"""How often each pattern is heard at most, and stops that are enough."""


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            found = stack.enter_context(installed())
        except WrtcError as error:
            unavailable(str(error))
        yield found


async def all_compared(folder: Path) -> list[Compared]:
    """As many rounds as it takes to have heard enough stops undisturbed."""
    found: list[Compared] = []
    for seed in range(ROUNDS):
        found += await together(folder, seed)
        if sum(not stop.held_up for one in found for stop in one.stops) >= WANTED:
            break
    return found


async def test_stops_are_heard_when_libwebrtc_hears_them(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    """Where nothing was held up: what libwebrtc does then is no matter of packets. Where all was, the middle holds."""
    found = await all_compared(folder)
    shown = figures(found)
    record_property("neteq", json.dumps(shown))
    print(json.dumps(shown, indent=1))
    stops = [stop for one in found for stop in one.stops]
    sure = [abs(stop.stop_ms) for stop in stops if not stop.held_up]
    assert len(stops) >= 30
    assert np.median([abs(stop.stop_ms) for stop in stops]) <= TOLERANCE_MS
    if len(sure) >= 10:
        assert np.percentile(sure, 95) <= TOLERANCE_MS
        assert max(sure) <= 3 * TOLERANCE_MS


# ---- the command's self-check, without calls ----------------------------------------------------------------------


def call(pattern: str, *stops: tuple[float, bool]) -> Compared:
    """One whose stops are off by so many ms, and were held up or not."""
    stats = {
        "concealedSamples": 1700,
        "silentConcealedSamples": 1000,
        "insertedSamplesForDeceleration": 300,
        "removedSamplesForAcceleration": 200,
        "jitterBufferDelay": 2880.0,
        "jitterBufferEmittedCount": 48_000,
    }
    model = Totals(concealed=90, silent_concealed=40, inserted=310, removed=190, delay=2400.0, emitted=48_000)
    off = [Stop(pattern, 1.0, stop_ms, held_up) for stop_ms, held_up in stops]
    return Compared(pattern, off, model, stats, any(held_up for _, held_up in stops))


CALM = [(float(n), False) for n in range(-5, 6)]


def test_figures_are_of_what_nothing_disturbed() -> None:
    found = figures([call("dtx", *CALM), call("dtx", (50.0, True), (-4.0, False)), call("long", (80.0, True))])
    assert found["patterns"].keys() == {"dtx", "long"}
    dtx, long = found["patterns"]["dtx"], found["patterns"]["long"]
    assert (dtx["stops"], dtx["stops_held_up"], dtx["calls"], dtx["calls_held_up"]) == (13, 1, 2, 1)
    assert dtx["stop_error_ms"] == {"p50": 3.0, "p95": 5.0, "max": 5.0}
    assert dtx["stop_error_ms_with_held_up"]["max"] == 50.0
    assert dtx["model"] == {"audible_concealed": 50, "inserted": 310, "removed": 190, "delay_ms": 50.0}
    assert dtx["libwebrtc"] == {"audible_concealed": 700, "inserted": 300, "removed": 200, "delay_ms": 60.0}
    assert long["stop_error_ms"] is long["model"] is long["libwebrtc"] is None
    assert found["all"]["stops"] == 14


def test_totals_are_of_all_calls() -> None:
    found = figures([call("dtx", *CALM), call("dtx", *CALM)])["all"]
    assert found["model"]["inserted"] == 620 and found["libwebrtc"]["audible_concealed"] == 1400


@pytest.mark.parametrize(
    ("stops", "said"),
    [
        (CALM, ""),
        ([*CALM, (500.0, True)], ""),
        ([*CALM, *((-11.0, False),) * 3], "p95 11, max 11"),
        ([*CALM * 10, (31.0, False)], "max 31"),
        ([*CALM[:9], *((0.0, True),) * 9], "only 9 of 18 stops"),
    ],
)
def test_a_model_that_is_off_has_a_fault(stops: list[tuple[float, bool]], said: str) -> None:
    found = fault(figures([call("steady", *stops)]))
    assert said in found and bool(said) == bool(found)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_plan_is_sent_in_parts_whole_and_in_order(pattern: str) -> None:
    plan = planned(pattern, 1)
    parts = list(plan.parts)
    assert len(parts) == self_check.CYCLES
    assert [packet for part in parts for packet in part] == plan.due
    assert [packet.block for packet in plan.due] == sorted(packet.block for packet in plan.due)


@pytest.fixture
def without_calls(monkeypatch: pytest.MonkeyPatch) -> list[Compared]:
    """What the self-check finds is this list."""
    found: list[Compared] = []

    async def checked(folder: Path, advance: Callable[[], None]) -> dict[str, Any]:
        advance()
        return figures(found)

    monkeypatch.setattr(self_check, "installed", lambda: ExitStack())
    monkeypatch.setattr(self_check, "checked", checked)
    return found


def test_the_self_check_shows_and_writes_its_figures(
    without_calls: list[Compared], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without_calls += [call("dtx", *CALM), call("long", (80.0, True))]
    out = tmp_path / "probe-neteq.json"
    assert main(str(out), quiet=True) == 0
    data = json.loads(out.read_text())
    assert data["command"] == "breezert probe --self-check --json probe-neteq.json"
    assert data["wrtc"] == VERSION and data["cpu"] and data["date"]
    assert {name: data[name] for name in ("tolerance_ms", "all", "patterns")} == figures(without_calls)
    lines = [line for line in capsys.readouterr().err.splitlines() if "dtx" in line]
    assert len(lines) == 1 and "3.0 / 5.0 / 5.0" in lines[0]


def test_the_self_checks_status_is_1_where_the_model_is_off(
    without_calls: list[Compared], capsys: pytest.CaptureFixture[str]
) -> None:
    without_calls += [call("dtx", *CALM, (31.0, False))]
    assert main(None, quiet=True) == 1
    assert "max 31 ms" in capsys.readouterr().err.splitlines()[-1]


def test_without_node_the_self_check_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "figures.json"
    assert main(str(out)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("breezert probe --self-check: ") and "there is no node: install both" in line
    assert not out.exists()


async def test_a_call_that_cannot_be_made_ends_those_beside_it(tmp_path: Path) -> None:
    """In a folder without the package none can."""
    with pytest.raises(WrtcError, match="Cannot find module"):
        await together(tmp_path, 0)


def test_where_nothing_can_be_written_nothing_is_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(str(tmp_path / "no" / "figures.json")) == 2
    assert "No such file or directory" in capsys.readouterr().err
