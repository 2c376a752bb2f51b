"""Training state on disk: written whole or not at all, under the model's own names, readable by any other pipeline."""
