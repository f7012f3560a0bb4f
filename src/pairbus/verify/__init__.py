"""Certifies a pair of namespaces: every acknowledged message is accounted for by its identity."""
