"""The section `attach` of the configuration. Declares keys and nothing else."""

from __future__ import annotations

from pydantic import Field

from fetchproxy.config.forms import OptionalAttachments
from fetchproxy.config.section import Section


class AttachConfig(Section):
    """Topics of other archives, served beside one's own under names of one's choice, read-only."""

    archives: OptionalAttachments = Field(
        None,
        description="each NAME=STORE_URL#TOPIC, separated by spaces: TOPIC of the archive at "
        "STORE_URL is served as NAME, with --archive-only; credentials and time-outs are those of "
        "`store`",
    )
