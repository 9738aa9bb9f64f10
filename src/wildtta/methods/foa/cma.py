"""CMA-ES: evolution strategy with covariance matrix adaptation, as pure functions of its state.

Hansen, The CMA Evolution Strategy: A Tutorial (arXiv 1604.00772), with active (negative) weights and the defaults of
the package ``cma``, https://github.com/CMA-ES/pycma, which FOA's authors use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

State = dict[str, Tensor]


@dataclass(frozen=True)
class CMA:
    """The strategy for vectors of ``size`` values, with ``population`` draws in each generation."""

    size: int
    population: int

    # -- constants ---------------------------------------------------------------------------------------------------------

    @cached_property
    def raw_weights(self) -> list[float]:
        """ln((λ + 1)/2) − ln i, divided so that the positive ones sum to 1."""
        raw = [math.log((self.population + 1) / 2) - math.log(i) for i in range(1, self.population + 1)]
        total = sum(weight for weight in raw if weight > 0)
        return [weight / total for weight in raw]

    @property
    def parents(self) -> int:
        """μ: how many of the best make the new mean."""
        return sum(weight > 0 for weight in self.raw_weights)

    @cached_property
    def effective(self) -> float:
        """μ_eff = 1/Σ w², the variance-effective number of parents."""
        return 1 / sum(weight**2 for weight in self.raw_weights[: self.parents])

    @property
    def rank_one(self) -> float:
        """c₁."""
        return min(1.0, self.population / 6) * 2 / ((self.size + 1.3) ** 2 + self.effective)

    @property
    def rank_mu(self) -> float:
        """c_μ."""
        effective = self.effective
        rate = 2 * (0.25 + effective + 1 / effective - 2) / ((self.size + 2) ** 2 + effective)
        return min(1 - self.rank_one, rate)

    @property
    def path_rate(self) -> float:
        """c_c."""
        return (4 + self.effective / self.size) / (self.size + 4 + 2 * self.effective / self.size)

    @property
    def step_path_rate(self) -> float:
        """c_σ."""
        return min(0.5, (self.effective + 2) / (self.size + self.effective + 3))

    @property
    def damping(self) -> float:
        """d_σ."""
        attenuated: float = 3 * (1 - 0.5 ** (self.size / 9))
        spread = max(1.0, attenuated) * math.sqrt((self.effective - 1) / (self.size + 1))
        return 1 + 2 * max(0.0, spread - 1) + self.step_path_rate

    @property
    def expected_length(self) -> float:
        """E‖N(0, I)‖; for many dimensions by the series that the package takes."""
        if self.size > 101:
            return math.sqrt(self.size) * (1 - 1 / (4 * self.size) + 1 / (32 * self.size**2))
        return math.sqrt(2) * math.exp(math.lgamma((self.size + 1) / 2) - math.lgamma(self.size / 2))

    @property
    def patience(self) -> float:
        """Generations between two decompositions of the covariance, which cost size³."""
        return 1 / (self.rank_one + self.rank_mu) / self.size / 10

    def weights(self, told: int) -> list[float]:
        """One weight for each of ``told`` vectors, best first; more than the population: the middle ones weigh 0."""
        positive, negative = self.raw_weights[: self.parents], self.raw_weights[self.parents :]
        total, squares = -sum(negative), sum(weight**2 for weight in negative)
        if total > 0:
            limits = (
                1 + self.rank_one / self.rank_mu,
                (1 - self.rank_one - self.rank_mu) / self.rank_mu / self.size,
                1 + 2 * (total**2 / squares) / (self.effective + 2),
            )
            negative = [weight * min(limits) / total for weight in negative]
        return [*positive, *[0.0] * (told - self.population), *negative]

    # -- a generation -------------------------------------------------------------------------------------------------------

    def first_state(self, device: torch.device) -> State:
        """Mean 0, step size 1, covariance 1 (its axes a little apart, as in the package)."""
        zeros = torch.zeros(self.size, dtype=torch.float64, device=device)
        variances = (1e-4 / self.size * torch.arange(self.size, dtype=torch.float64, device=device)).exp()
        return {
            "cma_mean": zeros,
            "cma_sigma": zeros.new_ones(()),
            "cma_path": zeros.clone(),
            "cma_step_path": zeros.clone(),
            "cma_covariance": torch.diag(variances),
            "cma_basis": torch.eye(self.size, dtype=torch.float64, device=device),
            "cma_axes": variances.sqrt(),
            "cma_generation": torch.zeros((), dtype=torch.int64),
            "cma_decomposed": torch.zeros((), dtype=torch.int64),
        }

    def prepared(self, state: State) -> State:
        """What a decomposition of the covariance changes, where it is time for one; else nothing."""
        generation, last = int(state["cma_generation"]), int(state["cma_decomposed"])
        if generation == last or generation < last + self.patience:
            return {}
        covariance = (state["cma_covariance"] + state["cma_covariance"].T) / 2
        variances, basis = torch.linalg.eigh(covariance)
        # The package adds to the diagonal where rounding has made the matrix indefinite.
        missing = (state["cma_axes"].min().square() - variances.min()) * (variances.min() <= 0)
        return {
            "cma_covariance": covariance + missing * torch.eye(self.size, dtype=covariance.dtype, device=basis.device),
            "cma_basis": basis,
            "cma_axes": (variances + missing).sqrt(),
            "cma_decomposed": state["cma_generation"].clone(),
        }

    def ask(self, state: State, draws: Tensor) -> Tensor:
        """Candidates m + σ C^½ z, [λ, N], from standard normal ``draws`` z; C^½ is the symmetric root."""
        basis, axes = state["cma_basis"], state["cma_axes"]
        return state["cma_mean"] + state["cma_sigma"] * ((draws @ basis) * axes) @ basis.T

    def tell(self, state: State, candidates: Tensor, losses: Tensor, known: int) -> State:
        """The state of the next generation, from candidates (the first ``known`` were asked for) and their losses."""
        size, effective = self.size, self.effective
        mean, sigma = state["cma_mean"], state["cma_sigma"]
        generation = int(state["cma_generation"]) + 1
        candidates = torch.cat([candidates[:known], self._clipped(state, candidates[known:])])
        ranked = candidates[losses.argsort(stable=True)]
        weights = candidates.new_tensor(self.weights(len(candidates)))
        new_mean = weights[: self.parents] @ ranked[: self.parents]
        moved = (new_mean - mean) / sigma

        rate = self.step_path_rate
        step_path = (1 - rate) * state["cma_step_path"]
        step_path = step_path + math.sqrt(rate * (2 - rate) * effective) * self._whitened(state, moved)
        length = step_path.square().sum() / (1 - (1 - rate) ** (2 * generation)) / size
        steady = (length - 1 < 1 + 4 / (size + 1)).to(moved.dtype)

        rate = self.path_rate
        path = (1 - rate) * state["cma_path"] + steady * math.sqrt(rate * (2 - rate) * effective) * moved
        decay = self.rank_one * (1 - (1 - steady) * rate * (2 - rate))
        steps = (ranked - mean) / sigma
        shares = self.rank_mu * weights
        lengths = torch.linalg.vector_norm(self._whitened(state, steps), dim=1)
        scaled = torch.where(shares < 0, shares * size / (lengths + 1e-9).square(), shares)
        covariance = (1 - decay - shares.sum()) * state["cma_covariance"]
        covariance = covariance + self.rank_one * torch.outer(path, path) + (steps.T * scaled) @ steps

        excess = torch.linalg.vector_norm(step_path) / self.expected_length - 1
        growth = (self.step_path_rate / self.damping * excess).clamp(-1, 1).exp()
        return {
            "cma_mean": new_mean,
            "cma_sigma": sigma * growth,
            "cma_path": path,
            "cma_step_path": step_path,
            "cma_covariance": covariance,
            "cma_generation": torch.tensor(generation),
        }

    def _whitened(self, state: State, vectors: Tensor) -> Tensor:
        """C^−½ applied to rows."""
        basis, axes = state["cma_basis"], state["cma_axes"]
        return ((vectors @ basis) / axes) @ basis.T

    def _clipped(self, state: State, candidates: Tensor) -> Tensor:
        """Candidates from elsewhere, drawn in to a Mahalanobis distance of √N + 2N/(N + 2) from the mean."""
        mean = state["cma_mean"]
        lengths = torch.linalg.vector_norm(self._whitened(state, candidates - mean), dim=1, keepdim=True)
        limit = math.sqrt(self.size) + 2 * self.size / (self.size + 2)
        clipped: Tensor = mean + (candidates - mean) / (lengths / state["cma_sigma"] / limit).clamp(min=1)
        return clipped
