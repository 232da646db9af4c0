"""The same pipeline over torch.distributed.

ranks.py           what ranks say to each other, how a draw is shared out, what they must have in common
data_digest.py     whether ranks have the same rows: keyed digests
fsdp.py            models whose parameters are sharded over ranks by FSDP2
fsdp_backward.py   backward passes that gather them
"""

from discreet.distributed.ranks import Disagreement, same_weights

__all__ = ["Disagreement", "same_weights"]
