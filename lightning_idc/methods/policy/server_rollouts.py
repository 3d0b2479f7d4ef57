"""ServerRollouts: captions sampled by a server that runs the policy, such as vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_idc.checkpoints.checkpoint_io import save_interrupted
from lightning_idc.data.loading import PairLoader
from lightning_idc.methods.policy.policy_addon import PolicyGradient
from lightning_idc.methods.policy.rollout import SampledCaptions, grouped, has_end, sample_captions
from lightning_idc.methods.policy.server_weights import ServerWeights
from lightning_idc.models.addon import TrainingStep, addons_of
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.captions import pad_captions
from lightning_idc.models.distributed import all_gather_object
from lightning_idc.models.random_state import pair_seeds
from lightning_idc.synthesis.models.endpoint import Endpoint, image_part, text_of
from lightning_idc.utils.answers import has_thought
from lightning_idc.utils.errors import ConfigError, DataError, IDCError

PLAIN_SAMPLING = {"repetition_penalty": 1.0, "top_k": -1, "min_p": 0.0}
"""Settings of sampling that turn off what servers take from the model's generation_config.json: the policy has none."""


class ServerError(ConfigError):
    """The server that samples captions failed. The run is saved if its state allows it."""


@dataclass(frozen=True, slots=True)
class _Caption:
    """One caption from the server.

    Args:
        ids: token ids, without the begin token.
        log_probs: log-probability of each token; empty if the server does not return them.
        text: text of the caption.
    """

    ids: list[int]
    log_probs: list[float]
    text: str


class ServerRollouts(Callback):
    """Samples the captions of SelfCritical and GroupRelative from an OpenAI-compatible endpoint (TRL's ``use_vllm``).

    Temperature, ``top_p``, the number of samples and the number of tokens are those of the training callback; the
    endpoint's settings of these are ignored, and so are penalties and limits of the model's
    ``generation_config.json``. Requests run in parallel with the endpoint's retries; answers are never cached. If the
    server fails, the run is saved as ``interrupted.ckpt`` and ends with a one-line error.

    The server's weights are up to ``weights.every`` steps older than the policy's. With ``log_probs: server`` the
    probability ratio is relative to the server's weights, which corrects for their age. This needs the server's token
    ids (``logprobs`` and ``return_token_ids``, as in vLLM). With ``log_probs: policy`` any server can be used: its text
    is tokenized again, and the ratio is 1 in the step that samples, which is correct only if the weights are current.

    Args:
        endpoint: endpoint of the served policy, without a cache.
        weights: transfer of the policy's weights to the server; None if they are transferred by other means.
        log_probs: source of the log-probabilities of the sampled tokens.

    Raises:
        ConfigError: the endpoint has a cache, or neither SelfCritical nor GroupRelative is among the callbacks.

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
            raise ConfigError(f"captions must be sampled again in every epoch; leave out the cache {endpoint.cache!r}")
        self.endpoint, self.weights, self.log_probs = endpoint, weights, log_probs
        self._server_state: dict[str, Any] = {}

    @property
    def has_log_probs(self) -> bool:
        """Whether the probability ratio is relative to the server's weights, and so differs from 1."""
        return self.log_probs == "server"

    # ---- hooks of the run ----------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        addons = _policies(pl_module)
        if not addons:
            raise ConfigError(
                "ServerRollouts samples captions for GroupRelative or SelfCritical; add one of them to the callbacks"
            )
        for addon in addons:
            addon.sampler = self.sample_captions
        state, self._server_state = self._server_state, {}
        weights = self.weights
        if weights is not None:
            _on_all_ranks(lambda: weights.start(trainer, pl_module, self.endpoint, state))
        _on_all_ranks(self._check_endpoint)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
        weights = self.weights
        if weights is not None and weights.is_due(trainer):
            _on_all_ranks(lambda: weights.push(trainer, pl_module, self.endpoint))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if isinstance(exception, ServerError):
            save_before_failure(trainer)
        self.teardown(trainer, pl_module, "fit")  # Lightning calls no teardown after an exception

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for addon in _policies(pl_module):
            addon.sampler = sample_captions

    def state_dict(self) -> dict[str, Any]:
        return {} if self.weights is None else self.weights.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._server_state = state_dict

    def _check_endpoint(self) -> None:
        problem = self.endpoint.problem()
        if problem is not None:
            raise ConfigError(problem)

    # ---- sampling ---------------------------------------------------------------------------------------

    def sample_captions(
        self, step: TrainingStep[PairCaptioner], samples: int, temperature: float, top_p: float, key: str
    ) -> SampledCaptions:
        """Sample captions from the server; arguments as in ``rollout.sample_captions``.

        Raises:
            ServerError: the request failed on any process.
        """
        captioner = step.module
        options: dict[str, Any] = {"temperature": temperature, "top_p": top_p}
        captions = _on_all_ranks(lambda: self._request_captions(step, samples, key, options))
        begin, pad = captioner.built_vocabulary.special.bos, captioner.built_vocabulary.special.pad
        rows = grouped([[begin, *caption.ids] for caption in captions], samples)
        tokens, mask = pad_captions(rows, samples, pad)
        texts = grouped([caption.text for caption in captions], samples)
        old_log_probs = None
        if self.log_probs == "server":
            old_log_probs = self._log_probs(captions, tokens).to(captioner.device)
        return SampledCaptions(
            tokens=tokens.to(captioner.device),
            mask=mask.to(captioner.device),
            texts=texts,
            ended=grouped([has_end(caption.ids, captioner.built_vocabulary.special) for caption in captions], samples),
            old_log_probs=old_log_probs,
        )

    def _request_captions(
        self, step: TrainingStep[PairCaptioner], samples: int, key: str, options: dict[str, Any]
    ) -> list[_Caption]:
        captioner = step.module
        contents = [
            [*(image_part(image.cpu()) for image in images), *([{"type": "text", "text": prompt}] if prompt else [])]
            for images, prompt in captioner.images_and_prompts(step.batch)
        ]
        max_tokens = captioner.hparams["max_length"]
        options = {**options, **PLAIN_SAMPLING, "max_tokens": max_tokens}
        if self.log_probs == "server":
            options |= {"logprobs": True, "return_token_ids": True}
        choices = self.endpoint.sample(contents, pair_seeds(step.batch, key), samples, options)
        captions = [self._parse_choice(choice, captioner, max_tokens) for row in choices for choice in row]
        if not any(caption.text.strip() for caption in captions):
            raise DataError(
                f"all {len(captions)} captions that the endpoint sampled for {len(choices)} pairs are empty; "
                "check its weights and its chat template"
            )
        return captions

    def _parse_choice(self, choice: dict[str, Any], captioner: PairCaptioner, max_tokens: int) -> _Caption:
        try:
            text = text_of(choice)
        except (KeyError, TypeError):
            text = None
        if text is None:
            raise DataError(f"the endpoint responded {self.endpoint.redacted(choice)!r}; expected a text message")
        if has_thought(text):
            raise DataError(
                f"the endpoint thinks before it answers ({self.endpoint.redacted(text)[:80]!r}), which the policy does "
                "not; serve the model with a chat template without thoughts"
            )
        special = captioner.built_vocabulary.special
        if self.log_probs == "server":
            ids, log_probs = _sampled_tokens(choice, self.endpoint)
        else:
            ids, log_probs = captioner.tokenize([text])[0][1:], []
            if choice.get("finish_reason") == "length":
                ids = ids[:-1]
        if not has_end(ids, special) and choice.get("finish_reason") != "length":
            ids = [*ids, special.eos]  # some servers leave the end token out
        vocabulary = captioner.built_vocabulary
        beyond = next((k for k, i in enumerate(ids) if i >= len(vocabulary) and i in special.suppress_tokens), None)
        if beyond is not None:
            rank_zero_warn(
                f"the endpoint sampled the id {ids[beyond]}, which the head has and the tokenizer of {len(vocabulary)} "
                "tokens does not; captions are cut before such an id"
            )
            ids = ids[:beyond]
        invalid = [i for i in ids if i in special.suppress_tokens or not 0 <= i < len(vocabulary)]
        if invalid:
            raise DataError(
                f"the endpoint sampled {self.endpoint.redacted(text)[:80]!r}, which holds tokens (such as "
                f"{invalid[0]}) "
                f"that the policy never generates; it must serve the same model with the same tokenizer"
            )
        ids = ids[:max_tokens]
        return _Caption(ids, log_probs[: len(ids)], captioner.built_vocabulary.decode(ids))

    @staticmethod
    def _log_probs(captions: Sequence[_Caption], tokens: Tensor) -> Tensor:
        """The server's log-probabilities, ``(B, K, T)``; NaN for tokens without one."""
        log_probs = torch.full(tokens.shape, float("nan")).flatten(0, 1)  # (B K, T)
        log_probs[:, 0] = 0.0  # begin token
        for row, caption in zip(log_probs, captions, strict=True):
            row[1 : len(caption.log_probs) + 1] = torch.tensor(caption.log_probs)
        return log_probs.view(tokens.shape)


def _policies(module: LightningModule) -> list[PolicyGradient]:
    return [addon for addon in addons_of(module).values() if isinstance(addon, PolicyGradient)]


def _sampled_tokens(choice: dict[str, Any], endpoint: Endpoint) -> tuple[list[int], list[float]]:
    """Ids and log-probabilities of a choice's tokens.

    Raises:
        DataError: the answer has no ids or no log-probabilities.
    """
    token_ids, log_probs = choice.get("token_ids"), choice.get("logprobs")
    content = log_probs.get("content") if isinstance(log_probs, dict) else None
    try:
        values = [float(token["logprob"]) for token in content]  # type: ignore[union-attr]
        ids = [int(i) for i in token_ids]  # type: ignore[union-attr]
    except (TypeError, KeyError, ValueError):
        values, ids = [], []
    has_all = bool(ids) and len(values) in (len(ids), len(ids) - 1)
    if not has_all or any(value > 1e-3 or value != value for value in values):
        raise DataError(
            f"the endpoint answered {endpoint.redacted(choice)!r} without ids and log-probabilities of its tokens "
            "(token_ids, logprobs), which log_probs: server needs and vLLM returns. Set log_probs: policy for other "
            "servers"
        )
    return ids, values


def _on_all_ranks(function: Any) -> Any:
    """Run a function on every process. If it fails on one, raise its error on all, which would otherwise wait.

    Raises:
        ServerError: the function failed on a process.
    """
    result, error_message = None, None
    try:
        result = function()
    except IDCError as error:
        error_message = str(error)
    failures = [message for message in all_gather_object(error_message) if message is not None]
    if failures:
        raise ServerError(failures[0])
    return result


def save_before_failure(trainer: Trainer) -> None:
    """Save a run whose server failed, in its state before or after the step, and print the path.

    Between accumulated batches nothing is saved, as their gradients would be lost.
    """
    progress, loader = trainer.fit_loop.epoch_loop.batch_progress, trainer.train_dataloader
    current: Any = progress.current
    if not trainer.global_step or current.processed % trainer.accumulate_grad_batches:
        return
    if current.ready > current.processed:  # the step itself failed, so its batch is repeated
        if not isinstance(loader, PairLoader):
            return
        loader.undo_last_batch()
        progress.total.reset_on_restart()
        current.reset_on_restart()
    target = save_interrupted(trainer, Path(trainer.default_root_dir) / "checkpoints")
    if trainer.is_global_zero:
        print(f"\nthe server failed after step {trainer.global_step}; saved in {target}", flush=True)
