"""The demo: a byte-level GPT is profiled, planned and trained on two local processes, and proved equal."""
