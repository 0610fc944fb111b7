"""Check of requests that ask for the classes of outputs (Triton's classification extension).

Triton 24.10 ends, with all its models, at two of them: where an output has strings (SIGFPE, a division by their size), and
where it is empty (SIGSEGV). So the outputs must be known and have numbers, none may be of a size that only the answer
tells unless the model's configuration says that it is never empty, and no input may be empty. Called by
`inference/inference` and `frontends/kserve/grpc_stream`, of the few requests that ask for classes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from control_plane.core.errors import InvalidRequest, UpstreamFailed
from control_plane.core.infer_call import InferCall
from control_plane.inference.dispatch.dispatch import Dispatch
from control_plane.inference.model_configuration.model_configs import ModelConfigs
from control_plane.models.fingerprints import Fingerprints

_PARAMETER = "classes"
"""Parameter of a model's configuration that says, with `true`, that no output of numbers is empty where no input is."""


class Classes:
    """Guard of Triton against requests for classes that end it."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._classifiable = ModelConfigs(dispatch, Fingerprints(), classifiable_outputs)

    async def require(self, call: InferCall, *, timeout_s: float) -> float:
        """Require that Triton can tell the classes that a call asks for, as it goes to Triton; return the seconds that are
        left of `timeout_s`.

        Raises InvalidRequest, ModelNotFound, UpstreamUnavailable, UpstreamFailed, DeadlineExceeded.
        """
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + timeout_s
        if any(0 in tensor.shape for tensor in call.inputs):
            raise InvalidRequest("an empty input has no classes: parameter 'classification' needs inputs with elements")
        outputs = await self._classifiable.get(call.model_name, call.model_version, timeout_s=timeout_s)
        for name in call.classified:
            # Triton reads a name up to its first NUL.
            if name.partition("\0")[0] not in outputs:
                raise InvalidRequest(
                    f"model {call.model_name!r} has no output {name[:100]!r} of numbers and of one size, whose classes could be told; "
                    f"where others are never empty, its configuration may say so (parameter {_PARAMETER!r}: 'true')"
                )
        return deadline_s - now_s()


def classifiable_outputs(config: bytes | bytearray) -> frozenset[str]:
    """Read in a model's configuration, as Triton gives it, which outputs have numbers and are never empty. Raises
    UpstreamFailed."""
    try:
        return frozenset(_classifiable(orjson.loads(config)))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as exc:
        raise UpstreamFailed("Triton does not say which outputs the model has") from exc


def _classifiable(config: dict[str, Any]) -> list[str]:
    says_so = config.get("parameters", {}).get(_PARAMETER, {}).get("string_value") == "true"
    numeric = [output for output in config["output"] if output["data_type"] not in ("TYPE_STRING", "TYPE_INVALID")]
    return [output["name"] for output in numeric if says_so or all(int(dimension) > 0 for dimension in output["dims"])]
