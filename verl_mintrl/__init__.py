"""Token-exact interventions inside verl rollouts. Importing this package imports neither verl, ray nor vllm."""

__version__ = "0.1.0"
