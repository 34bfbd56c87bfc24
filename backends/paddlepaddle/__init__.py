"""Paddle: ``paddle.amp``."""
