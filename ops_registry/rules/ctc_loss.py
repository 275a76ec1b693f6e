"""Connectionist temporal classification: minus the log probability of all paths that spell the target (Graves et al., 2006).

A path goes through the target's labels with a blank before, between and after them; between two different labels the blank may be
left out. alpha_t(s) is the log probability of all ways to be at place s in frame t, beta_t(s) that of all ways to go on from there to
the end. The softmax over s of alpha_t(s) + beta_t(s) is the share of the paths that are at s in frame t; what all places that hold
class k have of it, the occupancy, is minus the derivative of the loss by the log probability of k in frame t.
"""

import torch
import torch.nn.functional as F

from ops_registry.registry import backward, decomposition
from ops_registry.shared.recorded import recorded

MEAN, SUM = 1, 2
INF = torch.inf
#: How far the probabilities of a frame may add up to something else than one: what log_softmax leaves in bfloat16.
SLACK = 0.05


@decomposition(torch.ctc_loss)
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity):
    batched = log_probs.dim() == 3
    frames = log_probs if batched else log_probs.unsqueeze(1)
    labels = targets.to(frames.device, torch.long)
    loss = torch._ctc_loss(frames, labels, input_lengths, target_lengths, blank, zero_infinity)[0]
    if zero_infinity:
        loss = torch.where(loss == INF, 0, loss)
    if reduction == SUM:
        return loss.sum()
    if reduction == MEAN:
        return (loss / torch.as_tensor(target_lengths).to(loss).clamp_min(1)).mean()
    return loss if batched else loss.squeeze(0)


@backward(torch._ctc_loss, wrt="log_probs", constant_results=(1,))
def _ctc_loss(grad, log_probs, targets, input_lengths, target_lengths, blank, zero_infinity, result):
    """Of a frame whose probabilities sum to one, the gradient is known up to a multiple of them: log_softmax, which makes such frames,
    takes it away. There it is torch's choice, probability minus occupancy. Of any other frame it is the derivative.
    """
    loss, log_alpha = result
    device = log_probs.device
    ends = torch.as_tensor(input_lengths, device=device).reshape(-1, 1)
    live = torch.arange(log_probs.shape[0], device=device).reshape(-1, 1, 1) < ends
    if zero_infinity:
        live = live & (loss != INF).unsqueeze(-1)
    probs = log_probs.exp()
    normalised = (probs.sum(-1, keepdim=True) - 1).abs() < SLACK
    weight = grad.reshape(1, -1, 1)
    if not recorded():  # the kernel is as fast as torch, but cannot be differentiated
        low = log_probs.clamp_min(-1e30)  # it divides by the probabilities
        lengths = input_lengths, target_lengths
        kernel = torch.ops.aten._ctc_loss_backward
        slope = kernel(grad, low, targets, *lengths, loss, log_alpha, blank, zero_infinity)
        return slope.addcmul_(probs, weight * (live & ~normalised), value=-1)
    places, last = paths(targets, target_lengths, blank)
    shares = torch.where(live, shares_of_paths(log_probs, places, last, ends, live), 0)
    occupancy = torch.zeros_like(probs).scatter_add(-1, places.expand(shares.shape), shares)
    slope = torch.where(loss.unsqueeze(-1) == INF, torch.nan, torch.where(normalised, probs, 0) - occupancy)
    return torch.where(live, slope, 0) * weight


def paths(targets, target_lengths, blank):
    """The class at each place of the paths, (N, S), and which places a path may end at, (N, S)."""
    lengths = torch.as_tensor(target_lengths, device=targets.device).reshape(-1, 1)
    rank = torch.arange(max(1, int(lengths.max())), device=targets.device)
    row = targets.shape[1] * torch.ones_like(lengths) if targets.dim() > 1 else lengths
    written = F.pad(targets.reshape(-1), (0, 1), value=blank)
    labels = written[torch.where(rank < lengths, row.cumsum(0) - row + rank, -1)]
    places = torch.stack((torch.full_like(labels, blank), labels), -1).reshape(labels.shape[0], -1)
    places = F.pad(places, (0, 1), value=blank)
    place = torch.arange(places.shape[1], device=targets.device)
    return places, (place == 2 * lengths) | (place == 2 * lengths - 1)


def shares_of_paths(log_probs, places, last, ends, live):
    """The share of the paths that are at each place in each frame, (T, N, S), for paths of ``ends`` frames, (N, 1)."""
    scores = log_probs.gather(-1, places.expand(log_probs.shape[0], *places.shape))
    skips = F.pad(places[:, 2:] != places[:, :-2], (2, 0))

    def before(x):
        jump = torch.where(skips, F.pad(x, (2, -2), value=-INF), -INF)
        return torch.stack((x, F.pad(x, (1, -1), value=-INF), jump)).logsumexp(0)

    def after(x):
        jump = torch.where(F.pad(skips, (-2, 2)), F.pad(x, (-2, 2), value=-INF), -INF)
        return torch.stack((x, F.pad(x, (-1, 1), value=-INF), jump)).logsumexp(0)

    nowhere = torch.full_like(scores[0], -INF)
    alphas = [nowhere.index_fill(1, torch.arange(2, device=places.device), 0) + scores[0]]
    for score in scores[1:]:
        alphas.append(before(alphas[-1]) + score)
    betas = []
    for t in reversed(range(len(scores))):
        onward = after(betas[-1] + scores[t + 1]) if betas else nowhere
        betas.append(torch.where(last & (ends == t + 1), 0, onward))
    both = torch.stack(alphas) + torch.stack(betas[::-1])
    return torch.where(live, both, 0).softmax(-1)
