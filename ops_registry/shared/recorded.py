"""Whether the backward pass that runs is recorded itself."""

import torch

#: ``recorded()``: under ``create_graph=True`` a formula runs on tracked tensors, and has to be made of differentiable parts. Where it
#: is False, kernels and buffers that cannot be differentiated will do. The engine says it by grad mode, so it is that function itself.
recorded = torch.is_grad_enabled
