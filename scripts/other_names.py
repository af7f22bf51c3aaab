"""What the kit's metrics are called in papers and in other tools, where the same word often means something else."""

from typing import NamedTuple


class OtherNames(NamedTuple):
    """A quantity under the kit's name and under those of four papers and two tools; empty where they do not have it.

    A name is followed by its definition where that differs from the kit's, or where the same word means another thing.
    """

    ours: str
    wisp: str = ""
    specedge: str = ""
    adaspec: str = ""
    specpipe: str = ""
    vllm: str = ""
    aiperf: str = ""


SOURCES = ("ours", "WISP", "SpecEdge", "AdaSpec", "SpecPipe", "vLLM", "AIPerf")
"""Titles of the fields of `OtherNames`, in their order."""
OTHER_NAMES = (
    OtherNames(
        ours="`draft_efficiency`: accepted / drafted tokens",
        wisp="acceptance rate (Table 5)",
        adaspec="acceptance rate (Table 2)",
    ),
    OtherNames(
        ours="`acceptance_rate`: accepted / submitted tokens",
        vllm="draft acceptance rate; every drafted token is submitted there",
        aiperf="as the server reports it",
    ),
    OtherNames(
        ours="`acceptance_length`: committed tokens per verification, with the target's own token",
        wisp="expected tokens of a round (Eq. 5), predicted",
        specedge="tokens per verification",
        vllm="mean acceptance length: 1 + accepted tokens / drafts",
        aiperf="as the server reports it",
    ),
    OtherNames(
        ours="`accepted_length`: accepted tokens per round, without the target's own token",
        adaspec="accepted tokens",
        vllm="accepted tokens / drafts",
    ),
    OtherNames(
        ours="`expected_accepted_length`: predicted accepted tokens per round, without the target's own token",
        wisp="expected tokens (Eq. 5), less 1",
        adaspec="expected accepted tokens",
    ),
    OtherNames(
        ours="`hit_rate`: share of a pipeline's committed tokens that were in flight",
        specpipe="hit rate of the tree; Figure 7's is that of the best k drafts of one position",
    ),
    OtherNames(ours="`wdt`: drafting seconds of all drafted tokens that were not accepted"),
    OtherNames(
        ours="`wdt_paper`: drafting seconds of submitted tokens that were not accepted",
        wisp="wasted drafting time (Eq. 8)",
    ),
    OtherNames(
        ours="`goodput`: tokens per second of the responses that met their SLO",
        vllm="another thing: requests per second that met their SLO",
        aiperf="another thing: requests per second that met their SLO",
    ),
    OtherNames(
        ours="`throughput`: committed tokens per second, whether or not SLOs were met",
        wisp="goodput: committed tokens per second of the system (Tables 3 and 6)",
        specedge="server throughput",
        specpipe="throughput",
        vllm="output token throughput",
        aiperf="output token throughput",
    ),
    OtherNames(
        ours="`violation_rate`: share of responses slower than the speed that they were promised",
        wisp="violation rate",
        adaspec="1 - SLO attainment, by time per token",
    ),
    OtherNames(
        ours="`response_s`: seconds from a request's arrival to its last token",
        adaspec="end-to-end latency",
        vllm="end-to-end request latency",
        aiperf="request latency",
    ),
    OtherNames(
        ours="`ttft`: seconds to the first token",
        vllm="time to first token (TTFT)",
        aiperf="time to first token",
    ),
    OtherNames(
        ours="`tpot`: a response's seconds after its first token / further tokens",
        specedge="inter-token latency",
        adaspec="time per output token",
        specpipe="time between tokens (TBT)",
        vllm="time per output token (TPOT)",
        aiperf="inter-token latency: another word for it",
    ),
    OtherNames(
        ours="`itl`: seconds between two tokens; those that arrive together share the gap before them equally",
        vllm="another thing: see `icl_s`",
        aiperf="another thing: see `tpot`",
    ),
    OtherNames(
        ours="`icl_s` of simulations: seconds between two arrivals of a response; tokens of one round arrive together",
        vllm="inter-token latency (ITL)",
        aiperf="inter-chunk latency",
    ),
    OtherNames(
        ours="`speedup`: time of autoregressive decoding / time of the method",
        specedge="speedup",
        adaspec="speedup; a gain of 55% is .55 more of it, and no ratio",
        specpipe="speedup of the time between tokens",
    ),
    OtherNames(
        ours="`cost_efficiency`: tokens per dollar, a drafting device being paid while it works",
        specedge="cost efficiency: two devices per client are paid the whole time",
    ),
)
