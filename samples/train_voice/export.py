"""Writes what was trained as a voice folder of the official layout, which `breezert say --voice FOLDER` loads.

It does not train, and takes from the shape's folder what was not trained anew: the decoder or the speech model.

    python export.py config.toml FOLDER
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from recipe import Recipe
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from train_codec import decoder_file, encoder_file, load_decoder

from engine.weights import FusedLinear, stored

COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "audio_tokenizer/config.json",
    "CARD.md",
    "NOTICE",
)
"""Of the shape's folder, as far as it has them. Card and notice are to be rewritten by whoever trained."""


def official(module: nn.Module) -> dict[str, Tensor]:
    """The module's parameters under the checkpoint's names: fused matrices as their parts."""
    fused = {path: layer for path, layer in module.named_modules() if isinstance(layer, FusedLinear)}
    tensors: dict[str, Tensor] = {}
    for name, value in module.state_dict().items():
        path, _, leaf = name.rpartition(".")
        if layer := fused.get(path):
            parent = path.rpartition(".")[0]
            tensors |= {
                f"{parent}.{part}.{leaf}": t for part, t in zip(layer.parts, value.split(layer.sizes), strict=True)
            }
        else:
            tensors[name] = value
    return tensors


def speech_file(recipe: Recipe) -> Path:
    """The speech model as train_speech.py left it, under official names."""
    return recipe.work / "speech.safetensors"


def halved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().to(torch.float16).cpu().contiguous().clone() for name, t in tensors.items()}


def written(recipe: Recipe, folder: Path) -> Path:
    """The voice's folder. Raises FileNotFoundError if there is neither a trained part nor one to take its place."""
    (folder / "audio_tokenizer").mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if (recipe.shape / name).exists():
            shutil.copy(recipe.shape / name, folder / name)
    speech, codec = speech_file(recipe), dict[str, Tensor]()
    if decoder_file(recipe).exists():
        decoder = load_decoder(recipe, torch.device("cpu"))
        codec = {f"decoder.{name}": t for name, t in (official(decoder) | projections(recipe)).items()}
    _write(codec, recipe.shape / "audio_tokenizer", folder / "audio_tokenizer" / "model.safetensors")
    _write(load_file(speech) if speech.exists() else {}, recipe.shape, folder / "model.safetensors")
    return folder


def projections(recipe: Recipe) -> dict[str, Tensor]:
    """What the layout keeps among the decoder's tensors, though only encoding reads it: the encoder's last step."""
    encoder = load_file(encoder_file(recipe))
    return {f"quantizer.rvq_{part}.input_proj.weight": encoder[f"project_{part}.weight"] for part in ("first", "rest")}


def _write(tensors: Mapping[str, Tensor], instead: Path, file: Path) -> None:
    """The tensors, or those of a folder, where there are none."""
    given = tensors or {name: tensor.read() for name, tensor in stored(instead).items()}
    save_file(halved(given), file, metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    folder = written(Recipe.read(given.config), given.folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder}: {size / 1e6:.1f} MB; write its CARD.md and NOTICE, then: breezert say --voice {folder} Hello.")


if __name__ == "__main__":
    main()
