"""The embedded image set: determinism, balance, distinct classes, contrast, and the atlas file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from wildtta.glyphs import CHARACTERS, Glyphs, glyph_atlas, load_atlas, save_atlas
from wildtta.glyphs.composition import uniform_draws


def splitmix64(seed: int, split: int, index: int, draw: int) -> float:
    """The documented hash in Python integers, which know no overflow."""
    golden, whole = 0x9E3779B97F4A7C15, 2**64 - 1

    def mix(z: int) -> int:
        z &= whole
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & whole
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & whole
        return z ^ (z >> 31)

    stream = mix(seed + split * golden)
    image = mix(stream + index * golden)
    return (mix(image + (draw + 1) * golden) >> 40 & 0xFFFFFF) / 2**24


def test_batching_and_order_do_not_change_an_image() -> None:
    glyphs = Glyphs(3000, seed=3)
    indices = np.random.default_rng(0).integers(0, 3000, 700)
    together = glyphs.images(indices)
    assert together.shape == (700, 3, 32, 32)
    assert together.dtype == torch.uint8
    in_64s = torch.cat([glyphs.images(indices[i : i + 64]) for i in range(0, 700, 64)])
    one_by_one = torch.stack([glyphs[int(i)][0] for i in indices[:300]])
    assert torch.equal(together, in_64s)
    assert torch.equal(together[:300], one_by_one)


def test_a_longer_set_begins_with_the_shorter_one() -> None:
    assert torch.equal(Glyphs(100_000).images(range(50)), Glyphs(50).images(range(50)))


def test_seed_and_split_give_other_images_of_the_same_classes() -> None:
    sets = [Glyphs(200, seed=seed, split=split) for seed in (0, 1, -5, 2**40) for split in ("train", "test")]
    images = [glyphs.images(range(200)).float() for glyphs in sets]
    for i, one in enumerate(images):
        assert np.array_equal(sets[i].labels, sets[0].labels)
        for other in images[:i]:
            assert (one - other).abs().mean() > 20


def test_draws_are_the_documented_hash_and_uniform() -> None:
    indices = torch.tensor([0, 1, 199, 123_456_789])
    drawn = uniform_draws(indices, seed=7, split="test", count=5)
    expected = [[splitmix64(7, 0x7465, int(i), j) for j in range(5)] for i in indices]
    assert drawn.tolist() == expected
    many = uniform_draws(torch.arange(20_000), seed=0, split="train", count=8).double()
    assert (many.mean(0) - 0.5).abs().max() < 5 * (1 / 12 / 20_000) ** 0.5
    correlations = torch.corrcoef(torch.cat((many, many.roll(1, 0)), dim=1).T) - torch.eye(16)
    assert correlations.abs().max() < 5 / 20_000**0.5


def test_classes_are_balanced_in_every_run_of_200() -> None:
    glyphs = Glyphs(1000)
    assert glyphs.labels.dtype == np.int64
    assert len(glyphs.classes) == len(set(glyphs.classes)) == 200
    for start in (0, 37, 800):
        assert sorted(glyphs.labels[start : start + 200]) == list(range(200))
    assert glyphs[203][1] == 3
    assert glyphs[-1][1] == 199


def test_every_class_has_ink_in_every_face_and_none_is_the_missing_glyph() -> None:
    atlas = glyph_atlas()
    assert atlas.shape == (200, 12, 64, 64)
    extents = []
    for across in (2, 3):
        used = (atlas > 0).any(across).int()
        first, last = used.argmax(2), 63 - used.flip(2).argmax(2)
        assert (first + last - 63).abs().max() <= 1, "the ink is in the middle"
        extents.append(last - first + 1)
    extent = torch.maximum(*extents)
    assert extent.min() >= 42
    assert extent.max() <= 46
    # A face without the character would draw its ".notdef" box, the same for every such class.
    for face in range(12):
        assert len(torch.unique(atlas[:, face].flatten(1), dim=0)) == 200


def test_no_two_classes_look_alike() -> None:
    """In each face the closest other class, also when turned by 10 or 20 degrees, is clearly another shape."""
    masks = F.interpolate(glyph_atlas().float(), size=(32, 32), mode="area").transpose(0, 1)
    angles = torch.deg2rad(torch.tensor([-20.0, -10.0, 0.0, 10.0, 20.0]))
    for face in masks:
        upright = F.normalize(face.flatten(1) - face.flatten(1).mean(1, keepdim=True))
        for angle in angles:
            matrix = torch.tensor([[angle.cos(), -angle.sin(), 0], [angle.sin(), angle.cos(), 0]]).expand(200, 2, 3)
            grid = F.affine_grid(matrix, [200, 1, 32, 32], align_corners=False)
            turned = F.grid_sample(face.unsqueeze(1), grid, align_corners=False).flatten(1)
            likeness = F.normalize(turned - turned.mean(1, keepdim=True)) @ upright.T
            likeness.fill_diagonal_(0)
            first, second = divmod(int(likeness.argmax()), 200)
            assert likeness.max() < 0.95, f"{CHARACTERS[first]} and {CHARACTERS[second]}: {likeness.max():.3f}"


def test_ink_and_paper_differ_in_every_image() -> None:
    grey = Glyphs(2000).images(range(2000)).float().mean(1).flatten(1)
    low, high = grey.quantile(0.02, dim=1), grey.quantile(0.98, dim=1)
    # Ink and paper differ by at least 0.12 · 255 = 31 levels; thin strokes and blending at the edges take some of it.
    assert (high - low).min() > 20
    assert grey.std(1).mean() > 15


def test_atlas_file_round_trip_and_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "new" / "atlas.npz"
    save_atlas(path, glyph_atlas())
    loaded = load_atlas(path)
    assert torch.equal(loaded, glyph_atlas())
    assert torch.equal(Glyphs(50, atlas=loaded).images(range(50)), Glyphs(50).images(range(50)))
    np.savez(path, masks=np.zeros((3, 12, 64, 64), np.uint8), characters=np.array(["a", "b", "c"]))
    with pytest.raises(ValueError, match="3 characters"):
        load_atlas(path)
    np.savez(path, something=np.zeros(3))
    with pytest.raises(ValueError, match="something"):
        load_atlas(path)


def test_wrong_requests_say_what_was_expected() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Glyphs(0)
    with pytest.raises(ValueError, match="'valid'"):
        Glyphs(5, split="valid")  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="5 glyphs"):
        Glyphs(5)[5]
    with pytest.raises(IndexError, match="0 … 4"):
        Glyphs(5).images([0, 9])
    assert Glyphs(5).images([]).shape == (0, 3, 32, 32)
