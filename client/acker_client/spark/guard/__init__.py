"""The guard: which plans may stand between tracked stages, and how a step joins a stage."""
