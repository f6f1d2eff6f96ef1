"""Lets the teacher speak the sentences, many processes at once, and keeps the good clips in shards.

It does not know what is trained on them. May be stopped and started again: it goes on where it stopped.

    python prepare.py config.toml
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from clips import Clip, write_shard
from log import Log
from numpy.typing import NDArray
from recipe import Recipe
from sentences import is_held_out
from teachers import SAMPLE_RATE, TEACHERS, Teacher

AUDIBLE = 0.004
BEFORE, AFTER, FADE = 1440, 3840, 240
"""Samples kept before the first and after the last audible one, and of a fade at both ends: 60, 160 and 10 ms."""
LETTERS_PER_SECOND = 15.0


def trimmed(sound: NDArray[np.float32], frame: int) -> NDArray[np.float32]:
    """The audible part with a little around it, faded, filled to whole frames; nothing, if nothing is audible."""
    loud = np.flatnonzero(np.abs(sound) > AUDIBLE)
    if not len(loud):
        return sound[:0]
    sound = sound[max(0, loud[0] - BEFORE) : loud[-1] + AFTER]
    rise = np.minimum(1, np.arange(len(sound), dtype=np.float32) / FADE)
    return np.pad(sound * rise * rise[::-1], (0, -len(sound) % frame))


def likely(text: str, seconds: float, settings: dict[str, float]) -> bool:
    """Whether a clip may be what its text says, by length alone. Short ones are mostly silence, so they have leave."""
    ratio = (seconds - 0.22) / (max(len(text), 6) / LETTERS_PER_SECOND)
    long_enough = settings["min_seconds"] <= seconds <= settings["max_seconds"]
    return long_enough and settings["min_ratio"] <= ratio <= settings["max_ratio"] * (2 if len(text) < 15 else 1)


def spoken(teacher: Teacher, line: str, seed: int, recipe: Recipe) -> Clip | None:
    """The clip of a line of the sentences' file, unless it is none to learn from."""
    text, _, given = line.partition("\t")
    frame, settings = recipe.codec_config.samples_per_frame, dict(recipe.prepare)
    phonemes = given.split("|") if given else teacher.phonemes(text)
    if not any(phonemes):
        return None
    sound = trimmed(teacher.speak(phonemes, seed), frame) * settings["gain"]
    if not likely(text, len(sound) / SAMPLE_RATE, settings):
        return None
    pcm = (np.clip(sound, -1, 1) * 32767).astype(np.int16)
    held = is_held_out(text, settings["held_out_one_in"])
    return Clip(text, " ".join(phonemes), pcm, len(pcm) // frame, held)


def speak_share(config: Path, worker: int) -> None:
    """One process's share: every n-th line, in shards named by worker and number, after those that are there."""
    recipe = Recipe.read(config)
    settings, started = recipe.prepare, time.monotonic()
    lines = recipe.sentences_file.read_text(encoding="utf-8").splitlines()
    teacher = TEACHERS[settings["teacher"]](settings["voice"])
    state = recipe.clips / f"worker{worker:02d}.json"
    done: dict[str, Any] = (
        json.loads(state.read_text()) if state.exists() else {"next": worker, "shards": 0, "seconds": 0.0}
    )
    share, clips = settings["hours"] * 3600 / settings["processes"], list[Clip]()
    for index in range(done["next"], len(lines), settings["processes"]):
        if clip := spoken(teacher, lines[index], index, recipe):
            clips.append(clip)
            done["seconds"] += len(clip.pcm) / SAMPLE_RATE
        full = done["seconds"] >= share or 0 < settings["seconds"] <= time.monotonic() - started
        if clips and (full or len(clips) >= settings["shard_clips"]):
            write_shard(recipe.clips / f"{worker:02d}-{done['shards']:05d}.npz", clips)
            done |= {"next": index + settings["processes"], "shards": done["shards"] + 1}
            state.write_text(json.dumps(done))
            clips = []
        if full:
            return
    if clips:
        write_shard(recipe.clips / f"{worker:02d}-{done['shards']:05d}.npz", clips)
        state.write_text(json.dumps(done | {"next": len(lines) + worker, "shards": done["shards"] + 1}))


def seconds_there(folder: Path) -> float:
    """Of audio, as the workers last told."""
    return sum(
        float(json.loads(state.read_text() or '{"seconds": 0}')["seconds"]) for state in folder.glob("worker*.json")
    )


def alive(workers: list[multiprocessing.process.BaseProcess]) -> Iterator[None]:
    """Once a second until the last has ended. Raises RuntimeError if one failed."""
    while any(worker.is_alive() for worker in workers):
        yield
        time.sleep(1.0)
    if failed := [worker.exitcode for worker in workers if worker.exitcode]:
        raise RuntimeError(f"{len(failed)} of {len(workers)} processes that speak failed; see what they printed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    config = parser.parse_args().config
    recipe = Recipe.read(config)
    recipe.clips.mkdir(parents=True, exist_ok=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # or they fight for the cores
    spawn = multiprocessing.get_context("spawn")
    count = recipe.prepare["processes"]
    workers = [spawn.Process(target=speak_share, args=(config, index)) for index in range(count)]
    with Log(recipe.work / "prepare.jsonl", "teacher", recipe.prepare["hours"]) as log:
        for worker in workers:
            worker.start()
        for _ in alive([*workers]):
            hours = seconds_there(recipe.clips) / 3600
            log.advance(hours, f"{hours:.2f} h")
        log.write(hours := seconds_there(recipe.clips) / 3600, step=0, hours=hours)


if __name__ == "__main__":
    main()
