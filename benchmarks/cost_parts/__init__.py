"""What the cost benchmarks share: the table they write, their statistics, a tokenizer."""
