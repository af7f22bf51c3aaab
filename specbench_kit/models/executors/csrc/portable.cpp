// The native executor for processors of any kind.
#include "native.cpp"
