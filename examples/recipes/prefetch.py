"""The next batches are fetched, and copied to the device, while the current one is used."""

import torch
import windrow.torch
from torch.utils.data import DataLoader

samples = [{"image": torch.rand(3, 64, 64), "label": i} for i in range(64)]
device = "cuda" if torch.cuda.is_available() else "cpu"

if __name__ == "__main__":
    loader = DataLoader(samples, batch_size=32, num_workers=2, collate_fn=windrow.torch.collate_fn())
    # The loader has no pin_memory=True: the Prefetcher has page-locked memory.
    for batch in windrow.torch.Prefetcher(loader, depth=2, device=device):
        print(batch["image"].mean().item(), batch["image"].device)
