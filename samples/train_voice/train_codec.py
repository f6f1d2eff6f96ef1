"""Trains the codec: stage `a` its codes, by spectral losses; stage `b` its sound, by discriminators, on fixed codes.

It does not know text. It runs for the time that the config gives, or until it is told to end (SIGTERM, Ctrl-C); it
keeps checkpoints, and started again it goes on from the last one, bit by bit the same on a CPU.

    python train_codec.py config.toml a
    python train_codec.py config.toml b
"""

from __future__ import annotations

import argparse
import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import checkpoint
import torch
from adversary import TOLD, Adversary, apply, learnable, optimiser, set_rate
from clips import Clip, Pool, read_clips
from encoder import Encoder, Learning, Quantized, quantize
from graphs import Repeated, fused
from log import Log
from log import read as read_log
from recipe import Recipe
from safetensors.torch import load_file, save_file
from scorers import JUDGES, Sound
from spectra import SpectralDistance
from torch import Tensor, nn
from whole import WholeDecoder, bend

from engine.codec import UNUSED, CodecDecoder
from engine.device import choose
from engine.weights import load as load_weights
from engine.weights import outlines, stored

HELD = 32
"""Held-out clips that are listened to."""
HELD_FRAMES = 36
OPINIONS = 32
"""Of these, on how many an opinion is asked for: two means of 16 clips each lay 0.1 apart by chance."""


class Stopped:
    """Whether somebody asked this process to end."""

    def __init__(self) -> None:
        self.asked = False
        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


@dataclass(slots=True)
class Progressing:
    """How far a run is: steps and seconds of all its starts together."""

    seconds_planned: float
    steps_planned: int
    step: int = 0
    before: float = 0.0
    """Seconds spent by earlier starts."""
    started_at: float = 0.0

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.started_at

    @property
    def share(self) -> float:
        """Of the run, 0 to 1."""
        if self.steps_planned:
            return min(1.0, self.step / self.steps_planned)
        return min(1.0, self.seconds / self.seconds_planned)


def new_decoder(recipe: Recipe, device: torch.device) -> CodecDecoder:
    """In training mode; with the voice's weights, or with random ones."""
    if recipe.codec["start"] == "voice":
        with outlines():
            decoder = CodecDecoder(recipe.codec_config)
        folder = recipe.shape / "audio_tokenizer"
        load_weights(
            decoder, stored(folder), "decoder.", dtype=torch.float32, device=device, skip=(*UNUSED, "encoder.*")
        )
    else:
        decoder = CodecDecoder(recipe.codec_config).to(device)
        initialise(decoder)
    return decoder.train()


def initialise(decoder: CodecDecoder) -> None:
    """What the engine leaves empty, since it loads it: norms of one; and layer scales large enough to learn from."""
    for name, parameter in decoder.named_parameters():
        if name.endswith("norm.weight"):
            nn.init.ones_(parameter)
        elif name.endswith(("layer_scale.scale", "gamma")):
            nn.init.constant_(parameter, 0.1)


def new_encoder(recipe: Recipe, device: torch.device) -> Encoder:
    """With the weights of work/encoder.safetensors, if they are there."""
    widths = tuple(recipe.codec["encoder_widths"])
    encoder = Encoder(recipe.codec_config.codebook_dim, recipe.sample_rate, widths).to(device)
    if encoder_file(recipe).exists():
        encoder.load_state_dict({name: t.float() for name, t in load_file(encoder_file(recipe)).items()})
    return encoder


def encoder_file(recipe: Recipe) -> Path:
    return recipe.work / "encoder.safetensors"


def decoder_file(recipe: Recipe) -> Path:
    """The decoder as stage a or b left it, the average over its last steps."""
    return recipe.work / "decoder.safetensors"


def load_decoder(recipe: Recipe, device: torch.device) -> CodecDecoder:
    """What was trained so far; before anything was, what training starts from."""
    decoder = new_decoder(recipe, device)
    if decoder_file(recipe).exists():
        decoder.load_state_dict({name: t.float() for name, t in load_file(decoder_file(recipe)).items()})
    return decoder


def write_decoder(recipe: Recipe, decoder: CodecDecoder, averages: Mapping[str, Tensor]) -> None:
    """The decoder with its averaged weights, in half precision; codebooks as means, whatever their use was."""
    state = dict(decoder.state_dict()) | dict(averages)
    for name in [name for name in state if name.endswith("embedding_sum")]:
        usage = name.replace("embedding_sum", "cluster_usage")
        state[name] = state[name] / state[usage].clamp(min=1e-5)[:, None]
        state[usage] = torch.ones_like(state[usage])
    aside = decoder_file(recipe).with_suffix(".part")
    save_file({name: tensor.detach().half().cpu().contiguous() for name, tensor in state.items()}, aside)
    aside.rename(decoder_file(recipe))


def load_pool(recipe: Recipe, device: torch.device) -> tuple[Pool, list[Clip]]:
    """The clips to learn from, on the device, and those held out."""
    size, hours = recipe.codec_config.samples_per_frame, recipe.codec["pool_hours"]
    most = hours * 3600 * recipe.sample_rate / size
    clips, held, frames = list[Clip](), list[Clip](), 0
    for clip in read_clips(recipe.clips, size):
        if clip.held:
            held.append(clip)
        elif frames + clip.frames <= most:
            clips.append(clip)
            frames += clip.frames
    print(f"{frames * size / recipe.sample_rate / 3600:.2f} h in {len(clips)} clips, {len(held)} held out", flush=True)
    pool = Pool.of(clips, size, device)
    return pool, held or clips[:HELD]


@torch.no_grad()
def encode(encoder: Encoder, decoder: CodecDecoder, samples: Tensor) -> Quantized:
    """samples [B, T * samples_per_frame] -> what the decoder shall receive."""
    return quantize(encoder, decoder.quantizer, encoder(samples))


def encode_pool(encoder: Encoder, decoder: CodecDecoder, pool: Pool, batch: int = 64) -> None:
    """Puts codes beside the pool's samples, clip by clip, each encoded by itself as speech models learn it."""
    ends = torch.cat((pool.starts[1:], pool.starts.new_tensor([pool.frames])))
    lengths = (ends - pool.starts).tolist()
    starts = pool.starts.tolist()
    pool.codes = torch.zeros(pool.frames, decoder.config.num_codebooks, dtype=torch.int16, device=pool.pcm.device)
    order, size = sorted(range(len(starts)), key=lengths.__getitem__), pool.samples_per_frame
    for begin in range(0, len(order), batch):
        rows = order[begin : begin + batch]
        samples = torch.zeros(len(rows), lengths[rows[-1]] * size, device=pool.pcm.device)
        for row, index in enumerate(rows):
            clip = pool.pcm[starts[index] * size : (starts[index] + lengths[index]) * size]
            samples[row, : len(clip)] = clip.float() / 32768
        codes = encode(encoder, decoder, samples).codes.transpose(1, 2).to(torch.int16)
        for row, index in enumerate(rows):
            pool.codes[starts[index] : starts[index] + lengths[index]] = codes[row, : lengths[index]]


def held_out_distance(
    decoder: CodecDecoder, weights: Mapping[str, Tensor], held: Held, distance: SpectralDistance
) -> float:
    """Mean log-mel distance of held-out clips, decoded by a decoder with these weights."""
    return float(distance(decoded(decoder, weights, held.codes), held.samples)[0])


def held_out_opinion(
    decoder: CodecDecoder, weights: Mapping[str, Tensor], held: Held, opinion: Callable[[Sound], float]
) -> float:
    """Mean opinion of the first OPINIONS held-out clips."""
    made = decoded(decoder, weights, held.codes[:OPINIONS])
    return sum(map(opinion, made.clamp(-1, 1).cpu().numpy())) / len(made)


@torch.no_grad()
def decoded(decoder: CodecDecoder, weights: Mapping[str, Tensor], codes: Tensor) -> Tensor:
    """codes [B, K, T] -> samples [B, T * samples_per_frame] of a decoder with these weights."""
    own = {name: parameter.detach().clone() for name, parameter in decoder.named_parameters() if name in weights}
    _put(decoder, weights)
    made = WholeDecoder(decoder).codes(codes)
    _put(decoder, own)
    return made


def _put(decoder: CodecDecoder, weights: Mapping[str, Tensor]) -> None:
    parameters = dict(decoder.named_parameters())
    for name, weight in weights.items():
        parameters[name].data.copy_(weight)


@dataclass(frozen=True, slots=True)
class Held:
    """Held-out clips of one length: samples [n, HELD_FRAMES * samples_per_frame] and their codes."""

    samples: Tensor
    codes: Tensor

    @classmethod
    def of(cls, clips: list[Clip], encoder: Encoder, decoder: CodecDecoder, device: torch.device) -> Held:
        longest = max(clip.frames for clip in clips)
        frames = min(HELD_FRAMES, longest)
        chosen = [clip for clip in clips if clip.frames >= frames][:HELD]
        size = decoder.config.samples_per_frame * frames
        samples = torch.stack([torch.from_numpy(clip.pcm[:size]).float() / 32768 for clip in chosen]).to(device)
        return cls(samples, encode(encoder, decoder, samples).codes)


# ---- stage a ----


class Spectral:
    """One step of encoder, codebooks and decoder."""

    TOLD = ("mel", "lines", "commitment", "g_all", "bad")

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.settings, codec = recipe.codec["a"], recipe.codec
        self.device = device
        self.encoder, self.decoder = new_encoder(recipe, device).train(), load_decoder(recipe, device)
        self.distance = SpectralDistance(recipe.sample_rate, codec["windows"], codec["mels"], codec["floor"]).to(device)
        self.whole = WholeDecoder(self.decoder)
        averaged = learnable(self.decoder)
        projections = [self.decoder.quantizer.rvq_first.output_proj, self.decoder.quantizer.rvq_rest.output_proj]
        self.weights = [*averaged.values(), *(p.weight for p in projections), *self.encoder.parameters()]
        self.averaged = averaged
        self.averages = {name: weight.detach().clone() for name, weight in averaged.items()}
        self.optimiser = optimiser(self.weights, device, (0.9, 0.98))

    def step(self, samples: Tensor, learning: Learning, chance: torch.Generator) -> Tensor:
        """samples [B, T * samples_per_frame] -> the numbers of TOLD."""
        kept = self._kept(len(samples), chance)
        with torch.autocast(self.device.type, torch.bfloat16, self.device.type == "cuda"):
            z = self.encoder(samples)
        quantized = quantize(self.encoder, self.decoder.quantizer, z, learning, kept)
        mel, lines = self.distance(self.whole.vectors(quantized.vectors), samples)
        loss = 7 * mel + 2 * lines + self.settings["commitment"] * quantized.commitment
        bad = apply(self.optimiser, self.weights, torch.autograd.grad(loss, self.weights), 3.0)
        with torch.no_grad():
            torch._foreach_lerp_(list(self.averages.values()), list(self.averaged.values()), 0.005)
        return torch.stack([mel.detach(), lines.detach(), quantized.commitment.detach(), *bad])

    def _kept(self, batch: int, chance: torch.Generator) -> Tensor:
        """[B, K]: some items keep only their first codebooks."""
        books = self.decoder.config.num_codebooks
        drawn = torch.rand(batch, 2, generator=chance, device=self.device)
        count = torch.where(drawn[:, 0] < self.settings["dropout"], 1 + (drawn[:, 1] * (books - 1)).long(), books)
        return torch.arange(books, device=self.device) < count[:, None]


def train_a(recipe: Recipe, device: torch.device, stopped: Stopped) -> None:
    """Encoder, codebooks and decoder, until the time is over."""
    settings, codec = recipe.codec["a"], recipe.codec
    pool, held = load_pool(recipe, device)
    model = Spectral(recipe, device)
    chance = torch.Generator(device).manual_seed(recipe.seed)
    owners = {
        "encoder": model.encoder,
        "decoder": model.decoder,
        "averages": model.averages,
        "optimiser": model.optimiser,
        "chance": chance,
    }
    frames = codec["settle"] + codec["frames"]

    def step(run: Progressing) -> Tensor:
        rate = (
            settings["rate"] * min(1.0, (run.step + 1) / 200) * (0.02 + 0.98 * (1 + math.cos(math.pi * run.share)) / 2)
        )
        set_rate(model.optimiser, rate)
        learning = Learning(settings["decay"], settings["dead"], run.step == 0 and codec["start"] != "voice")
        samples = pool.samples(pool.anywhere(settings["batch"], frames, chance), frames)
        return model.step(samples, learning, chance)

    def keep() -> dict[str, float]:
        save_file(checkpointless(model.encoder), encoder_file(recipe))
        write_decoder(recipe, model.decoder, model.averages)
        listened = Held.of(held, model.encoder, model.decoder, device)
        return {"held_mel": held_out_distance(model.decoder, model.averages, listened, model.distance)}

    train(recipe.work, "codec-a", codec, owners, step, keep, Spectral.TOLD, stopped)


def checkpointless(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}


# ---- stage b ----


def word_of(settings: Mapping[str, Any], step: int) -> float:
    """How much the discriminators' word counts: nothing at first, since they know nothing."""
    return float(min(1.0, max(0.0, (step - settings["ramp_from"]) / max(1, settings["ramp"]))))


def rate_of(settings: Mapping[str, Any], run: Progressing) -> float:
    """Warm-up, then constant, then a cosine to 2 % over the run's last part."""
    anneal = max(1e-6, float(settings["anneal"]))
    rest = max(0.0, (run.share - (1 - anneal)) / anneal)
    warm = float(min(1.0, (run.step + 1) / settings["warm_up"]))
    return float(settings["rate"]) * warm * (0.02 + 0.98 * (1 + math.cos(math.pi * rest)) / 2)


class Stretches:
    """Batches of codes and samples: mostly from the middle of speech, every n-th from its beginning."""

    def __init__(self, recipe: Recipe, pool: Pool, chance: torch.Generator) -> None:
        self._codec, self._pool, self._chance = recipe.codec, pool, chance
        self._batch = recipe.codec["b"]["batch"]
        self.middle = recipe.codec["context"], recipe.codec["settle"]

    def is_beginning(self, step: int) -> bool:
        every = self._codec["starts_one_in"]
        return bool(every) and step % every == every - 1

    def batch(self, beginning: bool) -> tuple[Tensor, Tensor]:
        """codes [B, K, before + T] and samples [B, T * samples_per_frame]; before a beginning there is nothing."""
        frames, before = self._codec["frames"], 0 if beginning else sum(self.middle)
        draw = self._pool.beginnings if beginning else self._pool.anywhere
        first = draw(self._batch, before + frames, self._chance)
        return self._pool.coded(first, before + frames), self._pool.samples(first + before, frames)


def train_b(recipe: Recipe, device: torch.device, stopped: Stopped) -> None:
    """The decoder against its discriminators, until the time is over."""
    codec, settings = recipe.codec, recipe.codec["b"]
    encoder, decoder = new_encoder(recipe, device).eval(), load_decoder(recipe, device)
    if not encoder_file(recipe).exists():
        raise FileNotFoundError(f"{encoder_file(recipe)}: stage b needs an encoder, found none; run stage a first")
    pool, held = load_pool(recipe, device)
    encode_pool(encoder, decoder, pool)
    listened = Held.of(held, encoder, decoder, device)
    quick = fused(bend, *bend_examples(device)) if codec["compile"] and device.type == "cuda" else bend
    distance = SpectralDistance(recipe.sample_rate, codec["windows"], codec["mels"], codec["floor"]).to(device)
    model = Adversary(decoder, settings, distance, device, quick)
    if judges := sorted(recipe.work.glob("discriminators*.safetensors")):
        model.judges.load_state_dict({name: t.float() for file in judges for name, t in load_file(file).items()})
        print("discriminators of an earlier run", flush=True)
    opinion = opinion_of(settings["opinion"])
    print("held-out log-mel distance before", round(held_out_distance(decoder, {}, listened, distance), 4), flush=True)
    if opinion:
        print("held-out opinion before", round(held_out_opinion(decoder, {}, listened, opinion), 3), flush=True)
    chance = torch.Generator(device).manual_seed(recipe.seed)
    stretches, steps = Stretches(recipe, pool, chance), dict[bool, Repeated]()
    owners = {
        "decoder": decoder,
        "averages": model.averages,
        "discriminators": model.judges,
        "maker": model.maker,
        "judging": model.judging,
        "paid": model.paid,
        "chance": chance,
    }

    def step(run: Progressing) -> Tensor:
        model.set_rate(rate_of(settings, run), settings["rate_discriminators"], word_of(settings, run.step))
        beginning = stretches.is_beginning(run.step)
        inputs = stretches.batch(beginning)
        if beginning not in steps:
            context, settle = (0, 0) if beginning else stretches.middle
            steps[beginning] = repeated(lambda c, w: model.step(c, w, context, settle), inputs, codec["graph"])
        return steps[beginning](*inputs)

    def keep() -> dict[str, float]:
        write_decoder(recipe, decoder, model.averages)
        told = {"held_mel": held_out_distance(decoder, model.averages, listened, distance)}
        if opinion:
            told["held_mos"] = held_out_opinion(decoder, model.averages, listened, opinion)
            keep_best(recipe, told["held_mos"])
        return told

    train(recipe.work, "codec-b", codec, owners, step, keep, TOLD, stopped)


def opinion_of(name: str) -> Callable[[Sound], float] | None:
    """The judge of scorers.py with this name; none for an empty one."""
    if name and name not in JUDGES:
        raise ValueError(f"codec.b.opinion must be empty or one of {sorted(JUDGES)}, got {name!r}")
    return JUDGES[name]("") if name else None


def keep_best(recipe: Recipe, opinion: float) -> None:
    """A copy of the decoder as best.safetensors, if none that this log tells of was thought better."""
    file = recipe.work / "codec-b.jsonl"
    before = [line["held_mos"] for line in read_log(file) if "held_mos" in line] if file.exists() else []
    if opinion > max(before, default=-math.inf):
        shutil.copy(decoder_file(recipe), recipe.work / "best.safetensors")


def repeated(step: Callable[..., Tensor], inputs: tuple[Tensor, ...], capture: bool) -> Repeated:
    """A graph of the step, or, where that cannot be captured, the step as it is."""
    try:
        return Repeated(step, inputs, capture)
    except RuntimeError as error:
        print(f"no graph: {str(error).splitlines()[0][:300]}", flush=True)
        torch.cuda.synchronize()
        return Repeated(step, inputs, False)


def bend_examples(device: torch.device) -> Iterator[tuple[Tensor, ...]]:
    for channels, columns in ((24, 96), (384, 50)):
        x, frequency, size = (
            torch.rand(s, device=device) for s in ((3, channels, columns), (1, channels, 1), (1, channels, 1))
        )
        yield tuple(t.requires_grad_() for t in (x, frequency, size))


# ---- the loop of both ----


def train(
    work: Path,
    name: str,
    settings: Mapping[str, Any],
    owners: Mapping[str, Any],
    step: Callable[[Progressing], Tensor],
    keep: Callable[[], dict[str, float]],
    told: tuple[str, ...],
    stopped: Stopped,
) -> None:
    """Steps until the time or the steps are over or somebody asks for the end; logs, draws and keeps checkpoints."""
    folder = work / name
    run = Progressing(settings["seconds"], settings["max_steps"])
    if last := checkpoint.latest(folder):
        tensors, stood = checkpoint.load(last)
        checkpoint.restore(tensors, **owners)
        run.step, run.before = stood["step"], stood["seconds"]
        print(f"goes on from step {run.step}", flush=True)
    torch.backends.cudnn.benchmark = True  # not before: the pool's batches have many shapes
    run.started_at = time.monotonic()
    with Log(work / f"{name}.jsonl", name, 1.0) as log:
        watch = Watch(log, told, settings["log_every"], settings["save_every"])

        def save() -> None:
            checkpoint.save(folder, run.step, checkpoint.named(**owners), {"seconds": run.seconds})
            log.write(run.share, step=run.step, seconds=run.seconds, **keep())
            log.plot()

        while run.share < 1 and not stopped.asked:
            numbers = step(run)
            run.step += 1
            watch.saw(run, numbers)
            if watch.wants_saving():
                save()
        save()


class Watch:
    """Sums up steps on the device, and tells of them now and then."""

    def __init__(self, log: Log, told: tuple[str, ...], every: int, save_every: float) -> None:
        self._log, self._told, self._every, self._save_every = log, told, every, save_every
        self._sum: Tensor | None = None
        self._count = 0
        self._at = self._saved_at = time.monotonic()

    def saw(self, run: Progressing, numbers: Tensor) -> None:
        self._sum = numbers.clone() if self._sum is None else self._sum + numbers
        self._count += 1
        if self._count == self._every or run.step == 1:
            self._tell(run, self._sum)

    def _tell(self, run: Progressing, total: Tensor) -> None:
        means = (total / self._count).tolist()  # waits for the device
        now = time.monotonic()
        ms = 1000 * (now - self._at) / self._count
        named = dict(zip(self._told, means, strict=True))
        if not all(map(math.isfinite, means)):
            raise FloatingPointError(f"step {run.step}: expected finite numbers, got {named}; lower the rate")
        self._log.write(run.share, step=run.step, seconds=run.seconds, ms=ms, **named)
        self._sum, self._count, self._at = None, 0, now

    def wants_saving(self) -> bool:
        now = time.monotonic()
        due = now - self._saved_at >= self._save_every
        if due:
            self._saved_at = now
        return due


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("stage", choices=("a", "b"))
    given = parser.parse_args()
    recipe = Recipe.read(given.config)
    torch.manual_seed(recipe.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    device, stopped = choose(recipe.device), Stopped()
    {"a": train_a, "b": train_b}[given.stage](recipe, device, stopped)


if __name__ == "__main__":
    main()
