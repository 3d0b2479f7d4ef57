"""Where classes that checkpoints name have moved to: every module path that was ever stored stays loadable."""

from __future__ import annotations

# module of an earlier edition -> module of this one, without the package name
MOVED_MODULES = {
    "adapter": "core.adapters",
    "addon": "core.addon",
    "arguments": "core.arguments",
    "callbacks.adversarial_retriever": "methods.adpo.adversarial_retriever",
    "callbacks.log_relevance": "methods.namc.log_relevance",
    "callbacks.lora": "methods.vlm.lora",
    "callbacks.masked_reconstruction": "methods.namc.masked_reconstruction",
    "callbacks.mdp_adapter": "methods.m3diff.mdp_adapter",
    "callbacks.negatives": "methods.adpo.negatives",
    "callbacks.noise_masking": "methods.namc.noise_masking",
    "callbacks.preference": "methods.adpo.preference",
    "callbacks.references": "methods.adpo.references",
    "captioner": "core.captioner",
    "checkpoint": "core.io",
    "data.benchmark": "data.core.benchmark",
    "data.birds_to_words": "data.benchmarks.birds_to_words",
    "data.checking": "data.core.checking",
    "data.clevr_change": "data.benchmarks.clevr_change",
    "data.clevr_dc": "data.benchmarks.clevr_dc",
    "data.datamodule": "data.core.datamodule",
    "data.deeppcb": "data.benchmarks.deeppcb",
    "data.deeppcb_cells": "data.benchmarks.deeppcb_cells",
    "data.defects": "data.benchmarks.defects",
    "data.feature_store": "data.io.feature_store",
    "data.features": "data.io.features",
    "data.files": "data.io.files",
    "data.folder": "data.benchmarks.folder",
    "data.hf_table": "data.benchmarks.hf_table",
    "data.image_editing_request": "data.benchmarks.image_editing_request",
    "data.img_diff": "data.benchmarks.img_diff",
    "data.implicit_change": "data.benchmarks.implicit_change",
    "data.instructpix2pix": "data.benchmarks.instructpix2pix",
    "data.jsonfiles": "data.io.jsonfiles",
    "data.levir_cc": "data.benchmarks.levir_cc",
    "data.loading": "data.core.loading",
    "data.magicbrush": "data.benchmarks.magicbrush",
    "data.mixture": "data.core.mixture",
    "data.omnidiff": "data.benchmarks.omnidiff",
    "data.prepare": "data.io.prepare",
    "data.questions": "data.benchmarks.questions",
    "data.robustness": "data.transforms.robustness",
    "data.sampling": "data.core.sampling",
    "data.shards": "data.io.shards",
    "data.sides": "data.transforms.sides",
    "data.source": "data.core.source",
    "data.spot_the_diff": "data.benchmarks.spot_the_diff",
    "data.statistics": "data.core.statistics",
    "data.tables": "data.io.tables",
    "data.transforms": "data.transforms.pairs",
    "evaluation": "core.evaluation",
    "images": "core.images",
    "methods.pair_transformer.pretrain": "methods.pretraining.cell_classification",
    "methods.procap.bert_adam": "methods.procap.official.bert_adam",
    "methods.procap.convert": "methods.procap.official.convert",
    "methods.procap.official": "methods.procap.official.encoder",
    "methods.procap.official_procedure": "methods.procap.official.procedure",
    "nn.adapter": "core.adapter",
    "nn.decoding": "core.decoding",
    "nn.dual_encoder": "methods.namc.dual_encoder",
    "nn.gathering": "core.distributed",
    "nn.lora": "methods.vlm.lora",
    "nn.masked_encoder": "methods.namc.masked_encoder",
    "nn.masks": "methods.procap.masks",
    "nn.matching": "methods.namc.losses",
    "nn.mdp": "methods.m3diff.mdp",
    "nn.noise": "methods.namc.noise",
    "nn.pool": "methods.adpo.pool",
    "nn.preference": "methods.adpo.losses",
    "nn.reinforce": "methods.adpo.reinforce",
    "nn.retriever": "methods.adpo.retriever",
    "nn.vocabulary": "core.vocabulary",
    "pairs": "core.types",
    "report.files": "files",
    "report.relevance": "methods.namc.relevance_maps",
    "report.text": "core.text",
    "schedules": "core.schedules",
    "synthesis.descriptions": "methods.namc.descriptions",
    "methods.img_diff.library": "synthesis.library",
    "synthesis.flow": "methods.procap.flow",
    "synthesis.img_diff": "methods.img_diff",
    "synthesis.img_diff.library": "synthesis.library",
    "synthesis.interpolation": "methods.procap.interpolation",
    "synthesis.mining": "methods.namc.mining",
    "synthesis.procedures": "methods.procap.procedures",
    "methods.vlm.lora_adapter": "methods.vlm.lora",
}

# those that moved with all that lies in them; below any other one, there may be a module of today
MOVED_PACKAGES = ("synthesis.img_diff",)

# class of an earlier edition, as its module is called today -> class of this one
RENAMED_CLASSES = {
    "methods.vlm.lora.LowRank": "methods.vlm.lora.LoraAdapter",
    "synthesis.slots.base.Slot": "synthesis.slots.base.ModelInterface",
    "synthesis.slots.chat.OwnDraws": "synthesis.slots.chat.GumbelSampling",
    "synthesis.slots.chat.PromptedTeller": "methods.img_diff.questions.PromptedTeller",
    "synthesis.stages.Apply": "synthesis.stages.MapStage",
    "synthesis.stages.Chain": "synthesis.stages.Sequential",
    "synthesis.stages.Pass": "synthesis.stages.BasePipelineStage",
    "synthesis.stages.Stage": "synthesis.stages.PipelineStage",
    "methods.img_diff.painting.PairPainter": "synthesis.slots.base.PairPainter",
}

# public name of a class that an option split in two or more -> the option, and the class for each of its values
SPLIT_CLASSES = {
    "lightning_idc.methods.ProCap": ("variant", {"official": "lightning_idc.methods.OfficialProCap"}),
    "lightning_idc.methods.ProcedureModel": ("variant", {"official": "lightning_idc.methods.OfficialProcedureModel"}),
}

# public name of a class -> arguments of an earlier edition, and what they are called now
RENAMED_ARGUMENTS = {
    "lightning_idc.callbacks.CacheFeatures": {"most_gb": "max_gb"},
    "lightning_idc.data.RandomCrop": {"least": "min_scale"},
    "lightning_idc.data.ReplaceWords": {"share": "ratio"},
    "lightning_idc.data.SpotTheDiff": {"silent": "empty_references"},
    "lightning_idc.methods.JudgeReward": {"most": "max_score"},
    "lightning_idc.methods.LengthReward": {"most": "max_words"},
    "lightning_idc.synthesis.Audit": {"most": "max_pairs"},
    "lightning_idc.synthesis.ColorRegions": {"least_area": "min_area", "most_area": "max_area"},
    "lightning_idc.synthesis.DifferenceContours": {"least_area": "min_area"},
    "lightning_idc.synthesis.NearestPrototype": {"least": "min_similarity"},
    "lightning_idc.synthesis.slots.things.ChangedThings": {"least_area": "min_area", "least_ground": "min_ground"},
}


def current_path(class_path: str) -> str:
    """Class path of today for one that an earlier edition stored.

    Example:
        >>> current_path("lightning_idc.captioner.PairCaptioner")
        'lightning_idc.core.captioner.PairCaptioner'
    """
    package, _, rest = class_path.partition(".")
    if package != "lightning_idc":
        return class_path
    module, _, name = rest.rpartition(".")
    while module in MOVED_MODULES:
        module = MOVED_MODULES[module]
    for old in MOVED_PACKAGES:
        if module.startswith(f"{old}."):
            module = MOVED_MODULES[old] + module.removeprefix(old)
    path = ".".join(part for part in (module, name) if part)
    return f"{package}.{RENAMED_CLASSES.get(path, path)}"
