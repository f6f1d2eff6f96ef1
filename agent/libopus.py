"""Reaches the libopus that PyAV brings along, for what PyAV itself does not offer. It does not know what is decoded.

PyAV's decoder always gives 48 kHz, takes an empty packet for the end of the stream instead of a lost one, and has no
way to ask for in-band FEC (FFmpeg calls opus_multistream_decode with decode_fec=0). The library behind it can do all of
this and is there in every wheel of PyAV, so no package has to be added. (opuslib and opuslib-next are bindings only,
for a libopus of the system's; PyOgg's last release is of 2020 and brings none for Linux.)
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import av

RESET_STATE = 4028
"""OPUS_RESET_STATE (opus_defines.h), as the others."""
SET_BITRATE, SET_COMPLEXITY = 4002, 4010
APPLICATION_VOIP = 2048


class LibraryMissing(RuntimeError):
    """There is no libopus; the text says what was looked for and what to do."""


@cache
def libopus() -> ctypes.CDLL:
    """The library, its functions typed (opus.h). Calls release the interpreter. Raises LibraryMissing."""
    library = ctypes.CDLL(_path())
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.opus_decoder_create.restype = pointer
    library.opus_decoder_create.argtypes = [ctypes.c_int32, number, ctypes.POINTER(number)]
    library.opus_decoder_destroy.restype = None
    library.opus_decoder_destroy.argtypes = [pointer]
    library.opus_decode.argtypes = [pointer, ctypes.c_char_p, ctypes.c_int32, pointer, number, number]
    library.opus_encoder_get_size.argtypes = [number]
    library.opus_encoder_init.argtypes = [pointer, ctypes.c_int32, number, number]
    for control in (library.opus_encoder_ctl, library.opus_decoder_ctl):  # variadic: what is fixed has to be said
        control.argtypes = [pointer, number]
    library.opus_encode.argtypes = [pointer, pointer, number, pointer, ctypes.c_int32]
    return library


def _path() -> str:
    found = next(_bundled(Path(av.__file__).parent), None) or ctypes.util.find_library("opus")
    if found is None:
        raise LibraryMissing("no libopus beside PyAV or in the system: install PyAV from its wheel, or libopus0")
    return found


def _bundled(package: Path) -> Iterator[str]:
    """Where auditwheel and delvewheel put what a wheel brings (av.libs), and where delocate does (.dylibs)."""
    for folder in (package.parent / "av.libs", package / ".dylibs"):
        yield from (str(path) for pattern in ("libopus[-.]*", "opus[-.]*") for path in sorted(folder.glob(pattern)))
