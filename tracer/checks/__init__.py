"""Whether gradients are right: gradcheck, the check of a rule, and the sweeps over all of them. Nothing of it is loaded by plain use."""
