"""Computing of batches' chunks for tests."""

from __future__ import annotations

from control_plane.batches.domain.batch import EMBEDDINGS
from control_plane.batches.domain.input_lines import lines_of
from control_plane.batches.domain.output_lines import answered_line
from control_plane.core.algorithms.steps import finish
from control_plane.jobs.domain.job import Job
from control_plane.jobs.ports import Computed
from control_plane.metering.domain.usage import Usage
from control_plane.protocols.http1 import make_answer
from tests.fakes.jobs import FakeCompute


class AnsweringLines(FakeCompute):
    """Answers each line by its number of characters; a line named `wrong...` is an error. Other jobs are answered as ever."""

    async def compute(self, job: Job, body: bytes) -> Computed:
        if job.target != EMBEDDINGS:
            return await super().compute(job, body)
        self.begun.append(job.id)
        await self.may_answer.wait()
        lines = finish(lines_of(body))
        wrong = [line for line in lines if line.custom_id.startswith("wrong")]
        fine = [line for line in lines if line not in wrong]
        parts = [answered_line(job.id, 0, line.custom_id, 200, b'{"n":%d}' % len(line.body)) for line in fine]
        parts += [answered_line(job.id, 0, line.custom_id, 400, b'{"error":{}}') for line in wrong]
        return Computed(make_answer(200, b"".join(parts)), job.model, Usage(requests=len(fine), refused=len(wrong)), len(wrong))
