"""Texts after which a step may be complete, per shipped segmenter: generation stops there when reviewing by steps."""

STOPS: dict[str, tuple[str, ...]] = {"paragraph": ("\n\n",), "line": ("\n",), "code": ("\n",)}
