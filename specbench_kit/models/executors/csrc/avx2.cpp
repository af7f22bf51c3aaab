// The native executor for processors with AVX2.
#include "native.cpp"
