"""What serves one instance of a model: its weights and tokenizer from a folder, its loop, and its outbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from python_backends.runtime.engines.causal_lm import AS_STORED, load_causal_lm
from python_backends.runtime.engines.cpu import thread_count, usable_cpu_count
from python_backends.runtime.errors import BackendError, ConfigError
from python_backends.runtime.execution import Tensors
from python_backends.runtime.model_config import ModelConfig
from python_backends.runtime.streaming.budget import weight_memory_bytes
from python_backends.text_generator.counts import Counts
from python_backends.text_generator.generation import Generator
from python_backends.text_generator.outbox import Outbox, Sender
from python_backends.text_generator.request import Bounds, Prompts, Wish
from python_backends.text_generator.scheduling import Limits

MakeSender = Callable[[Wish], Sender]


@dataclass(frozen=True, slots=True)
class _Ends:
    begin: int | None
    ends: frozenset[int]


class Serving:
    """A loaded model that answers, until `close`."""

    def __init__(self, folder: Path, config: ModelConfig, *, kind: str, device_id: int) -> None:
        """Load it. Raises ConfigError: the folder, the parameters and this machine do not match."""
        tokenizer = _tokenizer(folder)
        special = _special_tokens(folder)
        model = load_causal_lm(
            folder,
            weights=config.parameters.get("weights", AS_STORED),
            kind=kind,
            device_id=device_id,
            threads=thread_count(config, usable_cpu_count()),
            weight_memory_bytes=weight_memory_bytes(config),
        )
        limits = Limits(
            max_sequences=_at_least_one(config, "max_sequences", 16),
            kv_cache_tokens=_at_least_one(config, "kv_cache_tokens", 16384),
            prefill_tokens=_at_least_one(config, "prefill_tokens", 64),
        )
        context = min(model.context, limits.kv_cache_tokens)
        if context < 2:
            raise ConfigError(f"model '{config.name}': parameter 'kv_cache_tokens' must leave room for a prompt and a token")
        bounds = Bounds(
            prompt_tokens=min(_at_least_one(config, "max_prompt_tokens", 4096), context - 1),
            output_tokens=_at_least_one(config, "max_output_tokens", 1024),
            context_tokens=context,
        )
        self.counts = Counts()
        self._prompts = Prompts(tokenizer, bounds, begin=special.begin)
        self._outbox = Outbox()
        self._generator = Generator(
            model,
            lambda tokens: str(tokenizer.decode(tokens)),
            ends=special.ends,
            limits=limits,
            max_waiting=_at_least_one(config, "max_waiting", 256),
            counts=self.counts,
        )
        self._generator.after_step = self._outbox.after_step
        self._generator.start()

    def ask(self, inputs: Tensors, parameters: str, make_sender: MakeSender) -> BackendError | None:
        """Queue a request, whose answer goes to the sender that is made for it; return why it is refused."""
        try:
            wish = self._prompts.read(inputs, parameters)
            self._generator.submit(wish.tokens, wish.parameters, self._outbox.opened(make_sender(wish)))
        except BackendError as exc:
            return exc
        return None

    def close(self) -> None:
        """End the loop; what is not answered by then gets an error."""
        self._generator.close()
        self._outbox.close()


def _tokenizer(folder: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as exc:  # tokenizers raises nothing narrower
        raise ConfigError(f"'{folder}' has no tokenizer.json that can be read ({exc}): save the model with its fast tokenizer") from exc
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _special_tokens(folder: Path) -> _Ends:
    """Read which token begins a text and which end an answer: generation_config.json's, or else config.json's."""
    config, generation = _document(folder / "config.json"), _document(folder / "generation_config.json")
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    begin = generation.get("bos_token_id", config.get("bos_token_id"))
    return _Ends(begin if isinstance(begin, int) else None, frozenset(_ids(ends)))


def _ids(value: Any) -> Sequence[int]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, int)]


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _at_least_one(config: ModelConfig, key: str, default: int) -> int:
    value = config.integer(key, default)
    if value < 1:
        raise ConfigError(f"model '{config.name}': parameter '{key}' must be at least 1, not {value}")
    return value
