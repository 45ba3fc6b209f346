"""The logging plan: frozen ops, their fingerprint, and the plan in words."""
