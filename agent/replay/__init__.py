"""This package replays policies on what was recorded, without a GPU or a model."""
