// The native executor for processors with AVX-512, without the instructions that narrow.cpp adds.
#include "native.cpp"
