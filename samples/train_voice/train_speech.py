"""Trains text encoder, backbone and depth decoder on codes, from nothing. It does not know sound.

It runs for the time that the config gives, or until it is told to end; it keeps checkpoints and goes on from the last.
What it writes, work/speech.safetensors, is the average over its last steps, for export.py.

    python train_speech.py config.toml
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from adversary import apply, set_rate
from export import halved, official, speech_file
from recipe import Recipe
from safetensors.torch import save_file
from speech import Batch, Example, alphabet, batches, losses
from tokenise import Utterance, read
from torch import Tensor, nn
from torch.optim import AdamW
from train_codec import Progressing, Stopped, train

from engine.checks import RequestError
from engine.config import Section
from engine.core import Request, TextSegment
from engine.device import choose
from engine.models.breeze_tts_2 import Breeze, load_tokenizer, read_config, read_spec
from engine.norm import RMSNorm

TOLD = ("first", "depth", "alignment", "g_all", "bad")
WIDE = 400
"""Inputs from which on a matrix begins small, whatever its width."""


def new_model(recipe: Recipe, device: torch.device) -> Breeze:
    """The shape's model with fresh weights."""
    shape = recipe.shape
    main, audio = Section.read(shape / "config.json"), Section.read(shape / "audio_tokenizer" / "config.json")
    tokenizer = load_tokenizer(shape / "tokenizer.json")
    config = read_config(shape, main, audio)
    model = Breeze(config, read_spec(shape, main, audio, config, tokenizer), tokenizer)
    initialise(model)
    return model.to(device).train()


@torch.no_grad()
def initialise(model: Breeze) -> None:
    """Matrices by their width, what ends a residual branch smaller by its depth, embeddings and heads by hand."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            width = module.in_features
            module.weight.normal_(0, 0.02 if width > WIDE else 0.7 * width**-0.5)
        elif isinstance(module, RMSNorm):
            module.weight.fill_(0.0 if module.zero_centred else 1.0)
    for stack in (model.backbone_model.layers, model.depth_decoder.model.layers):
        for layer in stack:
            for last in (layer.self_attn.o_proj, layer.mlp.down_proj):
                last.weight.mul_((2 * len(stack)) ** -0.5)
    texts = model.text_encoder.embed_tokens
    texts.weight.normal_(0, texts.weight.shape[1] ** -0.5)
    texts.eoi_embedding.zero_()
    model.depth_decoder.model.embed_tokens.weight.normal_(0, 0.25)
    heads = model.depth_decoder.codebooks_head.weight
    heads.normal_(0, 0.3 * heads.shape[1] ** -0.5)
    model.lm_head.weight.normal_(0, 0.02)


def trained(model: Breeze) -> dict[str, nn.Parameter]:
    """All but the codec."""
    return {name: p for name, p in model.named_parameters() if not name.startswith("audio_tokenizer.")}


def examples(model: Breeze, utterances: list[Utterance], sounds: dict[str, int]) -> Iterator[Example]:
    """With the prompt that the engine itself lays out; what does not fit into it is left out."""
    for utterance in utterances:
        try:
            (row,) = model.prompt(Request(utterance.text, model.spec.sampling)).rows
        except RequestError:
            continue
        (segment,) = row.segments
        assert isinstance(segment, TextSegment)
        heard = tuple(sounds[sound] for sound in utterance.phonemes if sound in sounds)
        yield Example(segment.ids, heard, utterance.codes)


def optimiser(weights: dict[str, nn.Parameter], ear: nn.Linear, decay: float, device: torch.device) -> AdamW:
    """Decay for matrices, none for embeddings and vectors."""
    matrices = [p for name, p in weights.items() if p.ndim >= 2 and "embed" not in name]
    others = [p for name, p in weights.items() if p.ndim < 2 or "embed" in name]
    groups = [
        {"params": matrices, "weight_decay": decay},
        {"params": [*others, *ear.parameters()], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=device.type == "cuda")


class Epochs:
    """Batches without end; any step's batch can be found again from the seed, so a resumed run goes on with its own."""

    def __init__(self, given: list[Example], positions: int, seed: int) -> None:
        self._given, self._positions, self._seed = given, positions, seed
        self._epoch, self._first, self._groups = -1, 0, list[list[Example]]()

    def at(self, step: int) -> list[Example]:
        """Steps are asked for in order."""
        while step >= self._first + len(self._groups):
            self._first, self._epoch = self._first + len(self._groups), self._epoch + 1
            chance = np.random.default_rng((self._seed, self._epoch))
            self._groups = list(batches(self._given, self._positions, chance))
        return self._groups[step - self._first]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    recipe = Recipe.read(parser.parse_args().config)
    settings, device = recipe.speech, choose(recipe.device)
    torch.manual_seed(recipe.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    utterances = list(read(recipe.codes))
    sounds = alphabet([utterance.phonemes for utterance in utterances])
    model = new_model(recipe, device)
    ear = nn.Linear(model.config.text.hidden_size, len(sounds) + 1).to(device)
    given = list(examples(model, utterances, sounds))
    if not given:
        raise ValueError(f"{recipe.codes}: expected texts that fit into the voice's positions, found none")
    epochs = Epochs(given, settings["positions"], recipe.seed)
    weights = trained(model)
    averages = {name: weight.detach().clone() for name, weight in weights.items()}
    by, everything = optimiser(weights, ear, settings["weight_decay"], device), [*weights.values(), *ear.parameters()]
    chance = torch.Generator(device).manual_seed(recipe.seed)

    def step(run: Progressing) -> Tensor:
        warm = min(1.0, (run.step + 1) / settings["warm_up"])
        late = max(0.0, (run.share - 0.3) / 0.7)
        set_rate(by, settings["rate"] * warm * (0.01 + 0.99 * (1 + math.cos(math.pi * late)) / 2))
        batch = Batch.of(epochs.at(run.step), device)
        with torch.autocast(device.type, torch.bfloat16, device.type == "cuda"):
            paid = losses(model, ear, batch, settings, chance)
        alignment = paid.get("alignment", torch.zeros((), device=device))
        loss = paid["first"] + paid["depth"] + settings["alignment"] * alignment
        gradients = torch.autograd.grad(loss, everything, allow_unused=True, materialize_grads=True)
        norm, bad = apply(by, everything, gradients, settings["clip"])
        keep_up = min(settings["ema"], 1 - 1 / (run.step + 1))
        with torch.no_grad():
            torch._foreach_lerp_(list(averages.values()), list(weights.values()), 1 - keep_up)
        return torch.stack([x.detach() for x in (paid["first"], paid["depth"], alignment, norm, bad)])

    def keep() -> dict[str, float]:
        own = {name: weight.detach().clone() for name, weight in weights.items()}
        for name, average in averages.items():
            weights[name].data.copy_(average)
        tensors = {name: t for name, t in official(model).items() if not name.startswith("audio_tokenizer.")}
        save_file(halved(tensors), speech_file(recipe))
        for name, weight in own.items():
            weights[name].data.copy_(weight)
        return {}

    owners = {"model": weights, "ear": ear, "averages": averages, "optimiser": by, "chance": chance}
    train(recipe.work, "speech", settings, owners, step, keep, TOLD, Stopped())


if __name__ == "__main__":
    main()
