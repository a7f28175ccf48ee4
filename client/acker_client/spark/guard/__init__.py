"""The guard: which plans may stand between tracked steps, and how a step joins a chain."""
