"""Who reviews a rollout: one protocol, several backends, one failure policy."""
