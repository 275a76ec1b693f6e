"""Every operator of torch's own database, through tracked tensors and through torch."""
