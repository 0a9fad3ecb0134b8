"""What every method stands on: the contract, the run around it, and machinery that several methods share.

In: an `EncodedDataset`, a budget, a method and its settings. Out: a saved `DistilledSet`.

- `contract`: `Method`, `Context`, `finished`. `runner`: one distillation from start to saved set.
- `outer_loop`: iterations, checks and checkpoints. `synthetic_pairs`: what is optimised. `initial_pairs`: its start.
- `coreset`, `warm_up`: for methods that choose real pairs.
- `distribution_matching`: the loop of DM and MDM. `trajectory_matching`, `trajectory_loss`: MTT-VL's, TESLA's, LoRS'.
- `functional_student`, `unrolled_training`, `unrolled_dual_form`, `student_encoder`: the inner loop and its gradient.
- `diagnostics`: cosines and merge ratios for the report. `diffusion_model`: for methods that generate images.
"""
