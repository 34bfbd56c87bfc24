"""PyTorch: ``torch.amp``."""
