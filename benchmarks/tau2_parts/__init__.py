"""tau2-bench (https://github.com/sierra-research/tau2-bench) as an environment of turns, with scripted players."""
