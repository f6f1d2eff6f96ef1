"""Encodes mono PCM into Opus packets of 20 ms, and decodes packets of any length.

It knows neither RTP nor when a packet is due.
"""

from __future__ import annotations

import ctypes
import weakref

import numpy as np
from numpy.typing import NDArray

from agent.libopus import APPLICATION_VOIP, RESET_STATE, SET_BITRATE, SET_COMPLEXITY, libopus

RATES = (8000, 12000, 16000, 24000, 48000)
"""What Opus takes as it is (RFC 6716, section 2); on the wire its clock is always 48 kHz (RFC 7587, section 4.1)."""
BIT_RATE = 32_000
HEARING_RATE = 16_000
"""What speech detectors and recognisers take."""
COMPLEXITY = 5
"""Of 10. Measured on 2 cores: 0.19 ms a packet against 0.22 ms at 10."""


MOST_BYTES = 1275
"""Of a packet with one frame (RFC 6716, section 3.4)."""


class OpusEncoder:
    """One stream's encoder; its state goes from packet to packet. One call at a time, from any thread.

    Raises ValueError for a sample rate that Opus does not take, LibraryMissing where there is no libopus.
    """

    def __init__(self, sample_rate: int, bit_rate: int = BIT_RATE) -> None:
        check_rate(sample_rate)
        self.packet_samples = sample_rate // 50
        self._library = libopus()
        size = self._library.opus_encoder_get_size(1)
        # Flat memory: "only a shallow copy is sufficient to copy it (e.g. memcpy())" (opus.h).
        self._state, self._before = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
        self._out = ctypes.create_string_buffer(MOST_BYTES)
        self._check(self._library.opus_encoder_init(self._state, sample_rate, 1, APPLICATION_VOIP))
        for option, value in ((SET_BITRATE, bit_rate), (SET_COMPLEXITY, COMPLEXITY)):
            self._check(self._library.opus_encoder_ctl(self._state, option, ctypes.c_int32(value)))

    def encode(self, samples: NDArray[np.int16]) -> bytes:
        """The packet for exactly `packet_samples` samples, int16 [packet_samples]."""
        assert samples.shape == (self.packet_samples,), f"a packet has {self.packet_samples} samples: {samples.shape}"
        ctypes.memmove(self._before, self._state, len(self._state))
        samples = np.ascontiguousarray(samples)
        size = self._library.opus_encode(self._state, samples.ctypes.data, samples.size, self._out, MOST_BYTES)
        self._check(size)
        return self._out.raw[:size]

    def replace(self, samples: NDArray[np.int16]) -> bytes:
        """The packet in place of the last one, which was not sent and never will be: built upon one that no decoder
        knows, it would click."""
        ctypes.memmove(self._state, self._before, len(self._state))
        return self.encode(samples)

    @staticmethod
    def _check(code: int) -> None:
        assert code >= 0, f"libopus answered {code} (opus_defines.h)"


class OpusDecoder:
    """One stream's decoder: mono at `sample_rate`, whatever the packets hold. One call at a time, from any thread.

    Decodes straight to 16 kHz: a low rate costs less, and nothing is left to resample (RFC 6716, section 4.2.9).
    Raises ValueError for a sample rate that Opus does not take, LibraryMissing where there is no libopus.
    """

    def __init__(self, sample_rate: int = HEARING_RATE) -> None:
        check_rate(sample_rate)
        self.sample_rate = sample_rate
        self._library = libopus()
        self._decoder = self._library.opus_decoder_create(sample_rate, 1, None)
        if not self._decoder:
            raise MemoryError("libopus has no memory for a decoder")
        weakref.finalize(self, self._library.opus_decoder_destroy, self._decoder)
        self._out = np.zeros(sample_rate * 120 // 1000, np.int16)  # the longest packet

    def decode(self, payload: bytes) -> NDArray[np.int16] | None:
        """What the packet holds, int16 [samples]; None where it is no Opus packet."""
        return self._call(payload, self._out.size, fec=False) if payload else None

    def conceal(self, num_samples: int, following: bytes | None = None) -> NDArray[np.int16]:
        """A guess at what is missing before the packet `following`, int16 [num_samples], a multiple of 2.5 ms.

        A copy of the end of it that `following` carries is used (in-band FEC), and that packet is still to be decoded.
        """
        grain = self.sample_rate // 400
        assert num_samples > 0 and num_samples % grain == 0, f"not a multiple of {grain} samples: {num_samples}"
        *before, last = _stretches(num_samples, self._out.size)
        parts = [self._guess(count) for count in before]
        end = self._call(following, last, fec=True) if following else None
        return np.concatenate([*parts, self._guess(last) if end is None else end])

    def reset(self) -> None:
        """Forgets what was decoded: the next packet is the first of another stream."""
        self._library.opus_decoder_ctl(ctypes.c_void_p(self._decoder), RESET_STATE)

    def _guess(self, num_samples: int) -> NDArray[np.int16]:
        samples = self._call(None, num_samples, fec=False)
        return np.zeros(num_samples, np.int16) if samples is None else samples

    def _call(self, payload: bytes | None, num_samples: int, fec: bool) -> NDArray[np.int16] | None:
        length = len(payload) if payload else 0
        count = self._library.opus_decode(self._decoder, payload, length, self._out.ctypes.data, num_samples, fec)
        return self._out[:count].copy() if count >= 0 else None


def _stretches(num_samples: int, most: int) -> list[int]:
    """Cuts so that only the first one may be shorter: the last one is to hold a whole frame, for in-band FEC."""
    return [min(most, num_samples - start) for start in range(0, num_samples, most)][::-1]


def check_rate(sample_rate: int) -> None:
    """Raises ValueError for a sample rate that Opus does not take."""
    if sample_rate not in RATES:
        raise ValueError(f"Opus takes {RATES} samples a second, this voice has {sample_rate}: choose another voice")
