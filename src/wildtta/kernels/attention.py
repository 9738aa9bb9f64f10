"""Attention with TF32 tensor cores, forward and backward, without ever writing the N×N matrix.

For queries Q, keys K and values V [N, D] of one head, with s the scale::

    forward   S = s·Q Kᵀ,  P = softmax(S),  O = P V;  L = log Σ exp S is kept of each row
    backward  δ_i = Σ_d dO_id O_id,  P = exp(S − L),  dP = dO Vᵀ,  dS = P ∘ (dP − δ)
              dQ = s·dS K,  dK = s·dSᵀ Q,  dV = Pᵀ dO

(FlashAttention-2, Dao 2023, https://arxiv.org/abs/2307.08691.) Products take TF32 operands and add in float32, as torch's
matrix products do where ``torch.backends.cuda.matmul.allow_tf32``; everything else is float32. torch's own attention for
float32 ignores that switch and multiplies without tensor cores.

One kernel goes over blocks of queries (O; and dQ with δ), one over blocks of keys (dK and dV), so that no two programs
write to the same place. Exponentials are to the base 2, which is what the hardware has; L is kept in that base.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from wildtta.kernels.operation import Gradients, Operation, generation, jit

WIDTHS = (16, 32, 64, 128)
LONGEST = 4096
"""Longer sequences are left to torch: they have not been measured."""


class Blocks(NamedTuple):
    """How a kernel cuts its work: queries and keys at a time, warps that share a program, loads in flight."""

    queries: int
    keys: int
    warps: int
    stages: int


class Plan(NamedTuple):
    """The cuts of the three kernels, and whether operands are rounded to TF32 (the hardware alone cuts digits off)."""

    forward: Blocks
    queries: Blocks
    keys: Blocks
    rounded: bool = True


def plan_for(width: int, device: torch.device) -> Plan:
    """Blocks of which two or three fit into a multiprocessor's registers and shared memory at a time.

    float32 takes twice the room of the types that flash attention is known for, so they are smaller than usual. Loops go
    in steps of 32: of 197 tokens, 27 are then padding, with 64 it would be 59.
    """
    if width > 64:
        return Plan(Blocks(64, 32, 4, 1), Blocks(64, 16, 4, 1), Blocks(16, 64, 8, 1))
    # Hopper's tensor cores read operands from shared memory; elsewhere they take registers, of which there are too few.
    keys = Blocks(32, 64, 4, 2) if generation(device) == 9 else Blocks(32, 64, 8, 1)
    return Plan(Blocks(128, 32, 8, 2), Blocks(64, 32, 4, 2), keys)


# -- kernels -------------------------------------------------------------------------------------------------------------
# Triton reads the annotations: of what is not constant they say ``tl.tensor``, pointers and numbers too. A tensor
# [batch, head, row, WIDTH] comes as its pointer and the strides of its first three dimensions.


@jit
def _product(a: tl.tensor, b: tl.tensor) -> Any:
    return tl.dot(a, b, input_precision="tf32")


INTERPRETED = tl.constexpr(not isinstance(_product, triton.JITFunction))


@jit
def _to_tf32(x: tl.tensor, ROUNDED: tl.constexpr) -> Any:
    """The nearest number with 10 bits after the point. Cut off instead, every product would be too small on average."""
    if INTERPRETED:
        bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)  # what is not a number stays none
    if ROUNDED:
        return tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    return x


@jit
def _load(pointer: tl.tensor, rows: tl.tensor, stride: tl.tensor, length: tl.tensor, WIDTH: tl.constexpr) -> Any:
    """Rows of a head [rows, WIDTH]; 0 beyond its length."""
    columns = tl.arange(0, WIDTH)
    return tl.load(pointer + rows[:, None] * stride + columns[None, :], mask=rows[:, None] < length, other=0.0)


@jit
def _operand(
    pointer: tl.tensor, rows: tl.tensor, stride: tl.tensor, length: tl.tensor, WIDTH: tl.constexpr, ROUNDED: tl.constexpr
) -> Any:
    """Rows of a head for a product."""
    return _to_tf32(_load(pointer, rows, stride, length, WIDTH), ROUNDED)


@jit
def _store(
    pointer: tl.tensor, values: tl.tensor, rows: tl.tensor, stride: tl.tensor, length: tl.tensor, WIDTH: tl.constexpr
) -> None:
    columns = tl.arange(0, WIDTH)
    tl.store(pointer + rows[:, None] * stride + columns[None, :], values, mask=rows[:, None] < length)


@jit
def _head(pointer: tl.tensor, batch_stride: tl.tensor, head_stride: tl.tensor, heads: tl.tensor) -> Any:
    """Where this program's head begins; in 64 bits, large batches go beyond 32."""
    head = tl.program_id(1)
    return pointer + (head // heads).to(tl.int64) * batch_stride + (head % heads).to(tl.int64) * head_stride


@jit
def forward_kernel(
    q: tl.tensor, q_batch: tl.tensor, q_head: tl.tensor, q_row: tl.tensor,
    k: tl.tensor, k_batch: tl.tensor, k_head: tl.tensor, k_row: tl.tensor,
    v: tl.tensor, v_batch: tl.tensor, v_head: tl.tensor, v_row: tl.tensor,
    out: tl.tensor, out_batch: tl.tensor, out_head: tl.tensor, out_row: tl.tensor,
    logsums: tl.tensor,
    heads: tl.tensor, q_length: tl.tensor, k_length: tl.tensor, log2_scale: tl.tensor,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, ROUNDED: tl.constexpr,
) -> None:
    """O and L of a block of queries; ``log2_scale`` is s·log₂e."""
    q, k = _head(q, q_batch, q_head, heads), _head(k, k_batch, k_head, heads)
    v, out = _head(v, v_batch, v_head, heads), _head(out, out_batch, out_head, heads)
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    query = _operand(q, rows, q_row, q_length, WIDTH, ROUNDED)
    largest = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    answer = tl.zeros([QUERIES, WIDTH], tl.float32)
    for start in range(0, k_length, KEYS):
        columns = start + tl.arange(0, KEYS)
        key = _operand(k, columns, k_row, k_length, WIDTH, ROUNDED)
        score = _product(query, tl.trans(key))
        score = tl.where(columns[None, :] < k_length, score, float("-inf"))
        # The scale comes after the product, here and backward: both then have the same scores, and it costs nothing
        # in a product with a subtraction. (It is positive, so that the largest stays the largest.)
        larger = tl.maximum(largest, tl.max(score, 1) * log2_scale)
        share = tl.exp2(score * log2_scale - larger[:, None])
        shrink = tl.exp2(largest - larger)
        total = total * shrink + tl.sum(share, 1)
        value = _operand(v, columns, v_row, k_length, WIDTH, ROUNDED)
        answer = answer * shrink[:, None] + _product(_to_tf32(share, ROUNDED), value)
        largest = larger
    _store(out, answer / total[:, None], rows, out_row, q_length, WIDTH)
    logsums += tl.program_id(1).to(tl.int64) * q_length
    tl.store(logsums + rows, largest + tl.log2(total), mask=rows < q_length)


@jit
def query_gradient_kernel(
    q: tl.tensor, q_batch: tl.tensor, q_head: tl.tensor, q_row: tl.tensor,
    k: tl.tensor, k_batch: tl.tensor, k_head: tl.tensor, k_row: tl.tensor,
    v: tl.tensor, v_batch: tl.tensor, v_head: tl.tensor, v_row: tl.tensor,
    out: tl.tensor, out_batch: tl.tensor, out_head: tl.tensor, out_row: tl.tensor,
    dout: tl.tensor, dout_batch: tl.tensor, dout_head: tl.tensor, dout_row: tl.tensor,
    dq: tl.tensor, dq_batch: tl.tensor, dq_head: tl.tensor, dq_row: tl.tensor,
    logsums: tl.tensor, deltas: tl.tensor,
    heads: tl.tensor, q_length: tl.tensor, k_length: tl.tensor, scale: tl.tensor, log2_scale: tl.tensor,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, ROUNDED: tl.constexpr,
) -> None:
    """dQ and δ of a block of queries: δ costs nothing here, where dO is at hand, and the other kernel needs it."""
    k, v = _head(k, k_batch, k_head, heads), _head(v, v_batch, v_head, heads)
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    first = tl.program_id(1).to(tl.int64) * q_length
    logsum = tl.load(logsums + first + rows, mask=rows < q_length, other=0.0)
    slope = _load(_head(dout, dout_batch, dout_head, heads), rows, dout_row, q_length, WIDTH)
    delta = tl.sum(slope * _load(_head(out, out_batch, out_head, heads), rows, out_row, q_length, WIDTH), 1)
    tl.store(deltas + first + rows, delta, mask=rows < q_length)
    slope = _to_tf32(slope, ROUNDED)
    query = _operand(_head(q, q_batch, q_head, heads), rows, q_row, q_length, WIDTH, ROUNDED)
    gradient = tl.zeros([QUERIES, WIDTH], tl.float32)
    for start in range(0, k_length, KEYS):
        columns = start + tl.arange(0, KEYS)
        key = _operand(k, columns, k_row, k_length, WIDTH, ROUNDED)
        value = _operand(v, columns, v_row, k_length, WIDTH, ROUNDED)
        share = tl.exp2(_product(query, tl.trans(key)) * log2_scale - logsum[:, None])
        # Keys beyond the length are 0, so that whatever share they seem to have adds nothing to dQ. The share itself may
        # overflow where all scores are far below 0.
        share = tl.where(columns[None, :] < k_length, share, 0.0)
        dscore = share * (_product(slope, tl.trans(value)) - delta[:, None])
        gradient += _product(_to_tf32(dscore, ROUNDED), key)
    _store(_head(dq, dq_batch, dq_head, heads), gradient * scale, rows, dq_row, q_length, WIDTH)


@jit
def key_gradient_kernel(
    q: tl.tensor, q_batch: tl.tensor, q_head: tl.tensor, q_row: tl.tensor,
    k: tl.tensor, k_batch: tl.tensor, k_head: tl.tensor, k_row: tl.tensor,
    v: tl.tensor, v_batch: tl.tensor, v_head: tl.tensor, v_row: tl.tensor,
    dout: tl.tensor, dout_batch: tl.tensor, dout_head: tl.tensor, dout_row: tl.tensor,
    dk: tl.tensor, dk_batch: tl.tensor, dk_head: tl.tensor, dk_row: tl.tensor,
    dv: tl.tensor, logsums: tl.tensor, deltas: tl.tensor,
    heads: tl.tensor, q_length: tl.tensor, k_length: tl.tensor, scale: tl.tensor, log2_scale: tl.tensor,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, ROUNDED: tl.constexpr,
) -> None:
    """dK and dV of a block of keys; both have the same strides.

    Everything is transposed, [keys, queries], so that both are sums over columns.
    """
    q, dout = _head(q, q_batch, q_head, heads), _head(dout, dout_batch, dout_head, heads)
    first = tl.program_id(1).to(tl.int64) * q_length
    logsums, deltas = logsums + first, deltas + first
    columns = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    key = _operand(_head(k, k_batch, k_head, heads), columns, k_row, k_length, WIDTH, ROUNDED)
    value = _operand(_head(v, v_batch, v_head, heads), columns, v_row, k_length, WIDTH, ROUNDED)
    key_gradient = tl.zeros([KEYS, WIDTH], tl.float32)
    value_gradient = tl.zeros([KEYS, WIDTH], tl.float32)
    for start in range(0, q_length, QUERIES):
        rows = start + tl.arange(0, QUERIES)
        query = _operand(q, rows, q_row, q_length, WIDTH, ROUNDED)
        slope = _operand(dout, rows, dout_row, q_length, WIDTH, ROUNDED)
        # Queries beyond the length: dO and δ are 0 there and exp(0 − 0) is finite, so that they add nothing.
        logsum = tl.load(logsums + rows, mask=rows < q_length, other=0.0)
        delta = tl.load(deltas + rows, mask=rows < q_length, other=0.0)
        share = tl.exp2(_product(key, tl.trans(query)) * log2_scale - logsum[None, :])
        value_gradient += _product(_to_tf32(share, ROUNDED), slope)
        dscore = share * (_product(value, tl.trans(slope)) - delta[None, :])
        key_gradient += _product(_to_tf32(dscore, ROUNDED), query)
    _store(_head(dk, dk_batch, dk_head, heads), key_gradient * scale, columns, dk_row, k_length, WIDTH)
    _store(_head(dv, dk_batch, dk_head, heads), value_gradient, columns, dk_row, k_length, WIDTH)


# -- launching -----------------------------------------------------------------------------------------------------------


def suits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernels know these shapes: float32 [B, H, N, D], D a power of 2 from 16 to 128, rows without gaps."""
    if not q.dim() == k.dim() == v.dim() == 4 or not q.dtype == k.dtype == v.dtype == torch.float32:
        return False
    if k.shape != v.shape or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3] or q.shape[3] not in WIDTHS:
        return False
    if not 0 < q.shape[2] <= LONGEST or not 0 < k.shape[2] <= LONGEST or q.shape[0] * q.shape[1] not in range(1, 65536):
        return False
    return q.device == k.device == v.device and all(tensor.stride(3) == 1 for tensor in (q, k, v))


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, plan: Plan | None = None) -> Tensor:
    """softmax(s·Q Kᵀ) V for what :func:`suits`; s is 1/√D where it is not given."""
    factor = 1.0 / math.sqrt(q.shape[3]) if scale is None else float(scale)
    packed = _packed(q, k, v)
    inputs = (q, k, v) if packed is None else (packed,)
    return Attention(factor, plan or plan_for(q.shape[3], q.device))(*inputs)


def _packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
    """The tensor [B, N, 3, H, D] of which q, k and v are slices, where one linear layer made all three; else None.

    Its gradient in one piece spares the copies that put three gradients together: these move as many bytes as the
    backward pass of the attention itself.
    """
    base = q._base
    if base is None or k._base is not base or v._base is not base or q.shape != k.shape:
        return None
    samples, heads, length, width = q.shape
    if base.numel() != 3 * q.numel() or not base.is_contiguous() or base.dtype != q.dtype or not base.requires_grad:
        return None
    strides = (length * 3 * heads * width, width, 3 * heads * width, 1)
    for position, tensor in enumerate((q, k, v)):
        begins = base.storage_offset() + position * heads * width
        if tensor.storage_offset() != begins or tensor.stride() != strides:
            return None
    return base.view(samples, length, 3, heads, width)


def _unpacked(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Three tensors of heads [B, H, N, D], from themselves or from one packed tensor."""
    return tensors[0].permute(2, 0, 3, 1, 4).unbind(0) if len(tensors) == 1 else tensors


def _with_strides(*tensors: Tensor) -> Iterator[Tensor | int]:
    """Each tensor, followed by its strides of batch, head and row."""
    for tensor in tensors:
        yield tensor
        yield from tensor.stride()[:3]


@dataclass(frozen=True)
class Attention(Operation):
    scale: float
    plan: Plan
    name: ClassVar[str] = "Attention at TF32"

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        q, k, v = _unpacked(inputs)
        samples, heads, length, width = q.shape
        # Laid out as [B, N, H, D]: what follows joins the heads of a token, and then has nothing to copy.
        out = torch.empty((samples, length, heads, width), dtype=q.dtype, device=q.device).transpose(1, 2)
        logsums = torch.empty((samples * heads, length), dtype=torch.float32, device=q.device)
        sizes = (heads, length, k.shape[2], self.scale * math.log2(math.e))
        forward_kernel[(triton.cdiv(length, self.plan.forward.queries), samples * heads)](
            *_with_strides(q, k, v, out), logsums, *sizes, **self._constants(width, self.plan.forward)
        )
        return out, out, logsums

    def backward(
        self, gradient: Tensor, inputs: Sequence[Tensor], kept: Sequence[Tensor], wanted: Sequence[bool]
    ) -> Gradients:
        q, k, v = _unpacked(inputs)
        out, logsums = kept
        dout = gradient if gradient.stride(3) == 1 else gradient.contiguous()
        gradients = tuple(torch.empty_like(value) for value in (inputs if len(inputs) == 1 else (q, k, k)))
        dq, dk, dv = _unpacked(gradients)
        samples, heads, length, width = q.shape
        sums = (logsums, torch.empty_like(logsums))
        sizes = (heads, length, k.shape[2], self.scale, self.scale * math.log2(math.e))
        queries, keys = self.plan.queries, self.plan.keys
        query_gradient_kernel[(triton.cdiv(length, queries.queries), samples * heads)](
            *_with_strides(q, k, v, out, dout, dq), *sums, *sizes, **self._constants(width, queries)
        )
        key_gradient_kernel[(triton.cdiv(k.shape[2], keys.keys), samples * heads)](
            *_with_strides(q, k, v, dout, dk), dv, *sums, *sizes, **self._constants(width, keys)
        )
        return gradients

    def by_torch(self, *inputs: Tensor) -> Tensor:
        q, k, v = _unpacked(inputs)
        return F.scaled_dot_product_attention(q, k, v, scale=self.scale)

    def _constants(self, width: int, blocks: Blocks) -> dict[str, Any]:
        return {
            "WIDTH": width,
            "QUERIES": blocks.queries,
            "KEYS": blocks.keys,
            "ROUNDED": self.plan.rounded,
            "num_warps": blocks.warps,
            "num_stages": blocks.stages,
            "enable_fp_fusion": True,  # a·b + c rounded once: the scale of the scores is free then
        }
