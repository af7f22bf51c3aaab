"""Write down the calls of a policy inside vLLM for the tests: python scripts/record_vllm_calls.py --record FILE ...

vLLM is short of KV blocks, so that requests are preempted, and takes prompts in several steps. The other options are
those of engine_test_vllm.py.
"""

import gzip
import json
from argparse import Namespace
from pathlib import Path

from engine_test_vllm import Recorded, load_requests, make_policy, parser_of

SHORT_OF_KV = {"num_gpu_blocks_override": 18, "max_num_batched_tokens": 64}
"""Of 32 tokens each: several requests do not fit, and prompts take several steps."""
__all__ = ["Recorded"]  # vLLM looks for it in the main module


def record(options: Namespace) -> None:
    """Write down the calls of one policy while requests are preempted and prompts take several steps."""
    subject = make_policy(options.method[0], options, **SHORT_OF_KV)
    assert subject.drafts is not None
    subject.drafts.calls = []
    records = subject.decode(load_requests(options, options.limit), options.max_new_tokens)
    texts = [record.prompt_ids + record.output_ids for record in records]
    # A row is the beginning of a text, but for the tokens that the engine cut off behind the end of an output.
    for call in subject.drafts.calls:
        rows = [
            next((i, len(r)) for i, t in enumerate(texts) if r[: len(t)] == t[: len(r)])
            for r in call["rows"]
        ]
        beyond = [
            row[len(texts[number]) :] for row, (number, _) in zip(call["rows"], rows, strict=True)
        ]
        call |= {"rows": rows, "beyond": beyond}
    prompts = [len(record.prompt_ids) for record in records]
    document = {
        "method": options.method[0],
        "texts": texts,
        "prompts": prompts,
        "calls": subject.drafts.calls,
    }
    options.record.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))


def main() -> None:
    """Read the options, and record."""
    parser = parser_of(__doc__)
    parser.add_argument("--record", type=Path, required=True)
    record(parser.parse_args())


if __name__ == "__main__":
    main()
