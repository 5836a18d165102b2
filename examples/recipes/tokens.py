"""Token sequences for a transformer: padded, or packed without padding."""

import functools

from torch.utils.data import DataLoader
from windrow.sequence import pack_tokens, pad_tokens

features = [{"input_ids": list(range(5, 5 + n)), "labels": list(range(5, 5 + n))} for n in (3, 7, 2, 5)]

if __name__ == "__main__":
    padded = functools.partial(pad_tokens, pad_to_multiple_of=8, pad_token_id=0)
    for batch in DataLoader(features, batch_size=2, collate_fn=padded):
        print(batch["input_ids"], batch["attention_mask"], batch["labels"])

    # cu_seqlens and max_seqlen are what variable-length attention takes; no value is read back for them.
    packed = functools.partial(pack_tokens, return_flash_attn_kwargs=True)
    for batch in DataLoader(features, batch_size=4, collate_fn=packed):
        assert batch["input_ids"].shape == (1, 17) and batch["max_length_q"] == 7
        print(batch["position_ids"], batch["cu_seq_lens_q"])
