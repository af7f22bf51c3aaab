"""An emulated GPU for tests: tensors that say they are on `cuda:0`, compute on the CPU, and refuse what GPUs refuse.

    with emulated_cards() as machine:
        model.to("cuda:0")
        ...
        machine.counts.launches, machine.cards[0].peak_bytes

| file | what is emulated |
| --- | --- |
| `machine.py` | installs all of it, and answers for `torch.cuda` |
| `tensors.py` | tensors on a card: every operation, above and below autograd |
| `requests.py` | what asks for a card from outside of one: factories with a device, `tensor.to("cuda")` |
| `operators.py` | what is known of torch's operators: which launch, wait, or write |
| `copies.py` | copies between the host and cards, and pinned memory |
| `cards.py` | memory of a card: bytes allocated, their peak, and its limit |
| `streams.py` | streams and events, and the order in which they may use memory |
| `graphs.py` | capture and replay of CUDA graphs |
| `counts.py` | launches, waits, copies and synchronisations, by place in the code |
"""

from emulated_card.machine import Machine, emulated_cards

__all__ = ["Machine", "emulated_cards"]
