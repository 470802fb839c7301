"""How a session is sampled: groups, review points, interventions, and the thin adapters to verl's agent loops."""
