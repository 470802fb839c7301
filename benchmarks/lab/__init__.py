"""A laboratory for one laptop: a character-level policy, its task, and correctors of known quality."""
