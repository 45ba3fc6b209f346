"""Adapters: trainers and frameworks that declog plugs into, written against the public API as a stranger would."""
