"""The tokens that masked language modelling hides, as transformers' collator draws them."""

from __future__ import annotations

import sys
from typing import Any, Mapping, Optional, Sequence, Tuple, cast

import windrow as wr
from windrow._fields import numpy, refusal
from windrow._flattener import located


class TorchDraws:
    """Draws from torch's generator, the global one without a seed."""

    def __init__(self, seed: Optional[int]) -> None:
        import torch

        self.generator = None if seed is None else torch.Generator().manual_seed(seed)

    def chosen(self, share: Any, shape: Tuple[int, ...]) -> Any:
        """A mask of NumPy: True for the elements that were drawn, each with its share or all with the same."""
        import numpy as np
        import torch

        shares = torch.from_numpy(np.array(np.broadcast_to(share, shape), np.float32))
        return torch.bernoulli(shares, generator=self.generator).bool().numpy()

    def words(self, where: Any, num_words: int) -> Any:
        """A word below `num_words` for each element that is True. One is drawn for every element, as transformers does."""
        import torch

        drawn = torch.randint(num_words, where.shape, dtype=torch.long, generator=self.generator)
        return drawn.numpy()[where]


class NumpyDraws:
    """Draws from a generator of NumPy, the global one without a seed."""

    def __init__(self, seed: Optional[int]) -> None:
        import numpy as np

        self.generator = None if seed is None else np.random.default_rng(seed)

    def chosen(self, share: Any, shape: Tuple[int, ...]) -> Any:
        """Returns bools as `TorchDraws.chosen` does."""
        import numpy as np

        return (self.generator or np.random).binomial(1, share, size=shape).astype(bool)

    def words(self, where: Any, num_words: int) -> Any:
        """Returns word ids as `TorchDraws.words` does, but draws one for each element that is True."""
        import numpy as np

        integers = np.random.randint if self.generator is None else self.generator.integers
        return integers(0, num_words, size=where.sum(), dtype="int64")


def worker_number() -> Optional[int]:
    """The number of this worker of torch's loader; None elsewhere."""
    data = sys.modules.get("torch.utils.data")
    worker = None if data is None else data.get_worker_info()
    return None if worker is None else int(worker.id)


def draws(kind: str, seed: Optional[int], worker: Optional[int]) -> Any:
    """The source of random numbers of a worker, whose number is added to the seed if there is one."""
    return (TorchDraws if kind == "pt" else NumpyDraws)(None if seed is None else seed + (worker or 0))


def mask(collator: Any, ids: Any, special: Any, offsets: Any, source: Any) -> Tuple[Any, Any, Any, Any]:
    """The mask of a NumPy array of ids: which elements are to be predicted, which become the mask token, which another
    one, and those others (the last two are None if none are drawn). What is drawn, and in which order, is transformers'."""
    import numpy as np

    left_out, begins = special.astype(bool), None
    if offsets is not None:
        begins = begins_of_words(offsets, left_out)
        left_out = begins != range(ids.shape[1])
    chosen = source.chosen(np.where(left_out, 0.0, float(collator.mlm_probability)), ids.shape)
    if begins is not None:
        chosen = np.take_along_axis(chosen, begins.clip(min=0), 1) & (begins >= 0)
    replaced = source.chosen(float(collator.mask_replace_prob), ids.shape) & chosen
    if collator.mask_replace_prob == 1 or collator.random_replace_prob == 0:
        return chosen, replaced, None, None
    # 0.1 / (1 - 0.9) is above 1.
    share = min(1.0, collator.random_replace_prob / (1 - collator.mask_replace_prob))
    others = source.chosen(share, ids.shape) & chosen & ~replaced
    return chosen, replaced, others, source.words(others, len(collator.tokenizer))


def offsets_of(features: Sequence[Any], size: int, side: str) -> Any:
    """The start and end of each token in its text: [N, size, 2], zeros where there is padding. KeyError without the key
    'offset_mapping', ShapeError unless it has one pair for each token, DTypeError unless these are of whole numbers."""
    import numpy as np

    rows = []
    for index, feature in enumerate(features):
        if not isinstance(feature, Mapping) or "offset_mapping" not in feature:
            text = "the key 'offset_mapping' is missing; whole_word_mask=True needs it: call the tokenizer with return_offsets_mapping=True"
            raise located(KeyError(f"sample {index}: {text}"), index, "offset_mapping")
        count = len(feature["input_ids"])
        try:
            row = np.asarray(feature["offset_mapping"])
        except ValueError as error:  # The entries have several lengths.
            raise refusal(wr.ShapeError, index, "offset_mapping", (count, 2), error, "one pair for each token") from None
        if row.shape != (count, 2) and row.size + count > 0:
            raise refusal(wr.ShapeError, index, "offset_mapping", (count, 2), row.shape, "one pair for each token")
        if row.size and row.dtype.kind not in "iu":
            raise refusal(wr.DTypeError, index, "offset_mapping", "whole numbers", row.dtype.name)
        rows.append(row.reshape(-1, 2).astype("int64"))
    return numpy(wr.pad(rows, dims=0, side=cast(Any, side), size=size))


def begins_of_words(offsets: Any, special: Any) -> Any:
    """The position of the first token of each token's word, -1 for special tokens. A word begins where a token does not
    begin where the last one ends, and after a special token. `special` is of bool."""
    import numpy as np

    ends, follows = np.roll(offsets[..., 1], 1, axis=1), np.roll(special, 1, axis=1)
    ends[:, :1], follows[:, :1] = -1, False
    is_first = ~special & ((offsets[..., 0] != ends) | follows)
    begins = np.maximum.accumulate(np.where(is_first, np.arange(special.shape[1]), -1), axis=1)
    return np.where(special, -1, begins)
