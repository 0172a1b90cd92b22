// A double that the caller passed in single precision.
#pragma once

#include <charconv>

// 0.3 as a float is not 0.3 as a double. People write short numbers, so the shortest decimal that gives the same
// float is the number that was meant.
inline double widen(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double result = value;
  std::from_chars(text, end, result);
  return result;
}
