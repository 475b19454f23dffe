"""Block sizes of the TPU kernels: one rule, and the bytes of VMEM they take.

A kernel holds a tile of `tokens` x `vocab` logits at a time. The rule, in words:

- Forward, a tile of tokens stays while the head streams past. `tokens` is 512, or 1,024
  where 512 would leave the head's traffic at more than 2/3 of the matmul's time (v6e);
  `vocab` is 1,024. Half the words, and at 128 words half the tokens, until it fits.
- Backward, a tile of the vocabulary stays while the tokens stream past, and with them
  the float32 sums of d_hidden, read and written once a tile of the vocabulary. `vocab`
  is the smallest multiple of 256 that keeps this traffic within 3/4 of the time of the
  three matmuls, less 128 words at a time until it fits; `tokens` is 512, or 256 or 128
  where only that leaves the traffic within 9/10 of the matmuls.
- No tile is larger than the arrays, rounded up to 128.

The compiler's own figures beside this table: `python -m rl_jax.kernels.estimate
--op=logprob --largest`. At 8,192 tokens, bfloat16, forward and backward:

           VMEM     D = 4,096, V = 151,936          D = 2,048, V = 128,256
    v5e    128 MiB  512 x 1024, 512 x 768 (1920)    512 x 1024, 512 x 768 (4224)
    v5p     64      512 x 1024, 512 x 512  (640)    512 x 1024, 512 x 512 (1792)
    v6e    128      1024 x 1024, 512 x 1280 (1920)  1024 x 1024, 512 x 1280 (4352)
    tpu7x   64      512 x 1024, 512 x 640  (640)    512 x 1024, 512 x 768 (1792)

(Tokens x words; in brackets the most words that compile backward, at as many tokens.)

Legend: D model width, V vocabulary of this shard, N tokens.
"""

import dataclasses
import math

from ..platform import Generation, KernelError

# Words of z made at a time, two such matmuls a trip of a loop: enough to hide their
# start-up (about 200 cycles in 8,000 on a v5e), and compiled in seconds.
ROWS = 256
# Width of d_weight and d_hidden made at a time, for the same reasons. 512 costs 1 %
# more on a v5e and 5 % on a tpu7x, by bundles.
COLUMNS = 1024
# What the sums below may come to; they come within 2 MiB of what the compiler takes.
VMEM_SHARE = 0.92


@dataclasses.dataclass(frozen=True)
class Width:
    """Of one model: its width, and bytes of a number of hidden states and head."""

    D: int
    hidden_bytes: int
    head_bytes: int

    @property
    def padded(self) -> int:
        return round_up(self.D, 128)

    @property
    def product_bytes(self) -> int:
        """Products are made in the wider of both dtypes."""
        return max(self.hidden_bytes, self.head_bytes)

    @property
    def mixed(self) -> bool:
        return self.hidden_bytes != self.head_bytes


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Sizes of a kernel's tiles.

    Attributes:
        tokens, vocab: multiples of 128.
        rows: words of z made at a time, a multiple of 128.
        columns: of d_weight and d_hidden made at a time, a multiple of 128.
        cores: that share the words of a backward kernel.
    """

    tokens: int
    vocab: int
    rows: int = ROWS
    columns: int = COLUMNS
    cores: int = 1


def num_cores(generation: Generation) -> int:
    """TensorCores behind one jax device: a v5p chip is two that share its memory."""
    return 2 if generation.name == "v5p" else 1


def stats_blocks(
    generation: Generation, N: int, V: int, widths: tuple[Width, ...]
) -> Blocks:
    """Blocks of a forward kernel over one model, or over a student and its teacher.

    Raises:
        KernelError: if not even the smallest fit.
    """
    # Tokens at which a word takes as long to stream as to multiply.
    balance = generation.matmul_flops / generation.memory_bytes_per_sec
    tokens = 512 if balance <= 2 / 3 * 512 else 1024
    tokens, vocab = _clamped(generation, N, V, tokens, 1024)
    while not _fits(generation, stats_bytes(tokens, vocab, widths)):
        if vocab > 128:
            vocab = round_up(vocab // 2, 128)
        elif tokens > 128:
            tokens = round_up(tokens // 2, 128)
        else:
            _refuse(generation, widths)
    return _blocks(generation, tokens, vocab, widths)


def grads_blocks(
    generation: Generation, N: int, V: int, widths: tuple[Width, ...]
) -> Blocks:
    """Blocks of a backward kernel; the student's width comes first.

    Raises:
        KernelError: if not even the smallest fit.
    """
    balance = generation.matmul_flops / generation.memory_bytes_per_sec
    # For a number of hidden: it is read, its sum is read and written, and a word costs
    # three multiply-adds. Float32 products are six passes over bfloat16 parts.
    passes = 6 if widths[0].product_bytes == 4 else 1
    traffic = sum(w.hidden_bytes for w in widths) + 8
    even = traffic * balance / (6 * passes)  # words at which both take the same time
    found = []
    for most in (512, 256, 128):
        wanted = round_up(math.ceil(even / 0.75), 256)
        tokens, vocab = _clamped(generation, N, V, most, wanted)
        enough = min(even / 0.9, vocab)
        while vocab > 0:
            if _fits(generation, grads_bytes(tokens, vocab, widths)):
                found.append((vocab >= enough, vocab, tokens))
                break
            vocab -= 128
    if not found:
        _refuse(generation, widths)
    _, vocab, tokens = max(found, key=lambda x: (x[0], x[2] if x[0] else x[1]))
    return _blocks(generation, tokens, vocab, widths)


def stats_bytes(tokens: int, vocab: int, widths: tuple[Width, ...]) -> int:
    """VMEM of a forward kernel: two buffers for each block, and what it works on."""
    held = sum(
        2 * w.padded * (tokens * w.hidden_bytes + vocab * w.head_bytes) for w in widths
    )
    return held + _working_bytes(tokens, vocab, widths)


def grads_bytes(tokens: int, vocab: int, widths: tuple[Width, ...]) -> int:
    """VMEM of a backward kernel: also both gradients' float32 sums and d_z, twice."""
    student = widths[0]
    sums = 4 * vocab + 8 * tokens  # one tile of d_weight, two of d_hidden
    d_z_bytes = 2 * tokens * vocab * student.product_bytes
    return (
        stats_bytes(tokens, vocab, widths)
        + student.padded * (sums + 2 * vocab * student.head_bytes)
        + d_z_bytes
    )


def stats_traffic(N: int, D: int, V: int, blocks: Blocks, width: Width) -> int:
    """Bytes that a forward kernel moves: the head once for each tile of tokens."""
    head = D * V * width.head_bytes
    return N * D * width.hidden_bytes + -(-N // blocks.tokens) * head


def grads_traffic(N: int, D: int, V: int, blocks: Blocks, width: Width) -> int:
    """Bytes that a backward kernel moves.

    The head in and its gradient out, and for each tile of the vocabulary all hidden
    states and their gradient's float32 sums, in and out, but in only from a core's
    second tile on.
    """
    tiles = -(-V // blocks.vocab)
    cores = min(blocks.cores, tiles)
    of_tokens = tiles * width.hidden_bytes + 4 * (tiles - cores) + 4 * tiles
    return 2 * D * V * width.head_bytes + N * D * of_tokens


def vmem_limit_bytes(generation: Generation) -> int:
    """What a kernel may take; the compiler's default is 16 or 32 MiB."""
    return generation.vmem_bytes - 2 * 2**20


def round_up(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple


def _clamped(generation, N, V, tokens, vocab):
    share = -(-N // num_cores(generation))  # so that each core has a tile of tokens
    return min(tokens, round_up(share, 128)), min(vocab, round_up(V, 128))


def _working_bytes(tokens, vocab, widths):
    # Float32 values of ROWS words (z, p and the like), and for mixed dtypes or float32
    # products, which are split into bfloat16 parts, copies of the blocks.
    copies = sum(
        w.padded * (tokens + ROWS) * 4
        for w in widths
        if w.mixed or w.product_bytes == 4
    )
    return 2**20 + 4 * ROWS * tokens * 4 * len(widths) + copies


def _fits(generation, num_bytes):
    return num_bytes <= VMEM_SHARE * generation.vmem_bytes


def _blocks(generation, tokens, vocab, widths):
    # Float32 products make code six times as long.
    exact = any(w.product_bytes == 4 for w in widths)
    rows, columns = (128, 128) if exact else (ROWS, COLUMNS)
    return Blocks(tokens, vocab, min(rows, vocab), columns, num_cores(generation))


def _refuse(generation, widths):
    raise KernelError(
        "logprob on TPU: a tile of 128 tokens by 128 words must fit the "
        f"{generation.vmem_bytes // 2**20} MiB of VMEM of a {generation.name} core, "
        f"got width {' and '.join(str(w.D) for w in widths)}"
    )
