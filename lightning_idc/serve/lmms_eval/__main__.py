"""Print the folder of the tasks, for ``--include_path`` of lmms-eval."""

from lightning_idc.serve.lmms_eval import TASKS

if __name__ == "__main__":
    print(TASKS)
