"""Images in the layout that suits the CPU's convolutions: same numbers, and networks that cannot take it still run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import wildtta
from wildtta.kernels import layout
from wildtta.kernels.layout import SMALLEST_BATCH, MapLayout


@pytest.fixture(autouse=True)
def _small_images_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(layout, "SMALLEST_INPUT", 1)
    yield
    torch.set_num_threads(threads)


class Recorder(nn.Module):
    """Remembers the layouts that it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def forward(self, maps: Tensor) -> Tensor:
        self.seen.append(maps.is_contiguous(memory_format=torch.channels_last) and not maps.is_contiguous())
        return maps


def network(flatten: nn.Module | None = None, recorder: Recorder | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        recorder or nn.Identity(),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.AdaptiveAvgPool2d(4),
        flatten or nn.Flatten(),
        nn.Linear(128, 10),
    ).eval()


class ViewAsRows(nn.Module):
    """Refuses maps whose channels lie together."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.view(len(maps), -1)


def images(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, 3, 12, 12, generator=torch.Generator().manual_seed(1), dtype=dtype)


def test_the_layout_spreads_through_the_network_and_numbers_stay() -> None:
    recorder = Recorder()
    given = network(recorder=recorder)
    plain = given(images(16))
    laid = MapLayout(given).run(given, images(16))
    assert recorder.seen == [False, True]
    torch.testing.assert_close(laid, plain, rtol=1e-5, atol=1e-6)


def test_adapting_learns_the_same_in_either_layout() -> None:
    answers = []
    for channels_last in (True, False):
        adapter = wildtta.adapt(network(), "sar", reliable=None, recovery=None, lr=0.01)
        assert adapter.engine.fast.layout.channels_last
        adapter.engine.fast.layout.channels_last = channels_last
        answers.append(torch.stack([adapter(images(16)) for _ in range(10)]))
    torch.testing.assert_close(answers[0], answers[1], rtol=1e-4, atol=1e-5)
    assert not torch.equal(answers[0][0], answers[0][9])


def test_a_network_that_relies_on_its_maps_order_gets_images_as_they_came() -> None:
    stubborn = network(flatten=ViewAsRows())
    maps = MapLayout(stubborn)
    torch.testing.assert_close(maps.run(stubborn, images(16)), stubborn(images(16)), rtol=0, atol=0)
    assert not maps.channels_last
    adapter = wildtta.adapt(stubborn, "tent", lr=0.01)
    assert adapter(images(16)).shape == (16, 10)


def test_an_error_of_the_network_itself_is_raised() -> None:
    given = network()
    with pytest.raises(RuntimeError, match="channels"):
        MapLayout(given).run(given, torch.randn(16, 5, 12, 12))


def test_small_images_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert not MapLayout(network()).suits(images(64))
    assert MapLayout(network()).suits(torch.zeros(16, 3, 224, 224))


def test_small_batches_float64_and_networks_without_maps_stay_as_they_are() -> None:
    maps = MapLayout(network())
    assert maps.suits(images(SMALLEST_BATCH))
    assert not maps.suits(images(SMALLEST_BATCH - 1))
    assert not maps.suits(images(16, torch.float64))
    assert not MapLayout(nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.Flatten(), nn.LayerNorm(72))).suits(images(16))


def test_a_batch_is_passed_in_parts_and_learned_from_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the batch in one piece, in methods whose losses look at all samples together."""
    recorder, answers = Recorder(), []
    for largest in (5 * 3 * 12 * 12, 1 << 30):
        monkeypatch.setattr(layout, "LARGEST_PART", largest)
        adapter = wildtta.adapt(network(recorder=recorder), "sar2", warmup=1, reliable=None, recovery=None, lr=1e-3)
        recorder.seen.clear()
        answers.append(torch.stack([adapter(images(16)) for _ in range(10)]))
        if largest < 1 << 30:
            assert len(recorder.seen) == 10 * 2 * 4, "16 images in four parts, two passes"
            assert all(recorder.seen)
    torch.testing.assert_close(answers[0], answers[1], rtol=1e-4, atol=1e-5)
    assert (answers[0][0] - answers[0][9]).abs().max() > 1e-2


def test_one_thread_is_given_sixteen_images_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch computes 1×1 convolutions of fewer with a slower library there."""
    monkeypatch.setattr(layout, "LARGEST_PART", 5 * 3 * 12 * 12)
    maps = MapLayout(network())
    assert [len(part) for part in maps.parts(images(40))] == [5] * 8
    torch.set_num_threads(1)
    assert [len(part) for part in maps.parts(images(40))] == [16, 16, 8]
    assert [len(part) for part in maps.parts(images(16))] == [16]


def test_a_hook_sees_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "LARGEST_PART", 3 * 12 * 12)
    adapter = wildtta.adapt(network(), "tent", lr=0.01)
    seen: list[int] = []
    adapter.network[0].register_forward_hook(lambda module, given, result: seen.append(len(result)))
    adapter(images(16))
    assert seen == [16]


def test_a_network_that_returns_more_than_logits_is_passed_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, maps: Tensor) -> dict[str, Tensor]:
            return {"logits": self.inner(maps)}

    monkeypatch.setattr(layout, "LARGEST_PART", 3 * 12 * 12)
    answer = wildtta.adapt(Named().eval(), "tent", lr=0.01, head="inner.8")(images(16))
    assert answer["logits"].shape == (16, 10)
