"""What is done to scores, apart from the arrays: hashable, the same for every form."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Scoring:
    """Static arguments of attention; see `packed_attention` for their meaning.

    Attributes:
        window: None also where the window is data.
        windows: what a window that is data can be; None: anything.
    """

    scale: float
    softcap: float = 0.0
    window: int | None = None
    windows: tuple[int, ...] | None = None
