"""A ragged attention block trained for ten steps, compiled: no padding outside of the attention itself, and no graph break."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
import windrow.torch.ops as ops

WIDTH, HEADS = 32, 4


class RaggedAttention(torch.nn.Module):
    """Tokens of all sequences one after the other; only attention sees them padded."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(100, WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, 1)

    def forward(self, tokens: torch.Tensor, offsets: torch.Tensor, longest: int) -> torch.Tensor:
        x = ops.take(self.embedding.weight, tokens)
        qkv, lengths = ops.repad(self.qkv(x), offsets, size=longest)
        q, k, v = qkv.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        is_real = torch.arange(longest) < lengths[:, None]
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=is_real[:, None, None])
        # Back to tokens, as many as came in.
        x = x + ops.unpad(attended.transpose(1, 2).flatten(2), lengths, size=tokens.shape[0])[0]
        scores: torch.Tensor = self.out(F.gelu(x))
        return scores.squeeze(-1)


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
    torch.manual_seed(1)
    for _ in range(10):
        sequences = [torch.randint(0, 100, (length,)) for length in torch.randint(2, 20, (8,)).tolist()]
        tokens, offsets = ops.ragged(sequences)
        yield tokens, offsets, max(map(len, sequences))


def train(compiled: bool) -> list[float]:
    torch.manual_seed(0)
    model = RaggedAttention()
    step = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager") if compiled else model
    optimizer, losses = torch.optim.Adam(model.parameters(), 0.01), []
    for tokens, offsets, longest in batches():
        loss = F.mse_loss(step(tokens, offsets, longest), tokens / 100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    eager, compiled = train(compiled=False), train(compiled=True)
    torch.testing.assert_close(torch.tensor(compiled), torch.tensor(eager), rtol=1e-4, atol=1e-6)
    print("loss", f"{compiled[0]:.4f}", "to", f"{compiled[-1]:.4f}", "in ten steps, compiled as in eager mode")
