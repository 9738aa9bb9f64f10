"""Whether remembered images are of the kind of the latest ones."""

from __future__ import annotations

import numpy as np
import torch

from wildtta.corruptions import corrupt
from wildtta.glyphs import Glyphs
from wildtta.glyphs.networks import normalise
from wildtta.guard.appearance import alike, familiar, kind, novelty, thumbnail


def test_the_values_are_those_of_numpy() -> None:
    images = torch.rand(3, 2, 5, 7, generator=torch.Generator().manual_seed(0))
    values = images.double().numpy()
    rough = np.diff(values, axis=3).reshape(3, 2, -1)
    flat = values.reshape(3, 2, -1)
    logs = [np.log(part.var(2, ddof=1) + 1e-6) for part in (flat, rough)]
    np.testing.assert_allclose(kind(images).numpy(), np.concatenate([flat.mean(2), *logs], axis=1), atol=1e-5)


def test_images_of_one_corruption_are_alike_and_others_are_not() -> None:
    glyphs = Glyphs(128).images(np.arange(128))
    kinds = {
        name: kind(normalise(corrupt(glyphs, name, 4, seed=0)))
        for name in ("gaussian_noise", "defocus_blur", "contrast")
    }
    for name, own in kinds.items():
        assert float(alike(own[:64], own[64:]).mean()) > 0.85
        for other, theirs in kinds.items():
            if other != name:
                assert float(alike(own, theirs).mean()) < 0.05


def test_a_kind_is_known_where_enough_of_it_is_remembered() -> None:
    glyphs = Glyphs(256).images(np.arange(256))
    noise, blur, pale = (
        kind(normalise(corrupt(glyphs, name, 4, seed=0))) for name in ("gaussian_noise", "defocus_blur", "contrast")
    )
    both = torch.cat([noise[:128], blur[:128]])
    for known, latest, expected in (
        (noise[:128], noise[128:160], 1),
        (noise[:128], blur[:32], 0),
        (both, noise[128:160], 1),
        (both, blur[128:160], 1),
        (both, pale[:32], 0),
        (torch.cat([noise[:248], blur[:4]]), blur[128:160], 0),
        (noise[:8], noise[8:40], 0),
    ):
        assert float(familiar(known, latest)) == expected


def test_images_that_are_all_alike_are_no_newer_for_it() -> None:
    """Somebody who sends images of one brightness and contrast does not make them a new kind."""
    noise = kind(normalise(corrupt(Glyphs(160).images(np.arange(160)), "gaussian_noise", 4, seed=0)))
    middle = noise[:128].mean(0)
    same = middle + 0.01 * (noise[128:] - middle)
    assert float(familiar(noise[:128], same)) == 1
    assert float(alike(noise[:128], same).mean()) < 0.05


def test_what_is_no_image_is_like_nothing() -> None:
    tokens = kind(torch.ones(4, 9, dtype=torch.int64))
    assert tokens.shape == (4, 0)
    assert float(familiar(tokens, tokens)) == 0
    assert alike(tokens, tokens).tolist() == [0, 0, 0, 0]
    assert float(novelty(thumbnail(torch.ones(4, 9, dtype=torch.int64)), tokens)) == 1


def test_images_that_repeat_each_other_are_nothing_new() -> None:
    glyphs = normalise(Glyphs(160).images(np.arange(160)))
    known, others = thumbnail(glyphs[:128]), thumbnail(glyphs[128:])
    stuck = glyphs[:1] + 0.02 * torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert float(novelty(known, others)) == 1
    assert float(novelty(known, thumbnail(stuck))) == 0
    np.testing.assert_allclose(
        thumbnail(glyphs[:2]).view(2, 3, 4, 4)[1, 2, 3, 0], glyphs[1, 2, 24:, :8].mean(), rtol=1e-5
    )
