"""torch samples on any device, assembled by windrow and used by torch, without a copy in between.

python examples/torch_consumer.py
"""

import torch

import windrow as wr

device = "cuda" if torch.cuda.is_available() and wr.cuda_available() else "cpu"
rows = [torch.arange(n, dtype=torch.int32, device=device) for n in (3, 1, 4, 1, 5)]

batch = wr.pad(rows, value=-1, dtype="int64", mask="real")
tokens, mask = batch.data.torch(), batch.mask.torch()

# Nothing has waited on a device: torch's current stream is ordered behind the batch.
print(f"{tokens.device}, {tuple(tokens.shape)}, mean of the real tokens {tokens[mask].float().mean().item():.2f}")
assert tokens.data_ptr() == batch.data.data_ptr()
