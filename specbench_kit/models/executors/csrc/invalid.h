// What is thrown for bad input.
#pragma once

namespace skit {

// Becomes a ValueError of Python with these words.
struct InvalidArgument {
  const char* message;
};

}  // namespace skit
