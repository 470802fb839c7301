"""The tokenizer of SmolLM2, from the installed package: no hub, no network."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cost_parts.table import ROOT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def smollm2() -> PreTrainedTokenizerBase:
    """As the quickstart's model folder has it."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import prepare_model

    prepare_model.disable_progress_bars()
    return prepare_model.load_tokenizer(prepare_model.source())
