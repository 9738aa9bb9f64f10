"""On a GPU: recorded steps against eager ones, and the fast path against a plain implementation, over whole trajectories."""

from __future__ import annotations

import copy
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import wildtta

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, 2, 1)
        self.norm = nn.GroupNorm(4, outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1)
        self.norm2 = nn.GroupNorm(4, outside)
        self.short = nn.Conv2d(inside, outside, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.short(x) + self.norm2(self.second(torch.relu(self.norm(self.first(x))))))


def small_network() -> nn.Module:
    torch.manual_seed(0)
    stages = [nn.Sequential(Residual(a, b)) for a, b in ((3, 16), (16, 24), (24, 32), (32, 48))]
    network = nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))
    with torch.no_grad():
        network[-1].weight.mul_(12)
    return network.cuda().eval()


def stream(steps: int, batch: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(batch, 3, 32, 32, generator=generator).cuda() * 2 for _ in range(steps)]


def trajectory(network: nn.Module, method: str, images: list[Tensor], graphs: bool, **options: object) -> Tensor:
    adapter = wildtta.adapt(network, method, precision="fp32", **options)
    adapter.cuda_graphs = graphs
    answers = [adapter(batch) for batch in images]
    assert adapter.replayed == graphs, "graphs were expected to be used" if graphs else "graphs were used"
    return torch.stack([answer.cpu() for answer in answers])


@pytest.mark.parametrize("method", ["tent", "eta", "sar", "sar2", "sar2-efficient", "steady"])
@pytest.mark.parametrize("batch", [1, 32])
def test_recorded_steps_equal_eager_ones(method: str, batch: int) -> None:
    # In float64: in float32 the order of atomic additions alone drives two eager runs apart.
    network, images = small_network().double(), [batch_.double() for batch_ in stream(200, batch)]
    # SAR² on a random network is chaotic at its usual rate: rounding alone grows by a fifth with every step.
    options = {"lr": 5e-6, "warmup": 5, "reliable": 0.9} if method in ("sar2", "sar2-efficient", "steady") else {"lr": 1e-3}
    if method == "steady":
        options["evidence"] = False
    if method == "eta":  # with ten classes nearly every prediction is like the average one
        options |= {"reliable": 0.9, "redundant": 0.9}
    bare = trajectory(copy.deepcopy(network), "none", images, False)
    eager = trajectory(copy.deepcopy(network), method, images, False, **options)
    replayed = trajectory(copy.deepcopy(network), method, images, True, **options)
    assert (eager - replayed).abs().max() < 1e-5
    assert (eager - bare).abs().max() > 1e-3, "nothing was learned, so nothing was compared"


@pytest.mark.parametrize("method", ["tent", "sar"])
def test_fast_path_equals_plain(method: str) -> None:
    import plain

    network, images = small_network(), stream(200, 32)
    fast = trajectory(copy.deepcopy(network), method, images, True, lr=1e-3)
    twin = copy.deepcopy(network)
    names = wildtta.adapt(copy.deepcopy(network), method).learned_parameters
    threshold = 0.4 * torch.log(torch.tensor(10.0)).item()
    with torch.backends.cudnn.flags(allow_tf32=False):
        step = (
            plain.tent(twin, names, lr=1e-3) if method == "tent" else plain.sar(twin, names, lr=1e-3, threshold=threshold)
        )
        slow = torch.stack([step(batch).cpu() for batch in images])
    assert (fast - slow).abs().max() < 1e-3 * slow.abs().max()


def test_graphs_survive_reset_load_and_another_shape(tmp_path: Path) -> None:
    network, images = small_network(), stream(12, 4)
    adapter = wildtta.adapt(copy.deepcopy(network), "sar2", lr=1e-4, warmup=3, precision="fp32")
    first = [adapter(batch).cpu() for batch in images]
    adapter.save(tmp_path / "state.safetensors")
    after = adapter(images[0]).cpu()
    adapter(images[0][:3])  # another shape in between
    adapter.reset()
    again = [adapter(batch).cpu() for batch in images]
    scale = torch.stack(first).abs().max()
    assert (torch.stack(first) - torch.stack(again)).abs().max() < 1e-3 * scale
    adapter.load(tmp_path / "state.safetensors")
    assert (adapter(images[0]).cpu() - after).abs().max() < 1e-3 * scale


def batch_norm_network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32)]
    network = nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return network.cuda().eval()


@pytest.mark.parametrize("method", ["tent", "sar", "sar2", "steady"])
@pytest.mark.parametrize("batch", [4, 32])
def test_recorded_steps_leave_an_image_out_that_is_not_finite(method: str, batch: int) -> None:
    network, images = small_network().double(), [batch_.double() for batch_ in stream(30, batch)]
    for number in (10, 20):
        images[number][1, 0, 0, 0] = torch.nan
    options = {"lr": 5e-6, "warmup": 5, "reliable": 0.9} if method in ("sar2", "steady") else {"lr": 1e-3}
    answers = []
    for graphs in (False, True):
        adapter = wildtta.adapt(copy.deepcopy(network), method, precision="fp32", **options)
        adapter.cuda_graphs = graphs
        answers.append(torch.stack([adapter(batch_).cpu() for batch_ in images]))
        assert adapter.replayed == graphs
        assert (adapter.cost.left_out, adapter.cost.skipped) == (2, 0)
    assert answers[0][10, 1].isnan().all()
    assert (answers[0] - answers[1]).nan_to_num().abs().max() < 1e-5
    assert torch.equal(answers[0].isnan(), answers[1].isnan())


@pytest.mark.parametrize("statistics", ["mean", "median"])
def test_an_absurd_image_is_isolated_and_recording_goes_on(statistics: str) -> None:
    network, images = batch_norm_network().double(), [batch_.double() for batch_ in stream(20, 32)]
    images[12][3] = 1e5
    rest = [index for index in range(32) if index != 3]
    options = {"lr": 1e-3, "precision": "fp32", "statistics": statistics}
    ours, theirs = (wildtta.adapt(copy.deepcopy(network), "tent", **options) for _ in range(2))
    for number, batch in enumerate(images):
        answer = ours(batch)
        expected = theirs(batch[rest] if number == 12 else batch)
        assert ours.replayed == (number not in (0, 12))
        kept = answer[rest] if number == 12 else answer
        torch.testing.assert_close(kept, expected, rtol=1e-5, atol=1e-7)
        assert torch.isfinite(answer).all()
    assert ours.cost.left_out == 1


@pytest.mark.parametrize("own_streams", [False, True])
def test_threads_share_an_adapter_with_recorded_steps(own_streams: bool) -> None:
    """Each thread may have its own CUDA stream; the calls in the order reported give the same answers again."""
    network, images = small_network().double(), [batch.double() for batch in stream(40, 8)]
    adapter = wildtta.adapt(copy.deepcopy(network), "sar2", lr=5e-6, warmup=5, reliable=0.9, precision="fp32")
    torch.cuda.synchronize()
    answered: list[tuple[int, int, Tensor]] = []

    def work(index: int) -> None:
        mine = torch.cuda.Stream() if own_streams else torch.cuda.current_stream()
        with torch.cuda.stream(mine):
            for number in range(index, 40, 4):
                logits = adapter(images[number])
                answered.append((adapter.last.step, number, logits.cpu()))

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, index) for index in range(4)]:
            done.result()
    torch.cuda.synchronize()
    answered.sort(key=lambda call: call[0])
    assert [step for step, *_ in answered] == list(range(1, 41))
    twin = wildtta.adapt(copy.deepcopy(network), "sar2", lr=5e-6, warmup=5, reliable=0.9, precision="fp32")
    for _, number, logits in answered:
        torch.testing.assert_close(twin(images[number]).cpu(), logits, rtol=1e-6, atol=1e-7)


def test_an_adapter_records_while_another_thread_uses_the_device() -> None:
    """(It draws no random numbers there: torch lends the device's generator to whoever records.)"""
    busy, matrix = threading.Event(), torch.randn(256, 256, device="cuda")

    def other() -> None:
        while not busy.is_set():
            (matrix @ matrix).sum().item()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(other)
        try:
            trajectory(small_network(), "sar2", stream(10, 4), True, lr=1e-4, warmup=3)
        finally:
            busy.set()
        done.result()


@pytest.mark.parametrize("method", ["none", "tent", "sar"])
def test_choosing_a_precision_times_steps_and_changes_nothing(method: str) -> None:
    """Answers and counters are those of an adapter that was given the chosen precision; the second batch is recorded."""
    network, images = small_network(), stream(6, 16)
    options = {} if method == "none" else {"lr": 1e-4}
    adapter = wildtta.adapt(copy.deepcopy(network), method, precision="auto", **options)
    answers = [adapter(batch).cpu() for batch in images]
    chosen = adapter.engine.precision
    assert chosen in ("tf32", "bf16")
    twin = wildtta.adapt(copy.deepcopy(network), method, precision=chosen, **options)
    expected = [twin(batch).cpu() for batch in images]
    scale = torch.stack(expected).abs().max()
    assert (torch.stack(answers) - torch.stack(expected)).abs().max() < (5e-2 if chosen == "bf16" else 1e-2) * scale
    assert adapter.cost == twin.cost
    assert adapter.replayed == (method != "none")


def test_a_precision_chosen_while_paused_is_chosen_anew_for_steps() -> None:
    adapter = wildtta.adapt(small_network(), "tent", precision="auto", lr=1e-4)
    with adapter.paused():
        adapter(stream(1, 16)[0])
        assert adapter.engine.precision in ("tf32", "bf16")
        assert adapter.cost.forwards == 0
    adapter(stream(1, 16)[0])
    assert adapter.cost.forwards == 16
