"""Which of the two families of the papers' learning rates a network belongs to."""

from __future__ import annotations

import re
from typing import Literal

from torch import nn

from wildtta.network.norms import is_norm

Family = Literal["convolutional", "transformer"]
_ATTENDS = re.compile(r"atte?n|xca$", re.IGNORECASE)
"""Class names of layers that attend: ViTSelfAttention, GPT2Attention, ClassAttn, XCA …"""
_QUERIES = re.compile(r"(^|_)(q|qkv|query|queries|wqkv|in_proj)(_|$)|^c_attn$|query_key_value", re.IGNORECASE)
"""Names of what computes queries in them: a squeeze-and-excitation layer may be called attention too, but has none."""


def family_of(network: nn.Module) -> Family:
    """``transformer`` where blocks attend or only tokens are mixed, else ``convolutional``.

    Mixers (MLP-Mixer, gMLP, FNet) are blocks of linear layers and norms over the tokens of a patch or word embedding, as
    transformers are, and learn at their rates. A convolutional network that only pools by attention (CLIP's ResNets) is
    convolutional.
    """
    attending = sum(map(_attends, network.modules()))
    pools = attending == 1 and any(
        set(part.kernel_size) != {1} and not _cuts_patches(part) for part in _convolutions(network)
    )
    return "transformer" if (attending and not pools) or _mixes_tokens(network) else "convolutional"


def _convolutions(network: nn.Module) -> list[nn.Conv1d | nn.Conv2d | nn.Conv3d]:
    return [module for module in network.modules() if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)]


def _cuts_patches(convolution: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> bool:
    """Whether its windows neither overlap nor leave anything out, as in a patch embedding."""
    return tuple(convolution.kernel_size) == tuple(convolution.stride)


def _attends(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return True
    names = (name for name, _ in (*module.named_children(), *module.named_parameters(recurse=False)))
    return _ATTENDS.search(type(module).__name__) is not None and any(map(_QUERIES.search, names))


def _mixes_tokens(network: nn.Module) -> bool:
    """Tokens come from an embedding of words, or of patches by a convolution, and nothing else convolves."""
    modules = list(network.modules())
    spatial = [module for module in _convolutions(network) if set(module.kernel_size) != {1}]
    patches = [module for module in spatial if _cuts_patches(module)]
    words = any(isinstance(module, nn.Embedding) for module in modules)
    embeds = (len(spatial) == len(patches) == 1) or (words and not spatial)
    norms = [module for module in modules if is_norm(module)]
    return embeds and bool(norms) and not any(isinstance(norm, nn.BatchNorm2d | nn.GroupNorm) for norm in norms)
