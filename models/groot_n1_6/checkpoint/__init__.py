"""Checkpoints in the public layout: safetensors shards, an index and four JSON documents."""
