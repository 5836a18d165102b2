"""windrow behind every caller of default_collate, those in libraries too."""

import torch
import windrow.torch
from torch.utils.data import DataLoader, default_collate

samples = [{"state": torch.rand(14).numpy(), "reward": 0.5} for _ in range(8)]

if __name__ == "__main__":
    expected = default_collate(samples)
    # The replacement is for the whole process, until the end of the block.
    with windrow.torch.install():
        assert torch.equal(default_collate(samples)["state"], expected["state"])
        # Workers that are spawned start without it.
        spawned = {"num_workers": 1, "multiprocessing_context": "spawn", "worker_init_fn": windrow.torch.install}
        for batch in DataLoader(samples, batch_size=4, **spawned):
            print(batch["state"].shape, batch["reward"])
