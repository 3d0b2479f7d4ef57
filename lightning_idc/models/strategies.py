"""ShardedStrategy: weights, gradients and optimizer state sharded over all processes (FSDP2)."""

from __future__ import annotations

from datetime import timedelta

from lightning.pytorch.strategies import ModelParallelStrategy

from lightning_idc.utils.bounds import PositiveFloat, check_arguments


class ShardedStrategy(ModelParallelStrategy):
    """FSDP2 over all processes of a run.

    Lightning's ``ModelParallelStrategy`` with "auto" uses tensor parallelism over the processes of a node, for which a
    module needs a plan; without one each process trains its own unsharded weights. Here the data-parallel size is the
    number of processes of all nodes.

    Args:
        save_distributed_checkpoint: each process writes its shard, which gives a folder instead of one file.
        process_group_backend: ``nccl`` or ``gloo``; chosen by the device when None.
        timeout_minutes: maximum time that a process waits for the others.

    Raises:
        ConfigError: the timeout is not positive.
    """

    def __init__(
        self,
        save_distributed_checkpoint: bool = False,
        process_group_backend: str | None = None,
        timeout_minutes: PositiveFloat = 30.0,
    ) -> None:
        check_arguments(ShardedStrategy.__init__, locals())
        super().__init__(
            data_parallel_size="auto",
            tensor_parallel_size=1,
            save_distributed_checkpoint=save_distributed_checkpoint,
            process_group_backend=process_group_backend,
            timeout=timedelta(minutes=timeout_minutes),
        )

    def setup_environment(self) -> None:
        # the trainer sets the number of devices and nodes after __init__
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()
