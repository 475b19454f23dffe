"""The sampler: continuous batching of requests over a fixed set of slots.

`submit` queues a request; each `poll` admits what fits, decodes one dispatch and
returns the samples that finished. Weights and their version are arguments of `poll`:
new weights are a new argument, and nothing is copied if they lie on the engine's mesh.
From another mesh of the same devices they are handed over, from device to device.

A sample's draws depend on (seed, stream, request, sample, position) alone. Scheduling
depends only on what was submitted and drawn, never on the clock.

Legend: W slots, P prompts of an admission, N decode steps of a dispatch.
"""

import collections
import dataclasses
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from rl_jax.mesh import put
from rl_jax.models import decoder
from rl_jax.models.params import Params
from rl_jax.models.spec import ModelSpec
from rl_jax.rollout import handover, programs
from rl_jax.rollout.programs import EngineSpec, Slots
from rl_jax.rollout.sample import Request, Sample


@dataclasses.dataclass
class _Running:
    """A sample in a slot."""

    request: Request
    index: int
    tokens: list[int]
    logps: list[float]
    versions: list[int]


@functools.lru_cache(maxsize=8)
def _programs(model: ModelSpec, engine: EngineSpec, seed: int):
    """(admit, decode), compiled once for all engines that are alike: stages of a chain,
    and each evaluation of a stage, have one of their own."""
    donate = functools.partial(jax.jit, donate_argnames=("cache", "slots"))
    admit = functools.partial(programs.admit, model=model, seed=seed)
    decode = functools.partial(programs.decode, model=model, engine=engine)
    return donate(admit), donate(decode)


class Engine:
    """Samples from one decoder on one mesh; see the module's docstring.

    Attributes:
        tokens_drawn: by all slots, so far.
        handover_bytes, handover_secs: what all devices received of weights that came
            from another mesh, and how long that took, so far.
    """

    def __init__(self, model: ModelSpec, engine: EngineSpec, mesh: Mesh, *, seed: int):
        self.spec = engine
        self._mesh, self._model = mesh, model
        self._given: Params | None = None  # as they came from another mesh ...
        self._held: Params | None = None  # ... and as they lie on this one
        self._waiting: collections.deque[Request] = collections.deque()
        self._running: list[_Running | None] = [None] * engine.num_slots
        self._cache, self._slots = self._empty(model)
        self._admit, self._decode = _programs(model, engine, seed)
        self.tokens_drawn = 0
        self.handover_bytes, self.handover_secs = 0, 0.0
        self._received = 0  # bytes of a single hand-over

    def _empty(self, model: ModelSpec) -> tuple[decoder.Cache, Slots]:
        def make(shape, dtype, partition):
            return jnp.zeros(shape, dtype, device=NamedSharding(self._mesh, partition))

        cache = decoder.empty_cache(
            model, self.spec.num_slots, self.spec.cache_length, make
        )
        slots = jax.tree.map(
            lambda x: make(x.shape, x.dtype, programs.slot_spec(x)),
            programs.slot_shapes(self.spec),
        )
        return cache, slots

    @property
    def busy(self) -> bool:
        """True while a submitted sample has not been returned."""
        return bool(self._waiting) or any(r is not None for r in self._running)

    def submit(self, request: Request) -> None:
        """Queues a request.

        Raises:
            ValueError: if its prompt, its length or its number of samples does not
                fit the engine.
        """
        spec, n = self.spec, len(request.prompt)
        if not 1 <= n <= spec.max_prompt_tokens:
            raise ValueError(
                f"request {request.id}: a prompt of {n} tokens; the engine takes 1 to "
                f"{spec.max_prompt_tokens} (config.rollout.max_prompt_tokens)."
            )
        if not 1 <= request.max_new_tokens <= spec.max_new_tokens:
            raise ValueError(
                f"request {request.id}: max_new_tokens={request.max_new_tokens}; the "
                f"engine draws 1 to {spec.max_new_tokens}."
            )
        if not 1 <= request.num_samples <= spec.num_slots:
            raise ValueError(
                f"request {request.id}: {request.num_samples} samples do not fit "
                f"{spec.num_slots} slots (config.rollout.slots)."
            )
        self._waiting.append(request)

    def poll(self, params: Params, version: int) -> list[Sample]:
        """Admits waiting requests, decodes one dispatch, returns finished samples.

        Args:
            params: weights to sample from.
            version: their version, written beside every token they draw.
        """
        params = self._on_mesh(params)
        with jax.set_mesh(self._mesh):
            while self._fill(params):
                pass
            if not any(r is not None for r in self._running):
                return []
            before_W = np.array([len(r.logps) if r else 0 for r in self._running])
            self._cache, self._slots, drawn = self._decode(
                params, self._cache, self._slots
            )
        drawn = jax.device_get(drawn)
        finished = []
        for w, running in enumerate(self._running):
            if running is None:
                continue
            n = int(drawn.drawn_W[w]) - int(before_W[w])
            running.tokens.extend(drawn.token_WN[w, :n].tolist())
            running.logps.extend(drawn.logp_WN[w, :n].tolist())
            running.versions.extend([version] * n)
            self.tokens_drawn += n
            if not drawn.active_W[w]:
                finished.append(self._finish(running))
                self._running[w] = None
        if not self.busy:  # the memory is wanted for training
            self._given = self._held = None
        return finished

    def _on_mesh(self, params: Params) -> Params:
        """The weights as the engine's mesh has them; those of another are copied once
        for as long as there is something to draw."""
        if handover.lies_on(params, self._mesh):
            return params
        if self._held is None or params is not self._given:
            self._held, began = None, time.monotonic()  # never two copies
            held = handover.laid_out(params, self._model, self._mesh)
            self._given, self._held = params, jax.block_until_ready(held)
            self.handover_secs += time.monotonic() - began
            self._received = self._received or handover.received_bytes(params, held)
            self.handover_bytes += self._received
        assert self._held is not None
        return self._held

    def _finish(self, running: _Running) -> Sample:
        prompt = running.request.prompt
        n, m = len(prompt), len(running.tokens)
        stopped = running.tokens[-1] in self.spec.stop_ids
        return Sample(
            request=running.request.id,
            index=running.index,
            tokens=np.array([*prompt, *running.tokens], np.int32),
            policy_mask=np.arange(n + m) >= n,
            sampler_logp=np.array([0.0] * n + running.logps, np.float32),
            version=np.array([-1] * n + running.versions, np.int32),
            stop_reason="stop" if stopped else "length",
        )

    def _fill(self, params: Params) -> bool:
        """Admits waiting requests to free slots; False if none could be."""
        spec = self.spec
        free = [w for w, r in enumerate(self._running) if r is None]
        admitted: list[Request] = []
        room = len(free)
        # A request waits until all of its samples fit: they share one prefill.
        while self._waiting and len(admitted) < spec.prefill_rows:
            if self._waiting[0].num_samples > room:
                break
            admitted.append(self._waiting.popleft())
            room -= admitted[-1].num_samples
        if not admitted:
            return False

        W = spec.num_slots
        prompt_PT = np.zeros((spec.prefill_rows, spec.max_prompt_tokens), np.int32)
        length_P = np.zeros((spec.prefill_rows,), np.int32)
        source_W = np.full((W,), -1, np.int32)
        id_W3 = np.zeros((W, 3), np.uint32)
        incoming = jax.tree.map(
            lambda x: np.zeros(x.shape, x.dtype), programs.slot_shapes(spec)
        )
        for row, request in enumerate(admitted):
            n = len(request.prompt)
            prompt_PT[row, :n] = request.prompt
            length_P[row] = n
            for index in range(request.num_samples):
                w = free.pop(0)
                source_W[w] = row
                id_W3[w] = (request.stream, request.id & 0xFFFFFFFF, index)
                # The last prompt token goes through the decoder, which draws the
                # first token: sampling lives in one place.
                incoming.token_W[w] = request.prompt[-1]
                incoming.position_W[w] = n - 1
                incoming.active_W[w] = True
                incoming.left_W[w] = request.max_new_tokens
                incoming.temperature_W[w] = request.temperature
                self._running[w] = _Running(request, index, [], [], [])

        def rows(x):
            return put(x, self._mesh, "batch", *("time",) * (x.ndim - 1))

        self._cache, self._slots = self._admit(
            params,
            self._cache,
            self._slots,
            jax.tree.map(rows, incoming),
            rows(id_W3),
            rows(source_W),
            rows(prompt_PT),
            rows(length_P),
        )
        return True
