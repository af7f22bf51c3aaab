"""The frame that opens a session, or opens it again with the output that the device has."""

from collections.abc import Sequence

from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.live.protocol import verification_pb2 as messages


def open_frame(
    session: Session, name: str, sampler: Sampler, seed: int, layers: Sequence[int] = (), silence_s: float = 0.0
) -> messages.Open:
    """Return the frame that opens a request's session under a name at the server.

    Its verdicts bring the hidden states of `layers`. Without these, the server goes on by itself after `silence_s`
    without a draft; 0 never.
    """
    prompt = session.request.prompt_ids
    sampling = messages.Sampling(
        temperature=sampler.temperature,
        top_p=sampler.top_p,
        top_k=sampler.top_k,
        seed=seed,
        request=session.request.id,
    )
    output = session.tokens[len(prompt) :]
    frame = messages.Open(session=name, prompt=prompt, output=output, sampling=sampling, layers=layers)
    if silence_s and not layers:
        frame.silence_ms = round(silence_s * 1e3)
        frame.max_tokens = session.request.max_new_tokens
        frame.ends.extend(sorted(session.eos_ids))
    return frame
