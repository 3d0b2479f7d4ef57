"""Comparisons of trainings that ``results_table.py`` reports, by method, with the commands that compute them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from lightning_idc.report.comparison import METRIC


def measure_text(measure: str) -> str:
    """Measure with its unit, such as ``type, %``."""
    return measure if measure == METRIC else f"{measure}, %"


@dataclass(frozen=True)
class Comparison:
    """Two rows of a study.

    Args:
        title: first column.
        file: file of ``results/``, without suffix.
        world: world in the file.
        row: row of the study.
        over: row to compare with.
        measure: CIDEr-D, or a fact whose percentage is the score.
    """

    title: str
    file: str
    world: str
    row: str
    over: str
    measure: str = METRIC

    @property
    def label(self) -> str:
        """The title, with the measure if it is a fact."""
        return self.title if self.measure == METRIC else f"{self.title} ({measure_text(self.measure)})"


@dataclass(frozen=True)
class Method:
    """Comparisons of one method.

    Args:
        name: heading.
        command: command that computes the rows.
        comparisons: comparisons; empty if no study is fair to the method.
        remark: what was not measured, and where other figures are.
    """

    name: str
    command: str = ""
    comparisons: tuple[Comparison, ...] = ()
    remark: str = ""


def _namc() -> tuple[Comparison, ...]:
    """Noisy pre-training, noise masking (L_NIM) and reconstruction, as in Table 6; what L_NIM aligns, as in Table 8."""
    study = partial(Comparison, file="noise", world="namc")
    aligned = partial(Comparison, file="noise_alignment", world="namc")
    clean = partial(Comparison, file="noise_clean", world="namc")
    return (
        study("noisy pre-training over no pre-training", row="neither", over="scratch"),
        study("noise masking over noisy pre-training", row="noise", over="neither"),
        study("reconstruction and noise masking over noise masking", row="noise+reconstruction", over="noise"),
        study("reconstruction and noise masking over noisy pre-training", row="noise+reconstruction", over="neither"),
        clean("pre-training over no pre-training, clean descriptions", row="neither", over="scratch"),
        clean("noise masking over pre-training, clean descriptions", row="noise", over="neither"),
        clean(
            "reconstruction and noise masking over noise masking, clean descriptions",
            row="noise+reconstruction",
            over="noise",
        ),
        aligned("L_NIM on original inputs over masked inputs", row="align_originals", over="noise"),
        aligned("L_NIM on masked images over original inputs", row="align_image", over="align_originals"),
        aligned("L_NIM on masked descriptions over original inputs", row="align_description", over="align_originals"),
    )


def _m3diff() -> tuple[Comparison, ...]:
    """Table 6, and what the paper does not have: one depth, another adapter, and layers of equal size."""
    mdp = partial(Comparison, file="mdp", world="rendered")
    language = partial(Comparison, file="mdp_smollm2", world="rendered")
    return (
        mdp("MDP at four depths over none", row="depths", over="none"),
        mdp("MDP at four depths over the deepest stage", row="depths", over="deepest"),
        mdp("MDP at four depths over plain layers of equal size", row="depths", over="plain"),
        Comparison(
            "MDP at four depths over none of equal time",
            "mdp_longer",
            "rendered",
            "depths, epochs 24",
            "none, epochs 66",
        ),
        mdp("plain layers of equal size over none", row="plain", over="none"),
        mdp("stateful encoder over none", row="stateful", over="none"),
        language("MDP at four depths over none, behind SmolLM2", row="depths", over="none"),
        language("MDP at four depths over plain layers, behind SmolLM2", row="depths", over="plain"),
        language("plain layers over none, behind SmolLM2", row="plain", over="none"),
    )


def _adpo() -> tuple[Comparison, ...]:
    """The paper's reference (SFT), the control of equal compute (SFT+) and DPO, on three kinds of captions."""
    captions = {"vague": "vague", "vague_sixth": "vague, some unchanged", "careful": "careful"}
    study = partial(Comparison, file="preference_learning")
    encoder = {
        world: partial(Comparison, file=f"preference_encoder_{world}", world=world, row="ADPO")
        for world in ("vague", "careful")
    }
    language = partial(Comparison, file="preference_smollm2_looking", world="vague", row="ADPO", measure="type")
    people = partial(Comparison, file="preference_people", world="people", measure="type")
    aligned = partial(Comparison, file="preference_smollm2_paraphrased", world="paraphrased", measure="type")
    beta = "anchor 3, beta 0.5"
    return (
        *(
            study(f"ADPO over {over}: {name}", world=world, row="ADPO", over=over)
            for over in ("SFT", "SFT+", "DPO")
            for world, name in captions.items()
        ),
        *(
            study(f"ADPO over DPO, beta 0.5: {name}", world=world, row=f"ADPO, {beta}", over=f"DPO, {beta}")
            for world, name in captions.items()
        ),
        study("DPO, beta 0.5, over ADPO, beta 0.1: vague", world="vague", row=f"DPO, {beta}", over="ADPO"),
        *(people(f"ADPO over {over}: 20 wordings", row="ADPO", over=over) for over in ("SFT", "SFT+", "DPO")),
        people("ADPO with semantic filter over without: 20 wordings", row="ADPO, too_similar", over="ADPO"),
        *(
            encoder[world](f"ADPO over {over}, ImageNet encoder: {world}", over=over)
            for over in ("SFT", "SFT+", "DPO")
            for world in encoder
        ),
        *(
            encoder["vague"](f"ADPO over {over}, ImageNet encoder: vague", over=over, measure="type")
            for over in ("SFT", "SFT+")
        ),
        *(language(f"ADPO over {over}, behind SmolLM2: vague", over=over) for over in ("SFT", "SFT+", "DPO")),
        *(
            aligned(f"ADPO over {over}, behind SmolLM2: paraphrased", row="ADPO", over=over)
            for over in ("SFT", "SFT+", "DPO")
        ),
        aligned("ADPO with semantic filter over without, behind SmolLM2", row="ADPO, too_similar", over="ADPO"),
    )


def _img_diff() -> tuple[Comparison, ...]:
    """Produced pairs before the real ones, at equal steps, and two controls of the first training."""
    study = partial(Comparison, file="synthesis_training", world="300")
    more = partial(Comparison, file="synthesis_training_3000", world="3000")
    return (
        study("produced, then real over real, then real", row="produced", over="real"),
        study("produced over produced with shuffled captions", row="produced", over="shuffled"),
        study("produced over produced in the benchmark's words", row="produced", over="worded"),
        study("shuffled captions, then real over real, then real", row="shuffled", over="real"),
        more("produced, then real over real, then real: 3,000 real", row="produced", over="real"),
        more("produced over produced with shuffled captions: 3,000 real", row="produced", over="shuffled"),
        more("produced over produced in the benchmark's words: 3,000 real", row="produced", over="worded"),
    )


METHODS = (
    Method(
        "NAMC",
        "python -m benchmarks.studies.noise --only scratch neither noise noise+reconstruction "
        "align_originals align_image align_description",
        _namc(),
        "Rows with clean descriptions: the same command with `--word_noise 0 --description_noise 0` and without the "
        "rows of `align`. Reconstruction without noise masking was not measured. [Notes](notes/namc.md) have all rows.",
    ),
    Method(
        "ADPO",
        "python -m benchmarks.studies.preference_learning --rows main losses",
        _adpo(),
        "SFT+ is SFT with about the compute of the others. All of it, and the commands of the rows with 20 wordings, "
        "with an ImageNet encoder and behind SmolLM2: [notes](notes/adpo.md#effect-on-captions).",
    ),
    Method(
        "GRPO, SCST",
        remark="Not measured on the present captioner. The study is `python -m benchmarks.studies.reward_learning`.",
    ),
    Method(
        "M3Diff (MDP)",
        "python -m benchmarks.studies.mdp",
        _m3diff(),
        "Frozen EfficientNet-lite0, rendered pairs, still camera: [notes](notes/m3diff.md#effect-of-mdp). The rows "
        "behind SmolLM2 have [a command of their own](notes/m3diff.md#behind-a-pretrained-language-model).",
    ),
    Method(
        "ProCap",
        remark="Not measured: a fair study needs a first stage that learns the paper's codes (200,000 steps there) for "
        "each training, which two cores cannot do. Earlier studies learned named attributes and were dropped.",
    ),
    Method(
        "Img-Diff",
        "python -m benchmarks.studies.synthesis_training --world 300",
        _img_diff(),
        "800 produced pairs; 300 real ones or, in the rows that say so, 3,000 (`--world 3000`): "
        "[notes](notes/img_diff.md).",
    ),
)
