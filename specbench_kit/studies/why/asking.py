"""Timed requests to one or two servers: whole answers, answers that are cut short so that less is drafted, and
prompts with a few new tokens behind a beginning that the server has kept.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import Prompt
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.engines.answers import DraftCounts, StreamedAnswer
from specbench_kit.live.engines.base import Generation
from specbench_kit.live.engines.client import RequestFailedError, SentRequest, StreamClient
from specbench_kit.live.engines.counters import change, read_counters, read_positions
from specbench_kit.live.engines.request_fields import RequestBody
from specbench_kit.studies.ab.run import explain_failure
from specbench_kit.studies.why.evidence import Evidence, repeated_share
from specbench_kit.studies.why.settings import WhySettings
from specbench_kit.studies.why.summary import ObservedAnswer

MOST_LENGTHS = 8
"""Draft lengths up to which answers are cut short: longer ones would add little."""
UNDRAFTED_TOKENS = 2
"""Tokens of an answer in which nothing can be drafted: the prompt's forward brings the first, and one is left."""
WARM_UP_TOKENS = 8
WIDTHS = (1, 2, 4, 8)
WORDS = (" one", " red", " cat", " sun")
"""Beginnings of what is put behind a prompt, each unlike the others, so that none continues what the server kept."""
TOKENS_OF_PIECES = ("token ids", "running usage", "logprobs", "tokenizer")
"""Ways of counting that tell how many tokens a piece of the stream brought."""
COUNTED = {
    "answer": "counts beside each answer",
    "counters": "the server's own counters, before and after each answer",
    "chunks": "pieces of the stream, taken for one round each: the server counts no drafts",
}


@dataclass
class Interview:
    """Puts prompts to the servers one after the other, and collects their timed answers.

    `progress` gets the number of prompts that are done.
    """

    settings: WhySettings
    clients: Sequence[StreamClient]
    prompts: Sequence[Prompt]
    progress: Callable[[str, int, int], None]
    answers: list[ObservedAnswer] = field(default_factory=list)
    accepted_at: dict[int, float] = field(default_factory=dict)
    drafts: float = 0.0
    counted: str = ""
    _asked: int = 0

    async def run(self) -> None:
        """Ask everything; raise SkitError if a server fails."""
        for client in self.clients:
            for _ in range(2):
                await self._ask(client, self.prompts[0].turns[0], WARM_UP_TOKENS)
        for number, prompt in enumerate(self.prompts):
            self.progress("prompts", number, len(self.prompts))
            # Both servers meet a machine that becomes slower alike.
            for client in self.clients if number % 2 else self.clients[::-1]:
                await self._whole(client, prompt)
                await self._shorter(client, prompt)
                if client is self.clients[0]:
                    await self._wider(client, prompt)
        for concurrency in self.settings.concurrency:
            self.progress(f"{concurrency} together", 0, 1)
            if concurrency > 1:
                await self._together(concurrency)
        self.progress("prompts", len(self.prompts), len(self.prompts))

    def evidence(self, cautions: Sequence[str]) -> Evidence:
        """Return all that was observed."""
        places = sorted(self.accepted_at)
        return Evidence(
            servers=[client.address.name for client in self.clients],
            answers=self.answers,
            counted=COUNTED[self.counted or "chunks"],
            accepted_at=[self.accepted_at[place] for place in places],
            drafts=self.drafts,
            cautions=cautions,
        )

    async def _whole(self, client: StreamClient, prompt: Prompt) -> None:
        before = await client.counters_page()
        sent = await self._ask(client, prompt.turns[0], self.settings.max_new_tokens)
        after = await client.counters_page()
        moved = change(read_counters(before), read_counters(after))
        if client is self.clients[-1]:
            self._count_places(before, after, moved)
        self._add(client, prompt, sent, moved)

    def _count_places(self, before: str, after: str, moved: DraftCounts | None) -> None:
        """Count what was accepted at each place of the drafts of an answer."""
        if moved is None or not moved.rounds:
            return
        self.drafts += moved.rounds
        earlier = read_positions(before)
        for place, count in read_positions(after).items():
            so_far = self.accepted_at.get(place, 0.0)
            self.accepted_at[place] = so_far + count - earlier.get(place, 0.0)

    async def _shorter(self, client: StreamClient, prompt: Prompt) -> None:
        """Ask for answers of so few tokens that a round drafts none, one, two and so on of them."""
        longest = self._longest_draft() if client is self.clients[-1] else 0
        for length in range(longest + 1):
            before = await client.counters_page()
            added = client.dialect.undrafted if length == 0 else {}
            tokens = UNDRAFTED_TOKENS + length
            sent = await self._probe(client, prompt.turns[0], tokens, added=added)
            # A server holds back what is no whole character yet: the times of such a stream say less than its counts.
            if sent is None or sent.received.answer().tokens != tokens:
                continue
            after = await client.counters_page()
            moved = change(read_counters(before), read_counters(after))
            self._add(client, prompt, sent, moved, probe="length", counts_in_page=bool(before))

    def _longest_draft(self) -> int:
        """Return the most tokens per round that were drafted in an answer so far."""
        longest = [
            ceil((answer.drafted or 0) / answer.rounds) for answer in self.answers if answer.rounds
        ]
        return min(MOST_LENGTHS, max(longest, default=0))

    async def _wider(self, client: StreamClient, prompt: Prompt) -> None:
        """Time forwards over a few new tokens of a prompt, as a verification is one."""
        longest = max(1, self._longest_draft() + 1)
        widths = [width for width in WIDTHS if width < 2 * longest]
        if len(widths) < 2:
            return
        added = client.dialect.from_cache
        label = f"skit-why-{prompt.id}-{self._asked}"
        await self._probe(client, prompt.turns[0], 1, label, added)
        for place, width in enumerate(widths):
            text = prompt.turns[0] + WORDS[place % len(WORDS)] * width
            sent = await self._probe(client, text, 1, label, added)
            if sent is None:
                continue
            answer = sent.received.answer()
            if answer.prompt_tokens is not None and answer.cached_tokens:
                self.answers.append(
                    ObservedAnswer(
                        server=client.address.name,
                        request_id=prompt.id,
                        tokens=answer.tokens,
                        decode_s=0.0,
                        ttft_s=answer.ttft_s,
                        probe="width",
                        width=answer.prompt_tokens - answer.cached_tokens,
                    )
                )

    async def _together(self, concurrency: int) -> None:
        """Ask each server for as many answers at once."""
        count = max(concurrency, len(self.prompts))
        prompts = [self.prompts[number % len(self.prompts)] for number in range(count)]
        for client in self.clients:
            places = asyncio.Semaphore(concurrency)

            async def ask(
                prompt: Prompt, client: StreamClient = client, places: asyncio.Semaphore = places
            ) -> SentRequest:
                async with places:
                    return await self._ask(client, prompt.turns[0], self.settings.max_new_tokens)

            answered = await asyncio.gather(*map(ask, prompts))
            for prompt, sent in zip(prompts, answered, strict=True):
                self._add(client, prompt, sent, None, concurrency=concurrency)

    async def _probe(
        self,
        client: StreamClient,
        text: str,
        tokens: int,
        label: str = "",
        added: RequestBody | None = None,
    ) -> SentRequest | None:
        """Return a short answer, which goes on to its length where the server can be told to; None if it is empty.

        The few tokens of such an answer may be no whole character, which servers do not send.
        """
        try:
            return await client.ask(self._generation(client, text, tokens, label, added, True))
        except RequestFailedError as failure:
            if failure.unreachable or failure.status is not None:
                raise SkitError(await explain_failure(client, failure)) from failure
            return None

    async def _ask(self, client: StreamClient, text: str, tokens: int) -> SentRequest:
        """Return a whole answer."""
        try:
            return await client.ask(self._generation(client, text, tokens))
        except RequestFailedError as failure:
            raise SkitError(await explain_failure(client, failure)) from failure

    def _generation(
        self,
        client: StreamClient,
        text: str,
        tokens: int,
        label: str = "",
        added: RequestBody | None = None,
        is_probe: bool = False,
    ) -> Generation:
        self._asked += 1
        return Generation(
            prompt=text,
            max_tokens=tokens,
            sampler=Sampler(0.0, 1.0, 0),
            seed=self.settings.seed,
            label=label or f"skit-why-{self._asked}",
            ignore_eos=self.settings.ignore_eos or (is_probe and client.dialect.may_ignore_eos),
            added=added or {},
        )

    def _add(
        self,
        client: StreamClient,
        prompt: Prompt,
        sent: SentRequest,
        moved: DraftCounts | None,
        *,
        probe: str = "",
        concurrency: int = 1,
        counts_in_page: bool = False,
    ) -> None:
        answer = sent.received.answer()
        drafts = answer.drafts or moved
        if drafts is None and counts_in_page:
            drafts = DraftCounts(0, 0, 0)  # the counters stood still: nothing was drafted
        if client is self.clients[-1] and probe == "" and concurrency == 1:
            self.counted = "answer" if answer.drafts else "counters" if moved else self.counted
        self.answers.append(
            observed(
                client.address.name,
                prompt.id,
                answer,
                drafts,
                probe=probe,
                concurrency=concurrency,
            )
        )


def observed(
    server: str,
    request_id: str,
    answer: StreamedAnswer,
    drafts: DraftCounts | None,
    *,
    probe: str = "",
    concurrency: int = 1,
) -> ObservedAnswer:
    """Return what an answer tells of its rounds; without counts, each piece of the stream is taken for a round."""
    tokens = max(0, answer.tokens - 1)
    facts: Mapping[str, int | None] = {}
    rounds: int | None
    if drafts is not None and drafts.accepted is not None:
        # Some servers count only the rounds that had a draft.
        rounds = max(drafts.rounds or 0, tokens - drafts.accepted)
        facts = {
            "drafted": drafts.drafted,
            "accepted": drafts.accepted,
            "accepted_first": drafts.accepted_first,
        }
    else:
        known = answer.counted_by in TOKENS_OF_PIECES
        rounds = sum(burst.tokens > 0 for burst in answer.bursts[1:]) if known else None
    words = answer.token_ids or (answer.text or "").split()
    return ObservedAnswer(
        server=server,
        request_id=request_id,
        tokens=answer.tokens,
        decode_s=answer.decode_s,
        rounds=rounds,
        ttft_s=answer.ttft_s,
        ended=answer.was_stopped,
        repeated=None if probe else repeated_share(words),
        probe=probe,
        concurrency=concurrency,
        **facts,
    )
