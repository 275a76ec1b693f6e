"""Reports: questions about a graph and its backward pass, each answered with a verdict, the evidence and the fix."""
