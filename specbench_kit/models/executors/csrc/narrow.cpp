// The native executor for processors with AVX-512 that also multiply bf16 numbers and bytes, by AMX where there is one.
#include "native.cpp"
