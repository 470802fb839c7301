"""The equations, pure torch: rewards -> advantage -> anchor and token weights -> loss, and the schedule of
interventions.

Nothing here imports verl or Ray; :mod:`verl_mintrl.objective` is the adapter that registers the loss.
"""
