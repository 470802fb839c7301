"""The response of one session as token ids with authors, and the edits done to it. Standard library only.

``spans`` holds the tokens, ``text`` maps text offsets to token boundaries, ``steps`` cuts text into steps a judge can
number, ``splice`` puts a correction in the place of a wrong step. Sampled tokens are never decoded and re-encoded.
"""
