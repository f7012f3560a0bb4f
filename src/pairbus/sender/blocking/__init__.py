"""The blocking shell: threads."""
