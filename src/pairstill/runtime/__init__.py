"""Files, runs, seeds, progress and processes: what every room stands on.

In: nothing of the pipeline. Out: nothing of it. Neighbours use all of it.

- `files`: atomic writes, locks, hashes. `run_folder`: a run's settings, events and checkpoint.
- `seeds`: all randomness. `progress`: bars and time left. `memory`: freed memory is kept; the peak.
- `row_matrix`: matrices that are read some rows at a time.
- `launchers`: tasks here, in processes, on a Ray cluster. `process_group`: one distillation in several processes.
"""
