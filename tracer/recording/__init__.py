"""The way of a call: from interception to the node that it leaves behind."""
