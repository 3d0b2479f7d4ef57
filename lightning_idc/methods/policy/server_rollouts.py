"""ServerRollouts: captions drawn by a server that runs the policy, such as vLLM, instead of the policy itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lightning_idc.checkpoints.checkpoint_io import INTERRUPTED
from lightning_idc.data.loading import PairLoader
from lightning_idc.methods.policy.policy_addon import PolicyGradient
from lightning_idc.methods.policy.rollout import Drawn, draw, grouped, seeds_of
from lightning_idc.methods.policy.server_weights import ServerWeights
from lightning_idc.models.addon import TrainingStep, addons_of
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.captions import pad_captions
from lightning_idc.models.distributed import all_gather_object
from lightning_idc.synthesis.models.endpoint import Endpoint, image_part
from lightning_idc.utils.errors import ConfigError, DataError, IDCError


class ServerError(ConfigError):
    """The server that draws captions failed; the training so far is saved where it can be."""


@dataclass(frozen=True, slots=True)
class _Caption:
    """One caption of a server: ids behind the begin token, their log-probabilities, text."""

    ids: list[int]
    log_probs: list[float]
    text: str


class ServerRollouts(Callback):
    """Has the captions of SelfCritical and GroupRelative drawn behind an OpenAI-compatible endpoint.

    Temperature, ``top_p``, the number of samples and of tokens are those of the training, whatever the endpoint says.
    Requests go side by side and are sent again as the endpoint says; answers are never kept on disk. Where the server
    fails for good, the run is saved as ``interrupted.ckpt`` and ends with one sentence.

    The server's weights lag behind the policy's by up to ``every`` steps of ``weights``. With ``log_probs: server`` the
    probability ratio of the loss is to what the server has drawn with, so that the lag is accounted for; tokens are the
    server's own ids (``logprobs`` and ``return_token_ids``, as vLLM has them). With ``policy`` any server will do: its
    text is tokenized again and the ratio is 1 in the step that drew, which is right as long as nothing lags.

    Args:
        endpoint: where the policy is served, and how it is asked; without a cache.
        weights: brings the policy's weights to the server; None where somebody else does.
        log_probs: who gives those of the drawn tokens.

    Raises:
        ConfigError: the endpoint keeps answers, or nothing draws captions.

    Example:
        >>> ServerRollouts(Endpoint("http://localhost:8000/v1", "policy")).log_probs
        'server'
    """

    def __init__(
        self,
        endpoint: Endpoint,
        weights: ServerWeights | None = None,
        log_probs: Literal["server", "policy"] = "server",
    ) -> None:
        if endpoint.cache is not None:
            raise ConfigError(f"captions must be drawn anew in every epoch; leave out the cache {endpoint.cache!r}")
        self.endpoint, self.weights, self.log_probs = endpoint, weights, log_probs
        self._kept: dict[str, Any] = {}

    # ---- the run ----------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        found = _policies(pl_module)
        if not found:
            raise ConfigError("ServerRollouts draws captions for GroupRelative or SelfCritical; list one of them, too")
        for addon in found:
            addon.draw = self.draw
        kept, self._kept = self._kept, {}
        weights = self.weights
        if weights is not None:
            _together(lambda: weights.start(trainer, pl_module, self.endpoint, kept))
        _together(self._reach)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
        weights = self.weights
        if weights is not None and weights.due(trainer):
            _together(lambda: weights.push(trainer, pl_module, self.endpoint))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if isinstance(exception, ServerError):
            save_interrupted(trainer)
        self.teardown(trainer, pl_module, "fit")  # Lightning calls none after an exception

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for addon in _policies(pl_module):
            addon.draw = draw

    def state_dict(self) -> dict[str, Any]:
        return {} if self.weights is None else self.weights.kept()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._kept = state_dict

    def _reach(self) -> None:
        problem = self.endpoint.problem()
        if problem is not None:
            raise ConfigError(problem)

    # ---- drawing ----------------------------------------------------------------------------------------

    def draw(self, step: TrainingStep, samples: int, temperature: float, top_p: float, key: str) -> Drawn:
        """Captions that the server draws of a batch; arguments as of :func:`lightning_idc.methods.policy.rollout.draw`.

        Raises:
            ServerError: it failed on any process.
        """
        host = step.host
        assert isinstance(host, PairCaptioner)
        captions = _together(lambda: self._captions(step, host, samples, temperature, top_p, key))
        begin, pad = host.built_vocabulary.special.bos, host.built_vocabulary.special.pad
        rows = grouped([[begin, *caption.ids] for caption in captions], samples)
        tokens, mask = pad_captions(rows, samples, pad)
        texts = grouped([caption.text for caption in captions], samples)
        old = self._old(captions, tokens) if self.log_probs == "server" else None
        return Drawn(tokens.to(host.device), mask.to(host.device), texts, None if old is None else old.to(host.device))

    def _captions(
        self, step: TrainingStep, host: PairCaptioner, samples: int, temperature: float, top_p: float, key: str
    ) -> list[_Caption]:
        contents = [
            [*(image_part(image.cpu()) for image in images), *([{"type": "text", "text": asked}] if asked else [])]
            for images, asked in host.asked(step.batch)
        ]
        max_tokens = host.hparams["max_length"]
        options: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
        if self.log_probs == "server":
            options |= {"logprobs": True, "return_token_ids": True}
        choices = self.endpoint.draws(contents, seeds_of(step.batch, key), samples, options)
        found = [self._caption(choice, host, max_tokens) for row in choices for choice in row]
        if not any(caption.text.strip() for caption in found):
            raise DataError(
                f"all {len(found)} captions that the endpoint drew of {len(choices)} pairs are empty, which teaches "
                "nothing; check its weights and its chat template"
            )
        return found

    def _caption(self, choice: dict[str, Any], host: PairCaptioner, max_tokens: int) -> _Caption:
        message = choice.get("message")
        text = message.get("content") if isinstance(message, dict) else None
        text = text if isinstance(text, str) else ""
        special = host.built_vocabulary.special
        if self.log_probs == "server":
            ids, log_probs = _drawn_tokens(choice, self.endpoint)
        else:
            ids, log_probs = host.tokenize([text])[0][1:], []
            if choice.get("finish_reason") == "length":
                ids = ids[:-1]
        ended = bool(ids) and ids[-1] in special.ends
        if not ended and choice.get("finish_reason") != "length":
            ids = [*ids, special.eos]  # some servers leave the end token out
        wrong = [i for i in ids if i in special.never_said or not 0 <= i < len(host.built_vocabulary)]
        if wrong:
            raise DataError(
                f"the endpoint drew {self.endpoint.shown(text)[:80]!r}, which holds tokens (such as {wrong[0]}) that "
                "the policy never says; it must serve the same model with the same tokenizer"
            )
        ids = ids[:max_tokens]
        return _Caption(ids, log_probs[:max_tokens], host.built_vocabulary.decode(ids))

    @staticmethod
    def _old(captions: Sequence[_Caption], tokens: Tensor) -> Tensor:
        """Log-probabilities by the server, ``(B, K, T)``; not a number where it gives none."""
        old = torch.full(tokens.shape, float("nan")).flatten(0, 1)
        old[:, 0] = 0.0
        for row, caption in zip(old, captions, strict=True):
            row[1 : len(caption.log_probs) + 1] = torch.tensor(caption.log_probs)
        return old.view(tokens.shape)


def _policies(host: LightningModule) -> list[PolicyGradient]:
    return [addon for addon in addons_of(host).values() if isinstance(addon, PolicyGradient)]


def _drawn_tokens(choice: dict[str, Any], endpoint: Endpoint) -> tuple[list[int], list[float]]:
    """Ids and log-probabilities of a choice's tokens.

    Raises:
        DataError: the server does not give them.
    """
    ids, known = choice.get("token_ids"), choice.get("logprobs")
    content = known.get("content") if isinstance(known, dict) else None
    try:
        found = [float(token["logprob"]) for token in content]  # type: ignore[union-attr]
        own = [int(i) for i in ids]  # type: ignore[union-attr]
    except (TypeError, KeyError, ValueError):
        found, own = [], []
    if not own or len(found) not in (len(own), len(own) - 1) or any(value > 1e-3 or value != value for value in found):
        raise DataError(
            f"the endpoint answered {endpoint.shown(choice)!r} without ids and log-probabilities of its tokens "
            "(token_ids, logprobs), which log_probs: server needs; vLLM gives them. Set log_probs: policy for other "
            "servers"
        )
    return own, found


def _together(work: Any) -> Any:
    """Result of what every process does; where one fails, all end with its sentence instead of waiting for it.

    Raises:
        ServerError: a process failed.
    """
    found, failure = None, None
    try:
        found = work()
    except IDCError as error:
        failure = str(error)
    failures = [said for said in all_gather_object(failure) if said is not None]
    if failures:
        raise ServerError(failures[0])
    return found


def save_interrupted(trainer: Trainer) -> None:
    """Save a run whose server failed, as it was before the step or after it, and say where.

    Where gradients are accumulated over batches, those so far would be lost; nothing is saved then.
    """
    progress, loader = trainer.fit_loop.epoch_loop.batch_progress, trainer.train_dataloader
    now: Any = progress.current
    if not trainer.global_step or now.processed % trainer.accumulate_grad_batches:
        return
    if now.ready > now.processed:  # the step itself failed, so its batch comes again
        if not isinstance(loader, PairLoader):
            return
        loader.give_back()
        progress.total.reset_on_restart()
        now.reset_on_restart()
    target = Path(trainer.default_root_dir) / "checkpoints" / INTERRUPTED
    trainer.save_checkpoint(target)
    if trainer.is_global_zero:
        print(f"\nthe server failed after step {trainer.global_step}; saved in {target}", flush=True)
