"""CLAP in INT8: sounds that the script makes, ranked by captions before and after.

    python clap_sounds.py [MODEL]

MODEL is a folder or a name of a ClapModel of transformers, by default `laion/clap-htsat-unfused`. The stages of the audio encoder become
INT8; the spectrogram, the projection and the text encoder stay as they are. The script prints the similarity of each sound and caption in
float and in INT8, the cosine between both embeddings of each sound, and whether the best caption of each sound is the same. Needs swinq,
torch and transformers.
"""

import argparse

import numpy as np
import torch
import transformers

import swinq.torch

RATE, SECONDS = 48_000, 10
CAPTIONS = ["a high beep", "a low hum", "noise, like rain", "clicks of a clock", "a rising siren"]


def sounds():
    """Five sounds of 10 seconds, `float32 [n, samples]`, in the order of the captions."""
    time = np.arange(RATE * SECONDS) / RATE
    noise = np.random.default_rng(0).standard_normal(len(time))
    beep, hum = np.sin(2 * np.pi * 2000 * time), np.sin(2 * np.pi * 80 * time) + 0.3 * np.sin(2 * np.pi * 240 * time)
    clicks = np.where((time % 0.5) < 0.005, noise, 0.0)
    siren = np.sin(2 * np.pi * (300 * time + 60 * time**2))
    return np.stack([beep, hum, 0.3 * noise, clicks, siren]).astype(np.float32) * 0.5


def embeddings(model, batch):
    """The normalised embeddings of sounds."""
    with torch.no_grad():
        found = model.get_audio_features(**batch)
    found = getattr(found, "pooler_output", found)
    return torch.nn.functional.normalize(found, dim=-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="laion/clap-htsat-unfused")
    name = parser.parse_args().model
    model, processor = transformers.ClapModel.from_pretrained(name).eval(), transformers.ClapProcessor.from_pretrained(name)
    batch = processor.feature_extractor(list(sounds()), sampling_rate=RATE, return_tensors="pt")
    with torch.no_grad():
        words = model.get_text_features(**processor.tokenizer(CAPTIONS, padding=True, return_tensors="pt"))
    words = torch.nn.functional.normalize(getattr(words, "pooler_output", words), dim=-1)
    before = embeddings(model, batch)
    # Sounds of a collection of your own would calibrate better than these.
    print(swinq.torch.quantize(model, lambda model: embeddings(model, batch)))
    after = embeddings(model, batch)
    for index, caption in enumerate(CAPTIONS):
        ranks = [(values[index] @ words.T).tolist() for values in (before, after)]
        best = [CAPTIONS[max(range(len(CAPTIONS)), key=row.__getitem__)] for row in ranks]
        same = "the same best caption" if best[0] == best[1] else f"`{best[1]}` instead of `{best[0]}`"
        cosine = float(before[index] @ after[index])
        print(f"{caption}: {ranks[0][index]:.3f} in float, {ranks[1][index]:.3f} in INT8; cosine {cosine:.5f}; {same}")


if __name__ == "__main__":
    main()
