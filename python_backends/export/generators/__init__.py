"""Language models as published: weights and tokenizer in transformers' form, and the trial of their variants."""
