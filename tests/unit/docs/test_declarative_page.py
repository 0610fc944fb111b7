"""The page on declared objects: its consoles, run as they stand there, print what it says that they print."""

from __future__ import annotations

import re
from pathlib import Path

from control_plane.settings import PROJECT_ROOT
from tests.e2e.docs.consoles import commands_in
from tests.unit.cli.admin.declarative_bench import shell

PAGE = (PROJECT_ROOT / "docs" / "how-to" / "declarative.md").read_text()


def test_its_commands_print_what_it_says(tmp_path: Path) -> None:
    yaml = re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    commands = commands_in(PAGE)
    assert (len(yaml), len(commands) > 10) == (1, True)
    with shell(tmp_path) as here:
        for name, text in yaml:
            (tmp_path / name).write_text(f"# {name}\n{text}")
        for command in commands:
            done = here.run(command.line)
            assert done.stdout.strip() == command.output.strip(), f"{command.line}\n{done.stderr}"
