"""The work between the matrix products of a layer, on a GPU: by torch's operations, or fused.

| file | content |
| --- | --- |
| `compact_mask.py` | which keys new tokens attend to |
| `base.py` | `LayerKernels`, the contract, and `LayerSizes`, what a model's layers measure |
| `by_torch.py` | torch's operations, several kernels each |
| `description.py` | what a policy reads of a token's logits, by torch's operations |
| `by_triton.py` | the work between products in Triton, one kernel each |
| `triton_attention.py` | attention in Triton, without a mask |
| `triton_logits.py` | what a policy reads of a token's logits, in Triton |
| `operators.py` | the Triton kernels as operators of torch |
| `choice.py` | which of both a device gets, and why |
"""
